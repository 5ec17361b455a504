"""Keys of Dynamo's graphs: another for whatever changes the code, the same for what does not, none for what has no key."""

import contextlib
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphspec.cache.compiling import toolchain
from graphspec.cache.dynamo import key as dynamo_key
from graphspec.cache.dynamo.graph import NotStorableError, Source
from graphspec.cache.dynamo.key import graph_factors, graph_key
from graphspec.cache.dynamo.load import lift_for_inference
from graphspec.config.device import CpuIsa
from support.dynamo_graphs import (
    WIDTH,
    Halved,
    block,
    graph_of,
    graphs_of,
    halve,
    rows_summed,
)
from support.processes import run_python


@pytest.fixture(autouse=True)
def for_inference():
    """Without gradients, as the backend stores graphs; and nothing that one test compiled is left for the next."""
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def x(rows=4, width=WIDTH, **kind):
    return torch.ones(rows, width, **kind)


def usual():
    return graph_of(block(), x())


def with_constant_from_buffer(number):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.tensor(number))
            self.baked = float(self.shift)

        def forward(self, x):
            return x + self.baked

    return graph_of(Shifted(), x())


def marked(highest):
    given = x(8)
    torch._dynamo.mark_dynamic(given, 0, min=2, max=highest)
    return graph_of(block(), given, dynamic=None)


def sliced(rows):
    return graph_of(lambda x: x[:rows].sum(), x(6))


def held(values):
    return graph_of(lambda x: x + torch.tensor(values), x(4, 3))


def under(context, *, of=usual):
    with context:
        return of()


def halved_where_even(x):
    return x.reshape(-1, 2) if x.shape[0] % 2 == 0 else x


OTHERS = {
    "constant": lambda: graph_of(block(scale=0.25), x()),
    "eps": lambda: graph_of(block(eps=1e-6), x()),
    "sign of zero": lambda: graph_of(block(scale=-0.0), x()),
    "zero": lambda: graph_of(block(scale=0.0), x()),
    "dtype": lambda: graph_of(block().double(), x(dtype=torch.float64)),
    "dtype of an input": lambda: graph_of(lambda x: x + 1, x(dtype=torch.float64)),
    "shape": lambda: graph_of(block(), x(5)),
    "rank": lambda: graph_of(block(), x()[None]),
    "stride": lambda: graph_of(block(), x(WIDTH, 4).t()),
    "stride with gaps": lambda: graph_of(block(), x(4, 2 * WIDTH)[:, ::2]),
    "dropout that is on": lambda: graph_of(block().train(), x()),
    "dynamic rows": lambda: graph_of(block(), x(), dynamic=True),
    "rows up to 64": lambda: marked(64),
    "rows up to 32": lambda: marked(32),
    "weights with gradients": lambda: graph_of(block().requires_grad_(False), x()),
    "autocast": lambda: under(torch.autocast("cpu", dtype=torch.bfloat16)),
    "autocast to half": lambda: under(torch.autocast("cpu", dtype=torch.float16)),
    "a buffer's value in the code": lambda: with_constant_from_buffer(2.0),
    "another value of the buffer": lambda: with_constant_from_buffer(3.0),
    "a slice": lambda: sliced(2),
    "another slice": lambda: sliced(3),
    "a constant tensor": lambda: held([1.0, 2.0, 3.0]),
    "another constant tensor": lambda: held([1.0, 2.0, 4.0]),
    "whole numbers in it": lambda: held([1, 2, 3]),
    "operation": lambda: graph_of(torch.tanh, x()),
    "order": lambda: graph_of(lambda x, y: 2 * x - y, x(), x()),
    "other order": lambda: graph_of(lambda x, y: y - 2 * x, x(), x()),
    "an output less": lambda: graph_of(lambda x, y: (x - y, x + y), x(), x()),
    "outputs exchanged": lambda: graph_of(lambda x, y: (x + y, x - y), x(), x()),
    "size by size": lambda: graph_of(lambda x: x.reshape(-1, 2), x(), dynamic=True),
    "known to be even": lambda: graph_of(halved_where_even, x(), dynamic=True),
    "written input": lambda: graph_of(lambda x: x.add_(1), x()),
    "mode of attention": lambda: graph_of(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), x()[None, None]
    ),
    "without mask": lambda: graph_of(
        lambda q: F.scaled_dot_product_attention(q, q, q), x()[None, None]
    ),
}


def test_whatever_changes_code_changes_the_key():
    """Models that differ from one another in one thing each, down to a constant or a bound, have as many keys."""
    keys = {"usual": usual().key.digest, **{n: other().key.digest for n, other in OTHERS.items()}}
    same = {(a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]}
    assert same == set()


def renamed():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
            self.register_buffer("c", torch.zeros(WIDTH))

        def forward(self, value):
            first = self.a(self.b(value))
            second = torch.relu(first * 0.5 + self.c)
            return value + F.dropout(second, 0.25, self.training, False)

    return graph_of(Other().eval(), x())


