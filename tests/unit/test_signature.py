"""Signatures: what a library would crash on or misread is an error that names the input; what it reads right is accepted."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphspec.cache.loading.signature import Signature
from graphspec.errors import SignatureError

ROWS = ("rows", 1, 16)
UNIT = [
    {"name": "x", "dtype": "float32", "shape": [ROWS, 8]},
    {"name": "positions", "dtype": "int64", "shape": [ROWS]},
    {"name": "w", "dtype": "float32", "shape": [4, 8]},
    {"name": "scale", "dtype": "float32", "shape": []},
]


def unit():
    return Signature("toy", UNIT, "cpu")


def good(rows=3):
    return [torch.ones(rows, 8), torch.arange(rows), torch.ones(4, 8), torch.tensor(2.0)]


def one(shape, dtype="float32"):
    return Signature("toy", [{"name": "x", "dtype": dtype, "shape": shape}], "cpu")


def counted(signature, monkeypatch):
    """How often the signature looks at its inputs one after the other."""
    seen, plain = [], signature._examine
    monkeypatch.setattr(signature, "_examine", lambda inputs: seen.append(plain(inputs)))
    return seen


class Named(torch.Tensor):
    """A subclass that changes nothing of what its tensor is."""


def nested():
    return torch.nested.nested_tensor([torch.ones(8), torch.ones(3)])


def inside_vmap():
    seen = []
    torch.vmap(lambda t: (seen.append(t), t)[1])(torch.ones(2, 3, 8))
    return seen[0]


UNUSUAL = {
    "an array": (lambda: np.ones((3, 8), dtype=np.float32), "a value of type ndarray"),
    "nothing": (lambda: None, "a value of type NoneType"),
    "a number": (lambda: 3, "a value of type int"),
    "a list": (lambda: [1.0], "a value of type list"),
    "a class": (lambda: torch.Tensor, "a value of type _TensorMeta"),
    "double": (
        lambda: torch.ones(3, 8).double(),
        r"a torch.float64 tensor on cpu of shape \(3, 8\)",
    ),
    "transposed": (lambda: torch.ones(8, 3).t(), r".* of shape \(3, 8\) with strides \(1, 3\)"),
    "every second": (lambda: torch.ones(6, 8)[::2], r".* with strides \(16, 1\)"),
    "expanded": (lambda: torch.ones(1, 8).expand(3, 8), r".* with strides \(0, 1\)"),
    "one element for all": (lambda: torch.ones(()).expand(3, 8), r".* with strides \(0, 0\)"),
    "one dimension more": (lambda: torch.ones(1, 3, 8), r".* of shape \(1, 3, 8\)"),
    "a row": (lambda: torch.ones(8), r".* of shape \(8,\)"),
    "a scalar": (lambda: torch.tensor(1.0), r".* of shape \(\)"),
    "no rows": (lambda: torch.ones(0, 8), r".* of shape \(0, 8\)"),
    "too many rows": (lambda: torch.ones(17, 8), r".* of shape \(17, 8\)"),
    "narrow": (lambda: torch.ones(3, 7), r".* of shape \(3, 7\)"),
    "meta": (lambda: torch.ones(3, 8, device="meta"), ".* tensor on meta"),
    "sparse": (lambda: torch.ones(3, 8).to_sparse(), "a sparse_coo torch.float32 tensor on cpu"),
    "sparse rows": (lambda: torch.ones(3, 8).to_sparse_csr(), "a sparse_csr torch.float32 tensor"),
    "mkldnn": (lambda: torch.ones(3, 8).to_mkldnn(), "a _mkldnn torch.float32 tensor"),
    "nested": (nested, "a nested torch.float32 tensor on cpu"),
    "without memory": (lambda: torch._efficientzerotensor((3, 8)), ".* without memory of its own"),
    "fake": (
        lambda: FakeTensorMode().from_tensor(torch.ones(3, 8)),
        "a torch.float32 FakeTensor on cpu .* without memory of its own",
    ),
    "functional": (
        lambda: torch._to_functional_tensor(torch.ones(3, 8)),
        ".* without memory of its own",
    ),
    "inside vmap": (inside_vmap, ".* without memory of its own"),
    "with a gradient": (
        lambda: torch.ones(3, 8, requires_grad=True),
        ".* that requires a gradient",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("known", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize(("make", "found"), UNUSUAL.values(), ids=UNUSUAL)
def test_what_a_library_would_misread_is_refused_by_name(make, found, known):
    """The error names the input, what it is and what it should be, before and after right inputs are known."""
    signature = unit()
    if known:
        signature.check(good())
    with pytest.raises(SignatureError, match=f"input x: found {found}") as caught:
        signature.check([make(), *good()[1:]])
    (problem,) = caught.value.problems
    assert problem.where == "unit toy: input x"
    assert (
        problem.wanted == "a contiguous torch.float32 tensor on cpu of shape (rows from 1 to 16, 8)"
    )


WEIGHTS = {
    "a row more": lambda: torch.ones(5, 8),
    "a row less": lambda: torch.ones(3, 8),
    "wider": lambda: torch.ones(4, 9),
    "transposed": lambda: torch.ones(8, 4).t(),
    "half": lambda: torch.ones(4, 8).half(),
    "nested": nested,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS)
def test_another_weight_is_refused_after_the_right_one(make):
    """An input without a dynamic dimension is compared as exactly at later calls."""
    signature = unit()
    for _ in range(2):
        signature.check(good())
        x, positions, _, scale = good()
        with pytest.raises(SignatureError, match="unit toy: input w: "):
            signature.check([x, positions, make(), scale])


def test_a_freed_tensor_is_refused_where_it_is_examined():
    """Whoever frees the storage of the first weights learns of it. Like all operators of torch, later calls do not look."""
    tensor = torch.ones(3, 8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(
        SignatureError, match=r"input x: .* without memory of its own[^\n]*\n.*freed"
    ):
        unit().check([tensor, *good()[1:]])


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_inputs_is_refused(count):
    """A call with too few or too many inputs names both numbers, before and after right inputs are known."""
    signature = unit()
    for _ in range(2):
        with pytest.raises(
            SignatureError, match=f"unit toy: the call: found {count} inputs; wanted 4"
        ):
            signature.check([*good(), torch.ones(1)][:count])
        signature.check(good())


def test_sizes_of_one_name_must_agree():
    """A dynamic dimension has one size in a call, and the error says which input set it."""
    signature = unit()
    for _ in range(2):
        inputs = [*good(3)[:1], *good(4)[1:]]
        with pytest.raises(SignatureError, match=r"input positions.*\(rows=3 as in input x\)"):
            signature.check(inputs)
        signature.check(good())


def test_a_dimension_twice_in_one_input_must_agree():
    """A square input must be square."""
    signature = one([("n", 1, 4), ("n", 1, 4)])
    signature.check([torch.ones(2, 2)])
    with pytest.raises(SignatureError, match=r"\(n from 1 to 4, n from 1 to 4\)"):
        signature.check([torch.ones(2, 3)])


def test_a_layout_that_follows_from_a_size_is_checked_at_each_call():
    """Where the step from one row to the next depends on a dynamic dimension, it must be that of whole rows."""
    signature = one([3, ("n", 1, 8)])
    for size in (4, 8, 1):
        signature.check([torch.ones(3, size)])
        for loose in (torch.ones(3, 9)[:, :size], torch.ones(1, size).expand(3, size)):
            with pytest.raises(SignatureError, match=r"input x: .* with strides"):
                signature.check([loose])


def test_a_name_with_two_ranges_has_the_sizes_of_both():
    """Where two inputs state other ranges for one name, only sizes in both ranges pass."""
    inputs = [
        {"name": n, "dtype": "float32", "shape": [("n", low, 4 + low)]}
        for n, low in (("a", 1), ("b", 3))
    ]
    signature = Signature("toy", inputs, "cpu")
    signature.check([torch.ones(3), torch.ones(3)])
    for size, name in ((2, "b"), (6, "a")):
        with pytest.raises(SignatureError, match=f"input {name}"):
            signature.check([torch.ones(size), torch.ones(size)])


RIGHT = {
    "whole": lambda: torch.ones(3, 8),
    "rows from the middle": lambda: torch.ones(9, 8)[4:7],
    "an odd address": lambda: torch.ones(25)[1:].view(3, 8),
    "one row with any stride": lambda: torch.ones(5, 24).as_strided((1, 8), (3, 1)),
    "one row, expanded": lambda: torch.ones(8).expand(1, 8),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3, 8), requires_grad=False),
    "a subclass": lambda: torch.ones(3, 8).as_subclass(Named),
    "detached": lambda: torch.ones(3, 8, requires_grad=True).detach(),
    "a lazy copy": lambda: torch._lazy_clone(torch.ones(3, 8)),
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_what_a_library_reads_right_is_accepted(make):
    """Addresses, strides of single rows and kinds of tensors make no difference to a library."""
    signature = unit()
    for _ in range(2):
        x = make()
        signature.check([x, *good(len(x))[1:]])


@pytest.mark.parametrize("shape", [[0, 8], [("rows", 0, 4), 8], [8, ("rows", 0, 4)]])
def test_an_input_without_elements_is_accepted_where_it_is_declared(shape):
    """No elements, no address, any strides: there is nothing to misread."""
    signature = one(shape)
    sizes = [0 if isinstance(s, tuple) else s for s in shape]
    for tensor in (torch.ones(sizes), torch.ones(9, 9)[: sizes[0], : sizes[1]].clone()):
        signature.check([tensor])
        signature.check([tensor])


def test_gradients_are_refused_only_where_they_would_be_lost():
    """Parameters pass where no gradient is recorded. Elsewhere the result would have none, without a word."""
    signature = unit()
    inputs = [torch.nn.Parameter(t) if t.is_floating_point() else t for t in good()]
    for _ in range(2):
        with torch.no_grad():
            signature.check(inputs)
        with torch.inference_mode():
            signature.check(inputs)
        with pytest.raises(
            SignatureError, match=r"requires a gradient[^;]*; wanted[^\n]*\n.*no_grad"
        ):
            signature.check(inputs)


def test_known_inputs_are_not_examined_again(monkeypatch):
    """After one call of a kind, others of any allowed size cost no look at each input."""
    signature = unit()
    examined = counted(signature, monkeypatch)
    for rows in (3, 1, 16, 3):
        signature.check(good(rows))
    assert len(examined) == 1
    weights = [torch.nn.Parameter(t, requires_grad=False) for t in good()[2:]]
    for rows in (2, 5):
        signature.check([*good(rows)[:2], *weights])
    with torch.inference_mode():
        for rows in (2, 5):
            signature.check(good(rows))
            signature.check([*good(rows)[:2], *weights])
    assert len(examined) == 4


def test_one_tensor_may_be_two_inputs():
    """Torch's guards take only distinct tensors; the examination takes them all."""
    pair = [{"name": n, "dtype": "float32", "shape": [4]} for n in ("a", "b")]
    signature, x = Signature("toy", pair, "cpu"), torch.ones(4)
    for _ in range(2):
        signature.check([x, torch.ones(4)])
        signature.check([x, x])


