"""torch.compile with the backend graphspec: stored once, found again, right each time; what cannot be stored is told."""

import json
import logging

import attrs
import pytest
import torch

from graphspec.cache.compiling.compiler import Compiled, Compiler
from graphspec.cache.dynamo import backend as dynamo
from graphspec.cache.dynamo.backend import graphspec, outcome_counts, results
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.errors import CacheUnusableError, CompileError, OfflineMissError
from support.dynamo_graphs import (
    WIDTH,
    Attention,
    Halved,
    block,
    branched,
    graph_of,
    halve,
    rows_summed,
    shared_outputs,
    softened,
)
from support.processes import run_python


@pytest.fixture(autouse=True)
def for_inference():
    """Without gradients, and nothing that one test compiled is left for the next."""
    dynamo.clear_results()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def through_inductor(monkeypatch):
    """Graphs that inductor was asked to compile; they run as they are, which takes no seconds."""
    asked = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx",
        lambda gm, inputs: asked.append(gm) or gm.forward,
    )
    return asked


def compiled(model, folder, *, dynamic=False, **options):
    """The model through the backend by its registered name, with the cache in a folder."""
    options = {"cache_dir": str(folder), "strict": True, **options}
    return torch.compile(model, backend="graphspec", dynamic=dynamic, options=options)


def x(rows=4):
    return torch.randn(rows, WIDTH)


@pytest.fixture
def stored_block(shared_cache):
    """The stored library of a block, compiled at most once in a run."""
    model, given = block(), x()
    torch.testing.assert_close(compiled(model, shared_cache)(given), model(given))
    lookup = DiskStore(str(shared_cache)).get(graph_of(model, given).key)
    assert lookup.outcome is Outcome.HIT
    dynamo.clear_results()
    return lookup.entry


def test_modules_of_one_graph_share_a_library_and_keep_their_weights(stored_block, shared_cache):
    """Weights are inputs: one entry serves both, and each gives its own result."""
    given, models, outputs = x(), [block(1), block(2)], []
    for model in models:
        torch._dynamo.reset()  # or the second would not come to the backend at all
        outputs.append(compiled(model, shared_cache)(given))
    torch.testing.assert_close(outputs, [model(given) for model in models])
    assert not torch.allclose(*outputs)
    assert [(r.outcome, r.key) for r in results()] == [(Outcome.HIT, stored_block.key.digest)] * 2


def test_changed_weights_are_seen(stored_block, shared_cache):
    """A weight that is changed, or replaced, after the compile is what the next call uses."""
    given, model = x(), block()
    call = compiled(model, shared_cache)
    call(given)
    model.project.weight.mul_(2)
    model.shift = torch.ones(WIDTH)
    torch.testing.assert_close(call(given), model(given))


def test_each_graph_of_a_model_is_looked_up(stored_block, shared_cache):
    """Both graphs beside a graph break; here they are the same one."""
    model, given = Halved(), x()
    torch.testing.assert_close(compiled(model, shared_cache)(given), model(given))
    assert [r.outcome for r in results()] == [Outcome.HIT, Outcome.HIT]
    assert len({r.graph for r in results()}) == 2
    assert outcome_counts()[Outcome.HIT] == sum(outcome_counts().values()) == 2


def test_inference_mode_finds_what_no_grad_stored(stored_block, shared_cache):
    """And its outputs are inference tensors, as in eager."""
    with torch.inference_mode():
        model, given = block(), x()
        output = compiled(model, shared_cache)(given)
        torch.testing.assert_close(output, model(given))
        assert output.is_inference()
    assert [r.outcome for r in results()] == [Outcome.HIT]


def test_a_second_process_compiles_nothing_and_imports_no_compiler(stored_block, shared_cache):
    """All of inductor that it loads is what Dynamo itself loads, for any backend."""
    printed = run_python(
        """
        import json, sys, torch
        from support.dynamo_graphs import block

        def inductor():
            return {n for n in sys.modules if n.startswith(("torch._inductor", "triton"))}

        with torch.no_grad():
            x = torch.randn(4, 8)
            torch.compile(lambda x: x + 1, backend="eager")(x)
            before = inductor()
            output = torch.compile(block(), backend="graphspec")(x)
            error = float((output - block()(x)).abs().max())
        from graphspec.cache.dynamo.backend import results
        [result] = results()
        more = sorted(inductor() - before)
        compiler = "graphspec.cache.compiling.compiler" in sys.modules
        print(json.dumps([result.outcome.value, result.compiled, error, more, compiler]))
        """,
        GRAPHSPEC_CACHE_DIR=str(shared_cache),
    )
    outcome, made, error, more, compiler = json.loads(printed)
    assert (outcome, made, more, compiler) == ("hit", False, [], False)
    assert error < 1e-5