def test_names_and_weights_do_not_show():
    """Other weights, another buffer, other names of classes, modules and variables: one key."""
    assert usual().key == graph_of(block(seed=7), x()).key == renamed().key
    changed = block()
    changed.shift += 1
    assert graph_of(changed, x()).key == usual().key


def test_inference_mode_and_no_grad_share_a_library():
    """Which of the two keeps autograd out makes no other code."""
    without = usual().key
    with torch.inference_mode():
        assert usual().key == without


def test_another_number_of_rows_is_no_other_dynamic_graph():
    """The size of the call that a dynamic graph was traced for is not in its key."""
    assert graph_of(block(), x(4), dynamic=True).key == graph_of(block(), x(6), dynamic=True).key


@pytest.mark.deep
def test_a_key_is_the_same_in_another_process(tmp_path):
    """Another hash seed and another folder give the very key text."""
    printed = run_python(
        """
        import torch
        from support.dynamo_graphs import block, graph_of
        with torch.no_grad():
            print(graph_of(block(), torch.ones(4, 8)).key.text.hex())
            print(graph_of(block(), torch.ones(4, 8), dynamic=True).key.text.hex())
        """,
        PYTHONHASHSEED="12345",
        HOME=str(tmp_path),
    )
    dynamic = graph_of(block(), x(), dynamic=True)
    assert printed.split() == [k.text.hex() for k in (usual().key, dynamic.key)]


SWITCHED = {
    "default dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic operators": (torch.use_deterministic_algorithms, True, False),
    "precision of matmul": (torch.set_float32_matmul_precision, "medium", "highest"),
}


@pytest.mark.parametrize(("switch", "value", "back"), SWITCHED.values(), ids=SWITCHED)
def test_switches_of_torch_are_in_the_key(switch, value, back):
    """A switch that changes what operators do changes the key of a graph that does not show it."""
    before = usual().lifted
    key = graph_key(graph_factors(before))
    switch(value)
    try:
        assert graph_key(graph_factors(before)) != key
    finally:
        switch(back)
    assert graph_key(graph_factors(before)) == key


def test_settings_of_the_trace_are_in_the_key():
    """A changed setting of functorch or of symbolic shapes changes the key."""
    from torch._functorch import config as functorch
    from torch.fx.experimental import _config as symbolic

    lifted = usual().lifted
    usual_key = graph_key(graph_factors(lifted))
    with functorch.patch(functionalize_rng_ops=True):
        assert graph_key(graph_factors(lifted)) != usual_key
    with symbolic.patch(use_duck_shape=False):
        assert graph_key(graph_factors(lifted)) != usual_key


def test_a_setting_that_was_changed_and_set_back_is_no_change():
    """Whoever patches a setting leaves it set: compiling with inductor does so. Every setting in turn."""
    from torch._functorch import config as functorch
    from torch.fx.experimental import _config as symbolic

    lifted = usual().lifted
    usual_key, changed = graph_key(graph_factors(lifted)), 0
    for module in (functorch, symbolic):
        for name in sorted(module._config):
            value = getattr(module, name)
            if type(value) is not bool:
                continue
            with module.patch({name: not value}):
                changed += graph_key(graph_factors(lifted)) != usual_key
            assert graph_key(graph_factors(lifted)) == usual_key, name
    assert changed > 20


def test_settings_of_inductor_are_not_in_the_key():
    """The compiler's process does not see them, so they change nothing."""
    from torch._inductor import config as inductor

    lifted = usual().lifted
    before = graph_key(graph_factors(lifted))
    with inductor.patch({"max_autotune": True, "cpp.simdlen": 256}):
        assert graph_key(graph_factors(lifted)) == before


