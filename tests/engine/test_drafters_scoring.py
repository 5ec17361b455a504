"""A quantised draft head holds exactly what its format can hold, and nothing else differs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphspec.config.speculative import HeadQuantization
from graphspec.engine.drafters.scoring import (
    e2m1_numbers,
    from_nvfp4,
    nearest_e2m1,
    scorer,
    to_fp8,
    to_nvfp4,
)
from graphspec.errors import SpecError
from support.drafters import Stage, engine_spec, play

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
WEIGHT = torch.randn((40, 32), generator=torch.Generator().manual_seed(1)) * 0.1
NUMBERS = e2m1_numbers("cpu")
HIDDEN = torch.randn((5, 32), generator=torch.Generator().manual_seed(2))


@given(st.floats(0, 10, width=32))
def test_e2m1_codes_are_the_nearest_with_ties_to_even(x):
    """Each number goes to the closest that four bits can hold; halfway, to the even code; beyond the largest, to it."""
    code = int(nearest_e2m1(torch.tensor([x])))
    distances = [abs(v - x) for v in E2M1]
    nearest = [c for c, d in enumerate(distances) if d == min(distances)]
    assert code == (nearest[0] if len(nearest) == 1 else next(c for c in nearest if c % 2 == 0))


def test_fp8_has_one_scale_a_row_and_one_a_token():
    """Rows of very different size keep their relative precision, weights and activations alike."""
    weight = WEIGHT * torch.logspace(-6, 3, 40)[:, None]
    hidden = HIDDEN * torch.logspace(-3, 3, 5)[:, None]
    exact = hidden.double() @ weight.double().t()
    got = scorer(weight, HeadQuantization.FP8).logits(hidden).double()
    # e4m3 keeps three bits: a relative error of 1/16 each, and sums of 32 average them.
    size = hidden.double().norm(dim=-1)[:, None] * weight.double().norm(dim=-1)
    assert ((got - exact).abs() / size).max() < 1 / 16
    narrow, scale = to_fp8(weight)
    assert narrow.dtype is torch.float8_e4m3fn
    assert narrow.float().abs().amax(-1).tolist() == [448.0] * 40
    assert torch.equal(narrow.float(), (weight / scale[:, None]).to(torch.float8_e4m3fn).float())


def test_nvfp4_weights_are_code_times_block_scale_times_whole_scale():
    """Sixteen weights share an e4m3 scale; each lies as near to its own as the format allows."""
    codes, scales, whole = to_nvfp4(WEIGHT)
    assert codes.max() < 16
    assert scales.shape == (40, 2)
    assert scales.dtype is torch.float8_e4m3fn
    assert scales.float().max() == 448.0
    wide = from_nvfp4(codes, scales, whole, NUMBERS).unflatten(-1, (-1, 16))
    unit = (scales.float() * whole)[..., None]
    values = torch.tensor(E2M1)
    held = torch.cat((values, -values)) * unit[..., None]
    best = (WEIGHT.unflatten(-1, (-1, 16))[..., None] - held).abs().amin(-1)
    assert torch.allclose((WEIGHT.unflatten(-1, (-1, 16)) - wide).abs(), best, atol=1e-7)


def test_weights_that_the_format_can_hold_are_kept_to_the_bit():
    """A head of zeros, and one made of the format's own numbers, come out as they went in."""
    zeros = torch.zeros(3, 16)
    assert torch.equal(from_nvfp4(*to_nvfp4(zeros), NUMBERS), zeros)
    logits = scorer(zeros, HeadQuantization.FP8).logits(HIDDEN[:, :16])
    assert torch.equal(logits, torch.zeros(5, 3))
    codes = torch.arange(64, dtype=torch.uint8).view(2, 32) % 16
    codes[codes == 8] = 0  # the format has a negative zero, and a sum cannot tell
    scales = torch.tensor([[448.0, 1.5], [0.25, 26.0]]).to(torch.float8_e4m3fn)
    held = from_nvfp4(codes, scales, torch.tensor(2.0**-12), NUMBERS)
    again = to_nvfp4(held)
    assert torch.equal(again[0], codes)
    assert torch.equal(again[1].float(), scales.float())
    assert torch.equal(from_nvfp4(*again, NUMBERS), held)


def test_nvfp4_leaves_activations_as_they_are():
    """Only weights are narrow: the logits are those of the weights that the codes stand for."""
    got = scorer(WEIGHT, HeadQuantization.NVFP4).logits(HIDDEN)
    assert torch.allclose(got, HIDDEN @ from_nvfp4(*to_nvfp4(WEIGHT), NUMBERS).t(), atol=1e-6)


def test_a_width_that_blocks_do_not_divide_is_refused():
    """The message names the option, the width, and another that takes it."""
    with pytest.raises(SpecError, match="nvfp4 for a head over 24 hidden dimensions"):
        scorer(torch.zeros(4, 24), HeadQuantization.NVFP4)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp"])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_a_drafter_with_a_quantised_head_leaves_the_targets_alone(tmp_path, name, kind):
    """The drafter scores with its own copy; the target's head is the same tensor with the same content."""
    plain = Stage(engine_spec(tmp_path, name), seed=1)
    quantised = Stage(engine_spec(tmp_path, name, draft_lm_head_quantization=kind), seed=1)
    play(quantised, 8)
    assert quantised.compared > 0
    mine, theirs = quantised.drafter.static_tensors(), plain.drafter.static_tensors()
    assert mine["head"].dtype in (torch.float8_e4m3fn, torch.uint8)
    assert torch.equal(mine["embedding"], theirs["embedding"])
