"""A head's checkpoint is read whole or refused: every tensor that is not as it should be is told at once."""

import pytest
import torch
from safetensors.torch import save_file

from graphspec.engine.drafters.head_weights import HeadReader
from graphspec.engine.drafters.making import make_drafter
from graphspec.errors import EnvironmentProblem
from support.drafters import HEADS, context_of, engine_spec


@pytest.fixture
def head(tmp_path):
    """The contract of an engine with an EAGLE head, and the head's folder."""
    return engine_spec(tmp_path, "eagle"), tmp_path / "head"


def refused(spec):
    with pytest.raises(EnvironmentProblem) as caught:
        make_drafter(context_of(spec))
    return caught.value


def test_all_that_is_wrong_is_told_at_once(head):
    """An absent tensor, another shape, another kind: one error, each with its name, found and wanted."""
    spec, folder = head
    layer = "layers.0.self_attn."
    save_file(
        {
            "fc.weight": torch.zeros(32, 63),
            layer + "q_proj.weight": torch.zeros(32, 32, dtype=torch.int8),
            layer + "k_proj.weight": torch.zeros(16, 32, dtype=torch.bfloat16),
        },
        folder / "model.safetensors",
    )
    error = refused(spec)
    text = str(error)
    assert "tensor fc.weight: found shape (32, 63); wanted shape (32, 64)" in text
    assert f"tensor {layer}q_proj.weight: found type I8; wanted one of F64, F32" in text
    assert f"no tensor {layer}v_proj.weight; wanted one of shape (16, 32)" in text
    # fc, q, v, o, the MLP's norm and its three matrices; k is good.
    assert len(error.problems) == 8


@pytest.mark.parametrize("name", [n for n in HEADS if "multi" not in n])
def test_every_kind_of_head_tells_all_of_its_tensors(tmp_path, name):
    """A checkpoint of something else: more than one problem, and no traceback of a tensor that is not there."""
    spec = engine_spec(tmp_path, name)
    save_file({"other": torch.zeros(1)}, tmp_path / "head" / "model.safetensors")
    found = [p.found for p in refused(spec).problems]
    assert len(found) > 5
    assert len(set(found)) == len(found)


def test_names_below_another_prefix_are_shown(head):
    """The commonest reason why all is absent."""
    spec, folder = head
    save_file({"model.fc.weight": torch.zeros(32, 64)}, folder / "model.safetensors")
    assert "there is model.fc.weight: rename" in str(refused(spec))


@pytest.mark.parametrize("file", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_pickled_weights_are_refused(head, file):
    """They are not read, and noise in their place would look like a bad head."""
    spec, folder = head
    (folder / file).write_bytes(b"\x80\x02")
    text = str(refused(spec))
    assert f"weights in {file}, a pickle" in text
    assert "save_file" in text


def test_a_damaged_file_is_named(head):
    """Half a file."""
    spec, folder = head
    save_file({"fc.weight": torch.zeros(32, 64)}, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors: found no readable safetensors file" in str(refused(spec))


def test_a_reduced_vocabulary_needs_a_head_of_its_own(tmp_path):
    """The target's rows are other tokens: drafts scored by them would be noise, or past the table's end."""
    spec = engine_spec(tmp_path, "eagle3", options={"draft_vocab_size": 24})
    save_file({"fc.weight": torch.zeros(32, 96)}, tmp_path / "head" / "model.safetensors")
    text = str(refused(spec))
    assert "no tensor lm_head.weight; wanted one of shape (24, 32)" in text
    assert "no tensor d2t; wanted one of shape (24,)" in text


def test_a_table_of_ids_must_be_whole_numbers(tmp_path):
    """Floats would be cut off without a word."""
    spec = engine_spec(tmp_path, "eagle3", options={"draft_vocab_size": 24})
    save_file({"d2t": torch.zeros(24)}, tmp_path / "head" / "model.safetensors")
    assert "tensor d2t: found type F32; wanted one of I64" in str(refused(spec))


def test_outside_of_a_with_the_first_problem_is_raised(head):
    """Whoever forgets to gather gets no zeros for weights."""
    spec, folder = head
    save_file({"other": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(EnvironmentProblem, match="no tensor fc"):
        HeadReader(context_of(spec))("fc.weight", 32, 64)


def test_an_error_of_another_kind_is_not_hidden(head):
    """What went wrong while problems were gathered comes through as it is."""
    spec, folder = head
    save_file({"other": torch.zeros(1)}, folder / "model.safetensors")

    def fails():
        with HeadReader(context_of(spec)) as read:
            read("fc.weight", 32, 64)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
