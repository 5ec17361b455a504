"""Goldens to the letter: the words of each value, each line of a drift, the file as written, and what is refused."""

import enum
import json
import os

import attrs
import pytest

from graphspec.errors import EnvironmentProblem, Problem, SpecError
from graphspec.fields import Stage, config_class, keyed
from graphspec.keys import encoding
from graphspec.keys.encoding import DtypeName, EnumName, Record
from graphspec.keys.factors import CLASS, compute_hash
from graphspec.keys.golden import (
    FactorChange,
    Golden,
    GoldenFile,
    GoldenKey,
    advice,
    changes,
    drift,
    golden_key,
    golden_of,
    read_goldens,
    write_goldens,
    written,
)

NAME = __name__


class Colour(enum.Enum):
    RED = 1


@attrs.frozen
class Profile:
    zeta: int
    alpha: object = None


@config_class
class Inner:
    width: int = keyed(Stage.COMPILE, default=1, doc="Width.")


@config_class
class Outer:
    inner: Inner | None = keyed(Stage.COMPILE, doc="Inner.")
    zeta: int = keyed(Stage.COMPILE, default=1, doc="Zeta.")
    mode: str = keyed(Stage.CAPTURE, default="full", doc="Mode.")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        ((1 << 63) - 1, "9223372036854775807"),
        (1 << 63, "0x8000000000000000"),
        (1 - (1 << 63), "-9223372036854775807"),
        (-(1 << 63), "-0x8000000000000000"),
        (1.0, "1.0"),
        ("é\n", '"\\u00e9\\n"'),
        (b"\x00a", "x'0061'"),
        (Colour.RED, f"{NAME}.Colour.RED"),
        (EnumName("a.B", "RED"), "a.B.RED"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, "a"), '(1, "a")'),
        ([], "[]"),
        ([1, None], "[1, none]"),
        (set(), "set()"),
        (frozenset({"b", "a"}), 'set("a", "b")'),
        ({}, "{}"),
        ({"b": 1, "a": None}, '{"a": none, "b": 1}'),
        (Record("a.B", {}), "a.B()"),
        (Record("a.B", {"y": 1, "x": "z"}), 'a.B(x="z", y=1)'),
        (Profile(1), f"{NAME}.Profile(alpha=none, zeta=1)"),
        (DtypeName("torch.int8"), "torch.int8"),
    ],
)
def test_each_value_has_its_words(value, text):
    """In Python's order and quotes of JSON; members of sets, mappings and objects sorted."""
    assert written(value) == text


def test_a_dtype_is_written_alike_live_and_stored():
    """By its name, without quotes."""
    torch = pytest.importorskip("torch")
    assert written(torch.float16) == written(DtypeName("torch.float16")) == "torch.float16"


INNER = {"inner.width": "1", "inner:class": f'"{NAME}.Inner"'}
SMALL = {"class": f'"{NAME}.Outer"', **INNER, "zeta": "1"}
LARGE = {"class": f'"{NAME}.Outer"', **INNER, "mode": '"full"', "zeta": "1"}


def test_a_golden_has_each_factor_and_class_in_order():
    """Sorted by path, with the hash of the key and the config it came from."""
    section = Outer(inner=Inner())
    assert list(golden_key(section, Stage.COMPILE).text.items()) == list(SMALL.items())
    assert golden_key(section, Stage.CAPTURE) == GoldenKey(
        hash=compute_hash(section, Stage.CAPTURE), text=LARGE
    )
    golden = golden_of(section, {"a": 1})
    assert golden.config == {"a": 1}
    assert golden.keys == {stage: golden_key(section, stage) for stage in Stage}
    assert golden_of(section).config is None


def change(before, after):
    return str(FactorChange(path="a.b", before=before, after=after))


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (None, "1", "appeared  a.b: 1"),
        ("1", None, "vanished  a.b: 1"),
        ("1", "2", "changed   a.b: 1 -> 2"),
        (None, "y" * 121, "appeared  a.b: " + "y" * 120 + "..."),
        ("x" * 119 + "a", "x" * 119 + "b", f"changed   a.b: {'x' * 119}a -> {'x' * 119}b"),
        (
            "x" * 120 + "a",
            "x" * 120 + "b",
            f"changed   a.b: ...{'x' * 30}a -> ...{'x' * 30}b",
        ),
        (
            "x" * 31 + "a" + "y" * 89,
            "x" * 31 + "b" + "y" * 90,
            f"changed   a.b: ...{'x' * 30}a{'y' * 89} -> ...{'x' * 30}b{'y' * 89}...",
        ),
        (
            "x" * 30 + "a" + "y" * 90,
            "x" * 30 + "b",
            f"changed   a.b: {'x' * 30}a{'y' * 89}... -> {'x' * 30}b",
        ),
        ("x" * 150, "x" * 155, f"changed   a.b: ...{'x' * 30} -> ...{'x' * 35}"),
    ],
)
def test_a_change_is_one_line(before, after, line):
    """Up to 120 characters of each side, of a longer one from thirty before the first that differs."""
    assert change(before, after) == line


