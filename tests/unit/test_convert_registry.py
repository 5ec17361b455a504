"""Converters by name: files, text and standard input in, command lines and YAML out, and one report of losses."""

import io
import json
import sys

import pytest

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.formats.carry import Carrier, Grammar, Left, read_keys, read_size, read_words
from graphspec.formats.convert import SOURCES, TARGETS, convert, read_foreign, write_foreign

TEXTS = {
    "vllm": [
        "vllm serve m -tp 2 --max-num-seqs 8",
        "#!/bin/sh\n# start\nVLLM_X=1 vllm serve m \\\n  -tp 2 --max-num-seqs 8 # all\n",
        "--model m -tp 2 --max-num-seqs 8",
        "python -m vllm.entrypoints.openai.api_server --model m -tp 2 --max-num-seqs 8",
        '{"model": "m", "tensor_parallel_size": 2, "max_num_seqs": 8}',
        "model: m\ntensor-parallel-size: 2\nmax_num_seqs: 8\n",
    ],
    "sglang": [
        "python3 -m sglang.launch_server --model-path m --tp 2 --max-running-requests 8",
        "sglang serve --model m --tp-size 2 --max-running-requests 8",
        '{"model_path": "m", "tp_size": 2, "max_running_requests": 8}',
        "model-path: m\ntensor-parallel-size: 2\nmax-running-requests: 8\n",
    ],
    "trtllm": [
        "model: m\ntensor_parallel_size: 2\nmax_batch_size: 8\n",
        '{"model": "m", "tensor_parallel_size": 2, "max_batch_size": 8}',
    ],
    "graphspec": [
        "model: {source: m}\nparallel: {tensor_parallel_size: 2}\nscheduler: {max_num_seqs: 8}\n",
        '{"model": {"source": "m"}, "parallel": {"tensor_parallel_size": 2}, "scheduler": {"max_num_seqs": 8}}',
    ],
}
WANTED = {
    "model": {"source": "m"},
    "parallel": {"tensor_parallel_size": 2},
    "scheduler": {"max_num_seqs": 8},
}
CASES = [(kind, text) for kind, texts in TEXTS.items() for text in texts]


@pytest.mark.parametrize(("kind", "text"), CASES)
@pytest.mark.parametrize("form", ["text", "file", "stdin"])
def test_each_form_of_input_gives_the_same_data(kind, text, form, tmp_path, monkeypatch):
    """A command line, YAML or JSON; as text, in a file, or on standard input."""
    given = text
    if form == "file":
        given = str(tmp_path / "settings")
        (tmp_path / "settings").write_text(text)
    elif form == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        given = "-"
    assert read_foreign(kind, given).data == WANTED


