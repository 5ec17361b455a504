"""Artifacts: a loaded library gives eager results for the inputs it was compiled for, and refuses all others."""

import os
import site
import tempfile

import attrs
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.loading.artifact import Artifact
from graphspec.cache.store import Outcome
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import plan_capture
from graphspec.errors import SignatureError
from support.processes import run_python
from support.toy import NAME, WIDTH, build_mix, build_scale, program

MOST = 32
"""The largest number of rows that the toy's units were compiled for: the tiny spec's max_num_batched_tokens."""


@pytest.fixture
def toy_spec(tiny_spec):
    return attrs.evolve(tiny_spec, program=NAME)


@pytest.fixture
def compiled(toy_spec, shared_cache):
    """Artifacts of the toy's two units, compiled at most once in a run."""
    root = str(shared_cache)
    units = program(toy_spec).units()
    return load_or_compile(units, toy_spec, DiskStore(root), KeyLocks(root))[0]


def stored(spec, root):
    """The stored entries of the toy's units, by unit name."""
    store = DiskStore(str(root))
    found = {k.unit.name: store.get(k.key) for k in keyed_units(program(spec).units(), spec)}
    assert {f.outcome for f in found.values()} == {Outcome.HIT}
    return {name: f.entry for name, f in found.items()}


@pytest.mark.parametrize("rows", [1, 2, 7, 16, MOST - 1, MOST])
def test_results_equal_eager_over_the_whole_range(compiled, toy_spec, rows):
    """At one row, at the maximum, and between, a compiled unit gives what its source gives."""
    torch.manual_seed(rows)
    x, w = torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH)
    torch.testing.assert_close(compiled["scale"](x), [build_scale(toy_spec)(x)])
    torch.testing.assert_close(compiled["mix"](x, w), list(build_mix(toy_spec)(x, w)))


def good():
    return {"x": torch.ones(4, WIDTH), "w": torch.ones(WIDTH, WIDTH)}


WRONG = {
    "dtype": ("x", lambda t: t.double(), "float64"),
    "whole numbers": ("x", lambda t: t.long(), "int64"),
    "rank": ("x", lambda t: t[0], r"\(8,\)"),
    "rank above": ("x", lambda t: t[None], r"\(1, 4, 8\)"),
    "no rows": ("x", lambda t: t[:0], "rows from 1 to 32"),
    "too many rows": ("x", lambda t: t.repeat(9, 1), "rows from 1 to 32"),
    "static size": ("x", lambda t: t[:, :7].contiguous(), r"\(4, 7\)"),
    "layout": ("x", lambda t: t.repeat(1, 2)[:, ::2], r"strides \(16, 2\)"),
    "weight of another size": ("w", lambda t: torch.ones(WIDTH, WIDTH + 1), r"\(8, 9\)"),
    "device": ("x", lambda t: t.to("meta"), "meta"),
}