def key(hash_="0", **text):
    return GoldenKey(hash=hash_, text=text)


def test_changes_are_sorted_by_path():
    """Of both sides; what is the same is left out."""
    assert changes(key(b="1", a="1", same="0"), key(a="2", c="3", same="0")) == (
        FactorChange(path="a", before="1", after="2"),
        FactorChange(path="b", before="1", after=None),
        FactorChange(path="c", before=None, after="3"),
    )


def lines_of(before, after):
    one, other = (Golden(keys=dict(zip(Stage, keys, strict=True))) for keys in (before, after))
    return list(drift("prod", one, other))


COMPILE_CHANGED = "prod: the COMPILE key changed, c1 -> c2"
CAPTURE_CHANGED = "prod: the CAPTURE key changed, p1 -> p2"


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ((key("c1", a="1"), key("p1")), (key("c1", a="1"), key("p1")), []),
        (
            (key("c1", a="1"), key("p1", a="1")),
            (key("c2", a="2"), key("p2", a="2")),
            [
                COMPILE_CHANGED,
                "  changed   a: 1 -> 2",
                CAPTURE_CHANGED,
                "  by the same factors",
            ],
        ),
        (
            (key("c1", a="1"), key("p1", a="1", b="1")),
            (key("c2", a="2"), key("p2", a="2", b="2")),
            [
                COMPILE_CHANGED,
                "  changed   a: 1 -> 2",
                CAPTURE_CHANGED,
                "  changed   b: 1 -> 2",
            ],
        ),
        (
            (key("c1", a="1"), key("p1", a="1")),
            (key("c1", a="1"), key("p2", a="2")),
            [CAPTURE_CHANGED, "  changed   a: 1 -> 2"],
        ),
        (
            (key("c1", a="1"), key("p1", a="1")),
            (key("c2", a="1"), key("p2", a="1")),
            [
                COMPILE_CHANGED,
                "  no factor differs: the encoding of keys itself changed",
                CAPTURE_CHANGED,
                "  no factor differs: the encoding of keys itself changed",
            ],
        ),
        (
            (key("c1", a="1"), key("p1")),
            (key("c1", a="2"), key("p1")),
            [
                "prod: the text of the COMPILE key is not that of its hash: the file was edited by hand",
                "  changed   a: 1 -> 2",
            ],
        ),
    ],
    ids=["none", "both", "more", "capture", "encoding", "edited"],
)
def test_every_line_of_a_drift(before, after, lines):
    """What moves both keys is told once; a changed encoding and a file edited by hand are told as such."""
    assert lines_of(before, after) == lines


def test_the_advice_depends_on_the_epoch():
    """Of another epoch: lock anew. Of this one: undo it, or raise the epoch."""
    now = encoding.EPOCH
    assert advice(now - 1, "the command") == (
        f"the goldens are of epoch {now - 1} and keys are now of epoch {now}: lock anew with\n  the command"
    )
    assert advice(now, "the command") == (
        f"keys changed while the epoch stayed {now}. Not wanted: undo it. Wanted: raise graphspec.keys.encoding.EPOCH "
        "in the same commit (after a change of your own classes alone: remove the goldens instead), and lock anew "
        "with\n  the command"
    )


def test_the_file_to_the_letter(tmp_path, monkeypatch):
    """Each factor once; configs and checkpoints only where there are some. Read back, it is what was written."""
    monkeypatch.chdir(tmp_path)
    small, large = key("c1", a='" = "', b="1"), key("p1", a='" = "', b="1", c="\u00e9")
    apart = key("p2", a="2")
    file = GoldenFile(
        epoch=7,
        goldens={
            "one": Golden(keys={Stage.COMPILE: small, Stage.CAPTURE: large}, config={"m": [1]}),
            "two": Golden(keys={Stage.COMPILE: small, Stage.CAPTURE: apart}),
            "three": Golden(keys={Stage.COMPILE: small, Stage.CAPTURE: small}),
        },
        checkpoints={"model": {"layers": 2}},
    )
    write_goldens("goldens.json", file)
    compiled = {"hash": "c1", "text": ['a = " = "', "b = 1"]}
    data = {
        "format": 1,
        "epoch": 7,
        "checkpoints": {"model": {"layers": 2}},
        "specs": {
            "one": {
                "config": {"m": [1]},
                "compile": compiled,
                "capture": {"hash": "p1", "includes": "compile", "text": ["c = \u00e9"]},
            },
            "two": {"compile": compiled, "capture": {"hash": "p2", "text": ["a = 2"]}},
            "three": {
                "compile": compiled,
                "capture": {"hash": "c1", "includes": "compile", "text": []},
            },
        },
    }
    text = (tmp_path / "goldens.json").read_text()
    assert text == json.dumps(data, indent=1) + "\n"
    assert os.listdir(tmp_path) == ["goldens.json"]
    assert read_goldens("goldens.json") == file
    write_goldens("goldens.json", GoldenFile(epoch=1, goldens={}))
    assert (
        tmp_path / "goldens.json"
    ).read_text() == '{\n "format": 1,\n "epoch": 1,\n "specs": {}\n}\n'
    assert read_goldens("goldens.json") == GoldenFile(epoch=1, goldens={}, checkpoints={})


