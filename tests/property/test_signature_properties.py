"""Random signatures and random tensors: the check accepts what a plain reading of the signature accepts, call after call."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphspec.cache.loading.signature import Signature
from graphspec.errors import SignatureError

DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
NAMES = {"rows": (1, 4), "n": (0, 3), "one": (1, 1)}

dimensions = st.one_of(
    st.integers(0, 3), st.sampled_from([(name, *ends) for name, ends in NAMES.items()])
)
signatures = st.lists(
    st.fixed_dictionaries(
        {"dtype": st.sampled_from(DTYPES), "shape": st.lists(dimensions, max_size=3)}
    ),
    max_size=4,
).map(lambda inputs: [{"name": f"i{at}", **i} for at, i in enumerate(inputs)])


def accepted(inputs, signature):
    """The meaning of a signature, property by property, with nothing learned and nothing fast."""
    sizes = {}
    return len(inputs) == len(signature) and all(
        right(tensor, wanted, sizes) for tensor, wanted in zip(inputs, signature, strict=True)
    )


def right(tensor, wanted, sizes):
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or str(tensor.dtype) != f"torch.{wanted['dtype']}":
        return False
    if tensor.device.type != "cpu" or len(tensor.shape) != len(wanted["shape"]):
        return False
    for size, dim in zip(tensor.shape, wanted["shape"], strict=True):
        name, low, high = dim if isinstance(dim, tuple) else ("", dim, dim)
        if not low <= size <= high or (name and sizes.setdefault(name, size) != size):
            return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return False
    return tensor.numel() == 0 or (contiguous(tensor) and tensor.data_ptr() != 0)


def contiguous(tensor):
    """The elements lie one after the other: element number n, counted along the last dimension, is n places on."""
    places = [0]
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = [place + at * stride for place in places for at in range(size)]
    return places == list(range(tensor.numel()))


def loose(tensor):
    """Equal, with other strides in the dimensions of one element."""
    strides = [
        7 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def spread(tensor):
    """Equal, with a gap after each element of the last dimension."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2] if tensor.dim() else tensor


def padded(tensor):
    """Equal, with a gap after each row."""
    if not tensor.dim():
        return tensor
    wide = torch.cat([tensor, tensor, tensor], dim=-1)
    return wide[..., : tensor.shape[-1]]


def inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


def gradient(tensor):
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.clone().requires_grad_() if differentiable else tensor


def negated(tensor):
    """Equal, and a view of the negative: torch resolves it before a kernel sees it."""
    return torch._neg_view(-tensor) if tensor.is_floating_point() else tensor


def expanded(tensor):
    return tensor[:1].expand(tensor.shape) if tensor.dim() and len(tensor) else tensor


CHANGES = {
    "nothing": lambda t: t,
    "a copy": torch.clone,
    "a lazy copy": torch._lazy_clone,
    "the middle of another": lambda t: torch.cat([t.flatten(), t.flatten()])[t.numel() :].view(
        t.shape
    ),
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "an inference tensor": inference,
    "a gradient": gradient,
    "loose strides": loose,
    "gaps": spread,
    "padding": padded,
    "transposed": lambda t: t.transpose(0, -1) if t.dim() else t,
    "transposed and whole": lambda t: t.transpose(0, -1).contiguous() if t.dim() else t,
    "expanded": expanded,
    "one dimension more": lambda t: t[None],
    "one dimension less": lambda t: t.flatten(),
    "a row more": lambda t: torch.cat([t, t[:1]]) if t.dim() else t,
    "a row less": lambda t: t[1:] if t.dim() else t,
    "another type": lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64),
    "negated": negated,
    "conjugated": lambda t: t.conj(),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse() if t.dim() else t,
    "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "an array": lambda t: t.tolist(),
    "nothing at all": lambda t: None,
}
MODES = {
    "recording": contextlib.nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def right_inputs(signature, sizes):
    """Tensors of ones, as the signature wants them, for these sizes of its dynamic dimensions."""
    return [
        torch.ones([sizes[d[0]] if isinstance(d, tuple) else d for d in wanted["shape"]]).to(
            getattr(torch, wanted["dtype"])
        )
        for wanted in signature
    ]


@st.composite
def calls(draw, signature):
    """The inputs of one call: right ones, and changes to some."""
    sizes = {name: draw(st.integers(*ends), label=name) for name, ends in NAMES.items()}
    inputs = right_inputs(signature, sizes)
    places = st.lists(st.integers(0, len(inputs) - 1), max_size=2, unique=True)
    for at in draw(places) if inputs else ():
        inputs[at] = CHANGES[draw(st.sampled_from(sorted(CHANGES)))](inputs[at])
    if draw(st.integers(0, 9)) == 0:
        inputs = [*inputs, *inputs[:1]] if draw(st.booleans()) else inputs[1:]
    return inputs


@given(st.data())
def test_the_check_accepts_what_a_plain_reading_accepts(data):
    """Whatever earlier calls have taught it, each call is judged by the signature alone."""
    wanted = data.draw(signatures)
    signature = Signature("random", wanted, "cpu")
    if data.draw(st.booleans(), label="taught"):
        signature.check(right_inputs(wanted, {name: high for name, (_, high) in NAMES.items()}))
    for _ in range(data.draw(st.integers(1, 6))):
        inputs = data.draw(calls(wanted))
        with MODES[data.draw(st.sampled_from(sorted(MODES)))]():
            try:
                signature.check(inputs)
                found = True
            except SignatureError:
                found = False
            assert found == accepted(inputs, wanted)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@given(wanted=signatures.filter(bool), data=st.data())
@settings(max_examples=25)
def test_a_changed_input_is_judged_like_the_first(change, wanted, data):
    """After a right call, one input that is changed in one way is accepted exactly where a plain reading accepts it."""
    signature = Signature("random", wanted, "cpu")
    inputs = right_inputs(wanted, {name: high for name, (_, high) in NAMES.items()})
    signature.check(inputs)
    at = data.draw(st.integers(0, len(inputs) - 1))
    inputs[at] = change(inputs[at])
    try:
        signature.check(inputs)
        found = True
    except SignatureError:
        found = False
    assert found == accepted(inputs, wanted)