@pytest.mark.parametrize(("name", "change", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_refused_by_name(compiled, name, change, said):
    """An input that the library was not compiled for never reaches it: the error names unit, input and both shapes."""
    inputs = good()
    inputs[name] = change(inputs[name])
    with pytest.raises(SignatureError, match=said) as caught:
        compiled["mix"](inputs["x"], inputs["w"])
    (problem,) = caught.value.problems
    assert problem.where == f"unit mix: input {name}"
    assert "contiguous torch.float32" in problem.wanted


def test_a_transposed_weight_is_refused(compiled):
    """Equal shape and dtype do not suffice: the library would read the elements in another order."""
    with pytest.raises(SignatureError, match=r"input w.*strides"):
        compiled["mix"](good()["x"], torch.randn(WIDTH, WIDTH).t())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_inputs_is_refused(compiled, count):
    """A call with too few or too many tensors names the unit and both numbers."""
    with pytest.raises(SignatureError, match=f"unit mix: the call.*{count} inputs.*2 inputs"):
        compiled["mix"](*[torch.ones(4, WIDTH)] * count)


def test_inputs_that_disagree_on_a_dynamic_size_are_refused():
    """A dimension of one name has one size in a call; the error says which input had set it."""
    signature = [{"name": n, "dtype": "float32", "shape": [("rows", 1, 8), 2]} for n in ("a", "b")]
    artifact = Artifact("pair", signature, [], "cpu", runner=None)
    with pytest.raises(SignatureError, match=r"unit pair: input b.*\(rows=3 as in input a, 2\)"):
        artifact(torch.ones(3, 2), torch.ones(4, 2))


CRASHES = {
    "without memory": lambda: torch._efficientzerotensor((4, WIDTH)),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(4, WIDTH)),
    "functional": lambda: torch._to_functional_tensor(torch.ones(4, WIDTH)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(WIDTH), torch.ones(3)]),
    "sparse": lambda: torch.ones(4, WIDTH).to_sparse(),
    "mkldnn": lambda: torch.ones(4, WIDTH).to_mkldnn(),
    "nothing": lambda: None,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("make", CRASHES.values(), ids=CRASHES)
def test_what_would_end_the_process_is_an_error(compiled, make):
    """The library would read at address zero, or worse; the call says which input it is, and the next one works."""
    for _ in range(2):
        with pytest.raises(SignatureError, match="unit scale: input x"):
            compiled["scale"](make())
        assert compiled["scale"](torch.zeros(2, WIDTH))[0].tolist() == [[1.0] * WIDTH] * 2


def at_offset(tensor, offset):
    """A copy whose address is `offset` bytes above a multiple of 64."""
    memory = bytearray(tensor.nbytes + 192)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 64 + offset
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
    copy = flat.view(tensor.shape).copy_(tensor)
    assert copy.data_ptr() % 64 == offset
    return copy


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 16])
def test_any_address_gives_right_results(compiled, toy_spec, offset):
    """Compiled code for a CPU assumes no alignment, so none is asked for."""
    torch.manual_seed(offset)
    x, w = torch.randn(7, WIDTH), torch.randn(WIDTH, WIDTH)
    found = compiled["mix"](at_offset(x, offset), at_offset(w, offset))
    torch.testing.assert_close(found, list(build_mix(toy_spec)(x, w)))
    (scaled,) = compiled["scale"](at_offset(x, offset))
    torch.testing.assert_close(scaled, build_scale(toy_spec)(x))


def test_strides_that_make_no_difference_give_right_results(compiled, toy_spec):
    """One row with any step to the next is a row."""
    x, w = torch.randn(90)[5:].as_strided((1, WIDTH), (3, 1)), torch.randn(WIDTH, WIDTH)
    torch.testing.assert_close(compiled["mix"](x, w), list(build_mix(toy_spec)(x, w)))
    torch.testing.assert_close(compiled["scale"](x), [build_scale(toy_spec)(x)])


def test_a_negated_view_gives_right_results(compiled, toy_spec):
    """A view whose elements in memory have the other sign is resolved before the library reads it."""
    x, w = torch._neg_view(torch.randn(7, WIDTH)), torch.randn(WIDTH, WIDTH)
    assert x.is_neg()
    for _ in range(2):
        torch.testing.assert_close(compiled["mix"](x, w), list(build_mix(toy_spec)(x, w)))
        torch.testing.assert_close(compiled["scale"](x), [build_scale(toy_spec)(x)])


def test_a_sealed_replay_checks_nothing(compiled, toy_spec, monkeypatch):
    """Warming, capturing and verifying check each call; from the seal on, the recorded calls run without the check."""
    checks = []
    for artifact in compiled.values():
        plain = artifact.signature.check
        monkeypatch.setattr(
            artifact.signature, "check", lambda inputs, plain=plain: checks.append(plain(inputs))
        )
    steps = program(toy_spec).start(compiled)
    plan = plan_capture(toy_spec)
    manager = CaptureManager(plan, steps, TapeBackend())
    manager.warm()
    manager.capture()
    assert len(checks) == 2 * len(plan.keys)
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    before = len(checks)
    for key in plan.keys:
        steps.fill_example(key, 1)
        mixed, sums = manager.replay(key)
        wanted = build_scale(toy_spec)(torch.full((key.tokens, WIDTH), 3.0))
        torch.testing.assert_close(mixed, wanted)
        torch.testing.assert_close(sums, wanted.sum(dim=-1))
    assert len(checks) == before