def test_what_is_read_is_sorted_whole_and_text(tmp_path):
    """Lines in any order; a factor that the small key has too counts as the small key says."""
    path = tmp_path / "goldens.json"
    specs = {
        "a": {
            "compile": {"hash": 5, "text": ["b = 1", "a = x = y", "empty"]},
            "capture": {"hash": "p", "text": ["c = 3", "b = 2"], "includes": "compile"},
        }
    }
    path.write_text(json.dumps({"format": 1, "epoch": 1, "specs": specs}))
    keys = read_goldens(str(path)).goldens["a"].keys
    assert keys[Stage.COMPILE].hash == "5"
    assert list(keys[Stage.COMPILE].text.items()) == [("a", "x = y"), ("b", "1"), ("empty", "")]
    assert list(keys[Stage.CAPTURE].text.items()) == [
        ("a", "x = y"),
        ("b", "1"),
        ("c", "3"),
        ("empty", ""),
    ]


def json_error(text):
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    return str(caught.value)


def checkpoint(name):
    return json.dumps({"format": 1, "epoch": 1, "specs": {}, "checkpoints": {name: {}}})


REFUSED = {
    "{": f"no readable goldens: {json_error('{')}",
    '{"format": 99, "epoch": 1}': "no readable goldens: layout 99 (an integer), epoch 1 (an integer)",
    '{"format": 1, "epoch": "1"}': "no readable goldens: layout 1 (an integer), epoch '1' (a string)",
    '{"format": 1, "epoch": true}': "no readable goldens: layout 1 (an integer), epoch true (a boolean)",
    '{"format": 1, "epoch": 1}': "JSON of another layout (KeyError: 'specs')",
    '{"epoch": 1, "specs": {}}': "JSON of another layout (KeyError: 'format')",
    '{"format": 1, "specs": {}}': "JSON of another layout (KeyError: 'epoch')",
    '{"format": 1, "epoch": 1, "specs": 3}': "JSON of another layout (AttributeError: 'int' object has no attribute "
    "'items')",
    '{"format": 1, "epoch": 1, "specs": {"a": {}}}': "JSON of another layout (KeyError: 'compile')",
    checkpoint(""): "no readable goldens: a checkpoint named '' (a string)",
    checkpoint("."): "no readable goldens: a checkpoint named '.' (a string)",
    checkpoint(".."): "no readable goldens: a checkpoint named '..' (a string)",
    checkpoint("a/b"): "no readable goldens: a checkpoint named 'a/b' (a string)",
    checkpoint("a\\b"): "no readable goldens: a checkpoint named 'a\\\\b' (a string)",
    checkpoint("a\0b"): "no readable goldens: a checkpoint named 'a\\x00b' (a string)",
}


@pytest.mark.parametrize(("text", "found"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_no_file_of_goldens_is_refused_whole(tmp_path, text, found):
    """The file, what is wrong with it, and how to make one."""
    path = str(tmp_path / "goldens.json")
    with open(path, "w") as file:
        file.write(text)
    assert refusal_of(path) == found


def refusal_of(path):
    with pytest.raises(SpecError) as caught:
        read_goldens(path)
    (problem,) = caught.value.problems
    assert problem == Problem(
        where=path,
        found=problem.found,
        wanted="goldens of layout 1",
        hint="write them with graphspec keys lock",
    )
    return problem.found


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """In the words of the system."""
    assert refusal_of(str(tmp_path / "none")) == "No such file or directory"
    assert refusal_of(str(tmp_path)) == "Is a directory"


def test_a_file_that_an_editor_has_marked_as_utf_8_is_read(tmp_path):
    """Whatever the locale says."""
    path = tmp_path / "goldens.json"
    path.write_bytes(b"\xef\xbb\xbf" + checkpoint("é").encode())
    assert list(read_goldens(str(path)).checkpoints) == ["é"]


def test_names_with_dots_are_names(tmp_path):
    """Only what leads elsewhere is refused."""
    path = tmp_path / "goldens.json"
    path.write_text(checkpoint("..."))
    assert read_goldens(str(path)).checkpoints == {"...": {}}


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path):
    """A folder in the file's place, and a file in its folder's."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    file = GoldenFile(epoch=1, goldens={})
    for path, why in (("folder", "Is a directory"), ("file/goldens.json", "File exists")):
        with pytest.raises(EnvironmentProblem) as caught:
            write_goldens(str(tmp_path / path), file)
        assert caught.value.problems == (
            Problem(
                where=str(tmp_path / path),
                found=f"not writable: {why}",
                wanted="a file to write to",
            ),
        )
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []


def test_a_class_is_no_name_of_a_field():
    """The class of the whole stands under its own name."""
    assert CLASS not in golden_key(Inner(), Stage.COMPILE).text
    assert golden_key(Inner(), Stage.COMPILE).text["class"] == f'"{NAME}.Inner"'