def test_importing_the_backend_loads_no_torch():
    """torch loads the entry point to know it, which must cost nothing."""
    code = "import sys, graphspec.cache.dynamo.backend; print([n for n in ('torch', 'sympy') if n in sys.modules])"
    assert run_python(code) == "[]"


@pytest.mark.deep
def test_a_dynamic_graph_serves_all_its_sizes(shared_cache):
    """Sizes, a number of the caller's, and outputs that are no tensors, over the range that Dynamo's guards allow."""
    call = compiled(rows_summed, shared_cache, dynamic=True)
    for rows, count in ((4, 5), (7, 3), (2, 2), (40, 9)):
        given = x(rows)
        torch.testing.assert_close(call(given, count), rows_summed(given, count))
    (result,) = results()
    assert result.outcome in (Outcome.MISS, Outcome.HIT)


@pytest.mark.deep
def test_a_demand_of_the_compiler_becomes_a_guard(shared_cache, monkeypatch):
    """A library that was chosen for short reductions is not called with a long one: that is another graph's."""
    call = compiled(rows_summed, shared_cache, dynamic=True)
    call(x(4), 5)
    monkeypatch.setenv("GRAPHSPEC_OFFLINE", "1")
    key = graph_of(rows_summed, x(4), 5, dynamic=True).key
    demands = DiskStore(str(shared_cache)).get(key).entry.metadata["demands"]
    assert demands == [["at most", ["size", 0], 4096]]
    with pytest.raises(Exception, match="no usable entry under") as caught:
        call(x(5000), 5)
    assert isinstance(caught.value.inner_exception, OfflineMissError)


@pytest.mark.deep
def test_written_inputs_are_written(shared_cache):
    """The caller's own tensor changes, and autograd's version of it too."""
    mine, row = x(6), torch.ones(WIDTH)
    theirs, version = mine.clone(), mine._version
    call = compiled(halve, shared_cache)
    torch.testing.assert_close(call(mine, row), halve(theirs, row))
    torch.testing.assert_close(mine, theirs)
    assert mine._version > version


@pytest.mark.deep
def test_a_written_input_that_shares_memory_is_read_as_in_eager(shared_cache):
    """A library may read first what eager reads last, so such a call runs without it."""
    call = compiled(halve, shared_cache)
    call(x(6), torch.ones(WIDTH))
    for at in (0, 5):
        mine = x(6)
        theirs = mine.clone()
        torch.testing.assert_close(call(mine, mine[at]), halve(theirs, theirs[at]))
        torch.testing.assert_close(mine, theirs)
    assert len(results()) == 1


# What cannot be stored


def test_what_cannot_be_stored_goes_through_inductor(tmp_path, through_inductor, caplog):
    """With its outcome, a reason, one event, and nothing in the store."""
    model, given = block(), x()
    with torch.enable_grad(), caplog.at_level(logging.INFO, logger="graphspec.cache"):
        output = compiled(model, tmp_path, strict=False)(given)
    torch.testing.assert_close(output, model(given))
    (result,) = results()
    assert result.outcome is Outcome.BYPASS
    assert "gradients are wanted" in result.reason
    (event,) = [r for r in caplog.records if getattr(r, "event", "") == "torch_compile_graph"]
    assert (event.outcome, event.reason, event.key) == ("bypass", result.reason, "")
    assert len(through_inductor) == 1
    assert list(tmp_path.iterdir()) == []


def test_strict_makes_a_bypass_an_error(tmp_path, through_inductor):
    """The reason is the error's, and inductor is not asked."""
    with torch.enable_grad(), pytest.raises(Exception, match="gradients are wanted") as caught:
        compiled(block(), tmp_path)(x())
    assert isinstance(caught.value.inner_exception, CompileError)
    assert through_inductor == []