def test_loading_imports_no_compiler(compiled, shared_cache, tiny_checkpoint):
    """A warm start in a new process loads and runs both units without inductor, Dynamo or sympy."""
    printed = run_python(
        """
        import os, sys, torch
        import attrs
        from graphspec.cache.folder.disk import DiskStore
        from graphspec.cache.load import load_or_compile
        from graphspec.cache.folder.locks import KeyLocks
        from graphspec.config.engine import EngineConfig
        from support.toy import NAME, program
        spec = EngineConfig.from_dict({
            "model": {"source": os.environ["TINY"], "max_model_len": 128},
            "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
            "kv_cache": {"block_size": 8, "num_blocks": 128},
            "speculative": {"method": "ngram", "num_speculative_tokens": 2},
            "program": NAME,
        }).resolve()
        root = os.environ["ROOT"]
        found, results = load_or_compile(program(spec).units(), spec, DiskStore(root), KeyLocks(root))
        out, sums = found["mix"](*found["scale"](torch.zeros(3, 8)), torch.eye(8))
        print([r.outcome.value for r in results], sums.tolist())
        print([m for m in ("torch._inductor", "torch._dynamo", "sympy") if m in sys.modules])
        """,
        ROOT=str(shared_cache),
        TINY=str(tiny_checkpoint),
    )
    assert printed.splitlines() == ["['hit', 'hit'] [8.0, 8.0, 8.0]", "[]"]


def test_the_payload_contains_no_path_of_the_build(compiled, toy_spec, shared_cache):
    """A library tells nothing of the machine it was built on: its bytes could come from any."""
    private = {tempfile.gettempdir(), os.path.expanduser("~"), os.getcwd(), *site.getsitepackages()}
    private |= {os.path.dirname(torch.__file__), str(shared_cache)}
    for name, entry in stored(toy_spec, shared_cache).items():
        payload = bytes(entry.payload)
        assert [p for p in private if len(p) > 3 and p.encode() in payload] == [], name


def test_what_the_trace_read_is_stored(compiled, toy_spec, shared_cache):
    """An entry names the fields of the spec that its unit read, its outputs, and what compiled it."""
    entries = stored(toy_spec, shared_cache)
    assert entries["scale"].metadata["reads"] == ["model.rms_norm_eps"]
    assert entries["mix"].metadata["reads"] == []
    matrix = {"dtype": "float32", "shape": [("rows", 1, MOST), WIDTH]}
    sums = {"dtype": "float32", "shape": [("rows", 1, MOST)]}
    assert entries["scale"].metadata["outputs"] == [matrix]
    assert entries["mix"].metadata["outputs"] == [matrix, sums]
    assert entries["scale"].metadata["compile_seconds"] > 0


@pytest.mark.deep
@pytest.mark.slow
def test_the_same_unit_compiles_to_the_same_bytes(compiled, toy_spec, shared_cache, tmp_path):
    """Compiled again in another process and folder, a unit's library is equal byte for byte."""
    root = str(tmp_path)
    units = [u for u in program(toy_spec).units() if u.name == "mix"]
    results = load_or_compile(units, toy_spec, DiskStore(root), KeyLocks(root))[1]
    assert [r.compiled for r in results] == [True]
    again = DiskStore(root).get(keyed_units(units, toy_spec)[0].key).entry
    assert bytes(again.payload) == bytes(stored(toy_spec, shared_cache)["mix"].payload)