@pytest.mark.parametrize("source", TEXTS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_source_converts_to_every_target_and_back(source, target):
    """What both sides can say survives the way there and back."""
    converted = convert(source, target, TEXTS[source][0])
    data = read_foreign(target, converted.text).data
    assert data["parallel"]["tensor_parallel_size"] == 2
    assert data["scheduler"]["max_num_seqs"] == 8
    assert data["model"]["source"] == "m"
    EngineConfig.from_dict(data)


def test_a_way_through_an_engine_reports_both_losses():
    """What the source left comes first, then what the target cannot say."""
    line = "vllm serve m --seed 3 --attention-backend FLASH_ATTN_MLA --speculative-config"
    converted = convert("vllm", "sglang", line + ' \'{"method": "suffix"}\'')
    where = [left.where for left in converted.left]
    assert where.index("--seed") < where.index("kernels.attention_backend")
    assert "speculative.method" in where
    assert converted.text.startswith("sglang serve --model-path m ")


@pytest.mark.parametrize(
    "text",
    [
        "DEEPINFER_USE_NEXTN_DECODE=3\n",
        "# drafts\nexport DEEPINFER_USE_NEXTN_DECODE='3' # three\nOTHER=x\n",
        '{"DEEPINFER_USE_NEXTN_DECODE": "3"}',
    ],
)
def test_deepinfer_reads_lines_and_json(text):
    """As in an env file, a shell script, or JSON; the model is given beside them."""
    carried = read_foreign("deepinfer", text, model="m")
    assert carried.data == {
        "speculative": {"method": "dspark", "num_speculative_tokens": 3},
        "model": {"source": "m"},
    }
    assert "model.source" not in {left.where for left in carried.left}
    assert "dspark" in convert("deepinfer", "graphspec", text, model="m").text


def test_hf_reads_a_folder(tmp_path):
    """The folder is the model."""
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float16"}))
    text = convert("hf", "graphspec", str(tmp_path)).text
    assert text == f"model:\n  source: {tmp_path}\n  dtype: float16\n"


@pytest.mark.parametrize(
    ("source", "target", "text", "message"),
    [
        ("vlm", "vllm", "--model m", "found 'vlm'.*\n.*did you mean 'vllm'"),
        ("vllm", "hf", "--model m", "found 'hf'.*wanted one of vllm, sglang"),
        ("vllm", "vllm", "--seed 3", "model.source: found nothing"),
        ("vllm", "vllm", "vllm serve 'm", "quotes that close"),
        ("vllm", "vllm", "no_such_file.yaml", "no such file"),
        ("vllm", "vllm", "- a\n- b\n", "a mapping of settings"),
        ("vllm", "vllm", "model: m\nmax-num-seqs: '8'\n", "<text>:2: max-num-seqs.*an integer"),
        ("sglang", "vllm", "model-path: m\ntp: 0\n", "<text>:2: tp: found 0"),
        ("trtllm", "vllm", "model: m\nmax_batch_size: 1.5\n", "<text>:2: max_batch_size"),
        ("deepinfer", "vllm", "A=1\nB\n'", "(?s)<text>:2.*NAME=value.*<text>:3.*quotes"),
        ("deepinfer", "vllm", "A=1\nA=2\n", "<text>:2: A: found a second value"),
        ("deepinfer", "vllm", '{"DEEPINFER_USE_NEXTN_DECODE": 3}', "<text>:1.*text of digits"),
        ("graphspec", "vllm", "model: {source: m, dtpe: x}\n", "<text>:1: model.dtpe"),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_its_place(source, target, text, message):
    """Unknown names, missing models and bad text are refused with a hint."""
    with pytest.raises(SpecError, match=message):
        convert(source, target, text)


def test_a_model_given_twice_must_be_one():
    """The settings' own model is not replaced in silence."""
    assert read_foreign("vllm", "--model m", model="m").data == {"model": {"source": "m"}}
    with pytest.raises(SpecError, match=r"found 'n'.*wanted m"):
        read_foreign("vllm", "--model m", model="n")


def test_a_path_that_holds_no_text_is_a_problem(tmp_path):
    """Bytes that are no text, too many of them, and a folder."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_bytes(b" " * ((4 << 20) + 1))
    for name, message in (("bytes", "not UTF-8"), ("long", "more bytes"), ("", "a folder")):
        with pytest.raises(SpecError, match=message):
            read_foreign("vllm", str(tmp_path / name))


def test_the_registry_names_its_converters():
    """The command line offers these names."""
    assert list(SOURCES) == ["vllm", "sglang", "trtllm", "deepinfer", "hf", "graphspec"]
    assert list(TARGETS) == ["vllm", "sglang", "trtllm", "graphspec"]


def test_a_config_is_written_for_each_target():
    """Text that the engine reads, and no loss where there is none."""
    config = EngineConfig.from_dict(WANTED)
    assert write_foreign("graphspec", config)[1] == ()
    assert write_foreign("vllm", config)[0].startswith("vllm serve m --dtype float32 ")
    text, _ = write_foreign("trtllm", config)
    assert "model: m\n" in text
    assert "\nmax_batch_size: 8\n" in text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16", 16),
        ("16k", 16000),
        ("1.5k", 1500),
        ("1.2345k", 1234),
        ("16K", 16384),
        ("1m", 10**6),
        ("2G", 2 << 30),
        ("1.5K", None),
        ("k", None),
        ("1kk", None),
        ("1_000", None),
        (" 1", None),
    ],
)
def test_sizes_have_decimal_and_binary_suffixes(text, size):
    """As vLLM and SGLang read them."""
    assert read_size(text) == size


def test_a_setting_is_carried_once():
    """Two settings for one field are a problem that names both, as the user wrote them."""
    carrier = Carrier("E", read_keys({"a-one": 1, "b": 2}, Grammar()))
    carrier.carry("a_one", "scheduler.max_num_seqs")
    carrier.carry("b", "scheduler.max_num_seqs")
    with pytest.raises(SpecError, match=r"b: found 2.*a-one, which mean the same"):
        carrier.finish({}, {})


def test_keys_that_are_not_text_are_problems():
    """Settings have names."""
    settings = read_keys({1: 2}, Grammar())
    assert [p.wanted for p in settings.problems] == ["keys that are strings"]
    carrier = Carrier("E", read_keys({"a": {1: 2}}, Grammar()))
    assert carrier.expand("a")
    with pytest.raises(SpecError, match="a: found 1"):
        carrier.finish({}, {})


def test_negative_numbers_are_values():
    """A word that begins with a digit after its dash is no flag."""
    settings = read_words(["--a", "-1", "--b=-2.5", "--c"], Grammar(kinds={"a": "int"}))
    assert settings.values == {"a": -1, "b": "-2.5", "c": True}


def test_a_loss_is_one_line():
    """For a terminal."""
    left = Left(where="dtype", found="'half'", why="the same", changed_to="model.dtype: float16")
    assert left.render() == "dtype: 'half' became model.dtype: float16: the same"
    assert Left(where="a", found="1", why="b").render() == "a: 1: b"