def test_a_failed_compile_goes_through_inductor(tmp_path, through_inductor, monkeypatch):
    """What the compiler says is the reason."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    model, given = block(), x()
    torch.testing.assert_close(compiled(model, tmp_path, strict=False)(given), model(given))
    assert [r.reason for r in results()] == ["no g++ on PATH"]


def test_offline_neither_compiles_nor_bypasses(tmp_path, through_inductor, monkeypatch):
    """A graph that is not stored, and one that cannot be, are errors."""
    monkeypatch.setenv("GRAPHSPEC_OFFLINE", "1")
    for mode, said in ((torch.no_grad(), "no usable entry"), (torch.enable_grad(), "gradients")):
        torch._dynamo.reset()
        with mode, pytest.raises(Exception, match=said) as caught:
            compiled(block(), tmp_path, strict=False)(x())
        assert isinstance(caught.value.inner_exception, OfflineMissError)
    assert through_inductor == []


def test_unknown_options_are_refused(tmp_path):
    """By name, with those that there are."""
    with pytest.raises(Exception, match=r"the option max_autotune; wanted options of cache_dir"):
        compiled(block(), tmp_path, max_autotune=True)(x())
    with pytest.raises(Exception, match="the mode reduce-overhead"):
        torch.compile(block(), backend=graphspec, mode="reduce-overhead")(x())


# A stand-in for the compiler, which gives the library of the block for any graph


@pytest.fixture
def gives_the_block(stored_block, monkeypatch):
    library = bytes(stored_block.payload)
    made = Compiled(library=library, seconds=1.0, provenance={})
    monkeypatch.setattr(Compiler, "compile_program", lambda *a, **k: made)


def test_a_store_that_takes_nothing_does_not_fail_the_compile(gives_the_block, tmp_path):
    """The result is right and says why it was not stored; strict makes it an error."""
    blocked = tmp_path / "cache"
    blocked.write_text("in the way")
    model, given = block(), x()
    torch.testing.assert_close(compiled(model, blocked, strict=False)(given), model(given))
    (result,) = results()
    assert "file lies where a folder should be" in result.store_problem
    torch._dynamo.reset()
    with pytest.raises(Exception, match="file lies where") as caught:
        compiled(model, blocked)(given)
    assert isinstance(caught.value.inner_exception, CacheUnusableError)


def test_a_library_that_gives_other_results_is_never_stored(
    gives_the_block, tmp_path, through_inductor
):
    """Each new one runs beside the graph that it was made of. What is stored is that no compile need be tried again."""
    model, given = block(scale=0.75), x()
    for _ in "12":
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(model, tmp_path, strict=False)(given), model(given))
    first, second = (r.reason for r in results())
    assert first.startswith("output 0 of the library differs from eager")
    assert second == f"{first} (as was found before)"
    assert outcome_counts()[Outcome.BYPASS] == len(through_inductor) == 2
    (_, entry, _) = next(DiskStore(str(tmp_path)).entries())
    assert (entry.metadata["refused"], entry.payload) == (first, b"")


def test_a_corrupt_entry_is_compiled_again(gives_the_block, stored_block, tmp_path):
    """And is set aside."""
    store = DiskStore(str(tmp_path))
    store.put(stored_block)
    with open(store.path_of(stored_block.key), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    compiled(block(), tmp_path)(x())
    assert [(r.outcome, r.compiled) for r in results()] == [(Outcome.CORRUPT, True)]
    assert store.get(stored_block.key).outcome is Outcome.HIT


def test_an_entry_that_does_not_load_is_compiled_again(gives_the_block, stored_block, tmp_path):
    """Whole, and no library of this machine's, or without what a graph's entry says: stale, and replaced."""
    for damaged in ({"payload": b"\x7fELF"}, {"metadata": {"unit": "x"}}):
        torch._dynamo.reset()
        dynamo.clear_results()
        DiskStore(str(tmp_path)).put(attrs.evolve(stored_block, **damaged))
        compiled(block(), tmp_path)(x())
        assert [(r.outcome, r.compiled) for r in results()] == [(Outcome.STALE, True)]
        DiskStore(str(tmp_path)).set_aside(stored_block.key, "the next one")


def test_sizes_that_a_library_is_not_for_have_one_of_their_own(
    gives_the_block, stored_block, tmp_path
):
    """The first library under the graph's key is for other sizes: a second one is stored beside it."""
    model, given = block(), x()
    dynamic = graph_of(model, given, dynamic=True).key
    metadata = {**stored_block.metadata, "demands": [["at most", ["size", 0], 3]]}
    DiskStore(str(tmp_path)).put(attrs.evolve(stored_block, key=dynamic, metadata=metadata))
    torch.testing.assert_close(compiled(model, tmp_path, dynamic=True)(given), model(given))
    (result,) = results()
    assert (result.outcome, result.compiled) == (Outcome.MISS, True)
    assert result.key != dynamic.digest
    assert len(list(DiskStore(str(tmp_path)).entries())) == 2


# Compiled for real, for graphs of many kinds