def test_toolchain_device_and_options_are_in_the_key(monkeypatch):
    """Another torch, another processor, another option, another pipeline or a variable: another key each."""
    lifted = usual().lifted
    keys = [graph_key(graph_factors(lifted)), graph_key(graph_factors(lifted), variant=1)]
    keys.append(graph_key(graph_factors(lifted, CpuIsa.X86_64_V3)))
    for target, name, value in (
        (torch.version, "git_version", "another"),
        (dynamo_key, "GRAPH_EPOCH", 99),
        (toolchain, "_ALWAYS", {**toolchain._ALWAYS, "max_autotune": True}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, value)
            keys.append(graph_key(graph_factors(lifted)))
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    keys.append(graph_key(graph_factors(lifted)))
    assert len({k.digest for k in keys}) == len(keys)


def test_a_number_of_the_callers_is_an_input_by_its_size():
    """A dynamic Python number becomes the rows of a tensor without elements, and two is the least: other code is for less."""
    graph = graph_of(rows_summed, x(), 5, dynamic=True)
    assert "%1 = rows -> float32[d2, 0] strides (1, 1) from 0 on cpu" in graph.text
    assert "given d2 >= 2" in graph.text


def test_what_is_decided_by_a_size_is_in_the_key():
    """What Dynamo knows of sizes stands in the text, because a trace may rely on it."""
    graph = graph_of(halved_where_even, x(), dynamic=True)
    assert "given Eq(Mod(d0, 2), 0)" in graph.text


def test_outputs_that_are_no_tensors_are_no_matter_of_the_library():
    """Sizes, inputs and constants are given back from the call itself, as what they are."""
    lifted = graph_of(rows_summed, x(), 5, dynamic=True).lifted
    assert [(o.source, o.value) for o in lifted.outputs] == [
        (Source.LIBRARY, 0),
        (Source.LIBRARY, 1),
        (Source.NUMBER, ["sum", 1, ["product", 2, ["size", 0]]]),
    ]


def test_floats_are_constants_until_they_vary():
    """Two values of a Python number are worth a library each. A third one is left to inductor, which passes it."""
    keys = []

    def backend(gm, arguments):
        try:
            keys.append(graph_key(graph_factors(lift_for_inference(gm, arguments))))
        except NotStorableError as error:
            keys.append(str(error))
        return gm.forward

    compiled = torch.compile(lambda x, scale: x * scale, backend=backend)
    for scale in (0.5, 0.25, 0.125, 0.0625):
        assert torch.equal(compiled(x(), scale), x() * scale)
    assert len(set(keys[:3])) == 3
    assert keys[3:] == ["a Python number that varies: L['scale']"]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


def with_gradients_inside(x, weight):
    with torch.enable_grad():
        return (x @ weight).sum()


def known_to_dynamo(x):
    return x * 3


torch._dynamo.allow_in_graph(known_to_dynamo)


@torch.library.custom_op("support::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@thrice.register_fake
def _(x):
    return torch.empty_like(x)


def leaf():
    return torch.ones(WIDTH, WIDTH, requires_grad=True)


capture = torch._dynamo.config.patch(
    capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
)
REFUSED = {
    "training": (torch.enable_grad(), lambda: (block(), x()), "gradients are wanted"),
    "gradients inside": (None, lambda: (with_gradients_inside, x(), leaf()), "gradients are want"),
    "autograd function": (torch.enable_grad(), lambda: (Twice.apply, leaf()), "gradients are want"),
    "custom operator": (None, lambda: (thrice, x()), "a call of support.thrice"),
    "opaque function": (
        None,
        lambda: (lambda x: known_to_dynamo(x) + 1, x()),
        "a call of .*known_to_dynamo, whose",
    ),
    "shape from data": (capture, lambda: (torch.nonzero, x()), "depends on data"),
    "number from data": (capture, lambda: (lambda x: x * x.sum().item(), x()), "depends on data"),
    "conjugate": (
        None,
        lambda: (lambda x: x * 2, x(dtype=torch.complex64).conj()),
        "a conjugated or negated view",
    ),
    "other device": (None, lambda: (lambda x: x * 2, x(device="meta")), "a tensor on meta"),
    "random numbers": (None, lambda: (F.dropout, x()), "random numbers"),
    "absolute strides": (
        None,
        lambda: (lambda x: x.as_strided((2,), (1,), 3) + 1, x()),
        "absolute",
    ),
}


@pytest.mark.parametrize(("context", "made", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_no_library_can_hold_is_refused_with_a_reason(context, made, reason):
    """The reason names what it is, before anything is compiled."""
    function, *inputs = made()
    with context or contextlib.nullcontext():
        (graph,) = graphs_of(function, *inputs, trace=True)
    assert re.search(reason, graph.reason)


def test_a_negative_number_is_refused():
    """No tensor has that many rows."""
    (graph,) = graphs_of(lambda x, shift: x + shift, x(), -3, dynamic=True)
    assert graph.reason == "a dynamic number below two (l_shift_)"


def test_an_autograd_function_is_plain_operators_for_inference():
    """Without gradients, Dynamo looks into it, and its graph can be stored."""
    assert graph_of(Twice.apply, x()).key == graph_of(lambda x: x * 2, x()).key


def test_attention_without_dropout_draws_no_random_numbers():
    """Operators that only may be random are stored where they are not."""
    attend = F.scaled_dot_product_attention
    q = x()[None, None]
    assert graph_of(lambda q: attend(q, q, q), q, trace=True).reason == ""
    assert "random" in graph_of(lambda q: attend(q, q, q, dropout_p=0.5), q, trace=True).reason


def test_each_graph_of_a_model_has_a_key():
    """Both sides of a graph break; here they are one graph, and so have one."""
    first, second = graphs_of(Halved(), x())
    assert first.key == second.key == usual().key


def test_the_trace_says_what_a_graph_writes_to():
    """The input by its place."""
    assert graph_of(halve, x(6), x()[0], trace=True).written == [0]