def test_no_more_than_a_few_kinds_are_learned(monkeypatch):
    """Inputs that the guards will never know do not cost a new guard at each call."""
    signature, made = one([("rows", 1, 4), 8]), []
    guards = torch._C._dynamo.guards
    real = guards.TensorGuards
    monkeypatch.setattr(
        guards, "TensorGuards", lambda *inputs, **rest: made.append(1) or real(*inputs, **rest)
    )
    row = torch.ones(24).as_strided((1, 8), (3, 1))
    for _ in range(20):
        signature.check([row])
    assert len(made) == 4
    assert signature._guards == []


def test_a_torch_without_the_guards_accepts_and_refuses_the_same(monkeypatch):
    """The guards are not a public part of torch: without them each call is examined."""
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    signature = unit()
    examined = counted(signature, monkeypatch)
    for rows in (3, 16):
        signature.check(good(rows))
    with pytest.raises(SignatureError, match="input w"):
        signature.check([*good()[:2], torch.ones(8, 4).t(), good()[3]])
    assert len(examined) == 2


def test_guards_that_want_other_arguments_are_not_used(monkeypatch):
    """A torch that changed how the guards are made costs speed, not the check."""
    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", lambda *inputs: None)
    signature = unit()
    signature.check(good())
    assert signature._guards == []


def test_a_signature_without_inputs_takes_none():
    """A unit of constants is called with nothing."""
    signature = Signature("toy", [], "cpu")
    signature.check([])
    signature.check(())
    with pytest.raises(SignatureError, match="1 inputs; wanted 0 inputs"):
        signature.check([torch.ones(1)])


def test_it_holds_none_of_the_inputs_it_learned_from():
    """Learning from a call keeps none of its memory alive."""
    import weakref

    signature, inputs = unit(), good()
    signature.check(inputs)
    gone = [weakref.ref(t) for t in inputs]
    assert len(signature._guards) == 1
    del inputs
    assert [ref() for ref in gone] == [None] * 4


def test_a_gpu_is_the_current_one(monkeypatch):
    """A library for a GPU is loaded for one of them, and another's memory is not its own."""
    import graphspec.cache.loading.signature as module

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert module._resolved("cuda") == torch.device("cuda", 1)
    assert module._resolved("cuda:0") == torch.device("cuda", 0)
    assert module._resolved("cpu") == torch.device("cpu")