def convolution():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    return torch.nn.Sequential(*layers).eval()


def images(**layout):
    return torch.randn(2, 3, 9, 9).to(**layout)


channels_last = {"memory_format": torch.channels_last}
KINDS = {
    "attention of any length": (Attention, [(torch.randn(n, m, 32),) for n, m in ((3, 5), (2, 9))]),
    "statistics of a batch": (lambda: torch.nn.BatchNorm2d(3), [(images(),), (images(),)]),
    "convolution": (convolution, [(images(),)]),
    "convolution, channels last": (convolution, [(images(**channels_last),)]),
    "branches": (lambda: branched, [(torch.ones(3, 4),), (-torch.ones(3, 4),)]),
    "views": (lambda: shared_outputs, [(torch.randn(3, 4),)]),
    "strides": (lambda: lambda a, b: a + b, [(torch.randn(6, 5).t(), torch.randn(5, 12)[:, ::2])]),
    "complex numbers": (
        lambda: lambda x: x * x.conj() + 1j,
        [(torch.randn(4, dtype=torch.cfloat),)],
    ),
    "no inputs": (lambda: lambda: torch.arange(12).view(3, 4).float().softmax(-1), [()]),
    "half": (lambda: softened, [(torch.randn(16, 8).bfloat16(),)]),
}


@pytest.mark.deep
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("made", "calls"), KINDS.values(), ids=KINDS)
def test_every_kind_of_graph_is_as_in_eager(made, calls, dynamic, tmp_path, through_inductor):
    """Cold and from the store, outputs, strides, shared memory and what is written are eager's, or it is a bypass."""
    outcomes = []
    for _ in "12":
        torch._dynamo.reset()
        dynamo.clear_results()
        model, reference = (seeded(made) for _ in "12")
        call = compiled(model, tmp_path, dynamic=dynamic, strict=False)
        for inputs in calls:
            mine, theirs = ([t.clone() for t in inputs] for _ in "12")
            got, wanted = call(*mine), reference(*theirs)
            torch.testing.assert_close((got, mine), (wanted, theirs))
            assert strides(got) == strides(wanted)
            assert sharing(got, mine) == sharing(wanted, theirs)
        if isinstance(model, torch.nn.Module):
            torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))
        outcomes.append([(r.outcome, r.reason) for r in results()])
    assert all(o in (Outcome.MISS, Outcome.BYPASS) for o, _ in outcomes[0])
    assert all(o in (Outcome.HIT, Outcome.BYPASS) for o, _ in outcomes[1])


def seeded(made):
    torch.manual_seed(3)
    return made()


def tensors(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def strides(outputs):
    return [t.stride() for t in tensors(outputs)]


def sharing(outputs, inputs):
    memory = [t.untyped_storage().data_ptr() for t in (*inputs, *tensors(outputs))]
    return [memory.index(m) for m in memory]


@pytest.mark.deep
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_graph_is_as_in_eager(dtype, tmp_path):
    """Its conversions are made once, in the library, and not by the operators that it calls."""
    given = torch.randn(16, WIDTH)
    with torch.autocast("cpu", dtype=dtype):
        for _ in "12":
            torch._dynamo.reset()
            output = compiled(softened, tmp_path)(given)
            wanted = softened(given)
            assert output.dtype == wanted.dtype
            torch.testing.assert_close(output, wanted, rtol=0.05, atol=0.05)
    assert [r.outcome for r in results()] == [Outcome.MISS, Outcome.HIT]


@pytest.mark.deep
def test_long_reductions_have_a_library_of_their_own(shared_cache):
    """Beyond what the first library was compiled for, a second one serves, and both are found again."""
    for _ in "12":
        torch._dynamo.reset()
        call = compiled(rows_summed, shared_cache, dynamic=True)
        for rows in (4, 5000, 7, 6000):
            given = x(rows).double()
            torch.testing.assert_close(call(given, 5), rows_summed(given, 5))
    assert [r.outcome for r in results()[-2:]] == [Outcome.HIT, Outcome.HIT]
    assert len({r.key for r in results()}) == 2


@pytest.mark.deep
def test_training_goes_through_inductor_and_learns(tmp_path):
    """Gradients are those of eager."""
    mine, theirs, given = block(), block(), x()
    with torch.enable_grad():
        compiled(mine, tmp_path, strict=False)(given).sum().backward()
        theirs(given).sum().backward()
    torch.testing.assert_close(
        [p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()]
    )
    assert [r.outcome for r in results()] == [Outcome.BYPASS]
