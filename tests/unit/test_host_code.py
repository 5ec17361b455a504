"""Code that numba compiles for the host: kept in the cache, loaded without compiling, and keyed by all that it depends on."""

import ast
import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba")

from graphspec.cache.bundle.exporter import all_entries, export_bundle
from graphspec.cache.bundle.importer import import_bundle
from graphspec.cache.entry import Entry
from graphspec.cache.opened import open_cache
from graphspec.cache.prune import Wanted, choose
from graphspec.cache.store import Outcome
from graphspec.capture import host_kernels
from graphspec.capture import warmup as warmup_module
from graphspec.capture.host_kernels import host_code_key, keeper_in, load_or_compile_host_code
from graphspec.config.cache import CacheConfig
from graphspec.config.engine import EngineConfig
from graphspec.errors import CacheUnusableError, KernelError, OfflineMissError
from graphspec.kernels import host_code
from graphspec.kernels.host_code import HostCode, keep_host_code
from graphspec.kernels.ngram_compiled import CODE as NGRAM
from graphspec.kernels.verify_rows import CODE as VERIFY
from support.graphs import Steps
from support.host_functions import tiny
from support.processes import run_python
from support.specs import ROOT


@pytest.fixture
def cache(tmp_path):
    return open_cache(CacheConfig(), str(tmp_path / "cache"))


def total_of(group):
    return group.ready()["total"](np.array([1, 2, 3], np.int64), 4)


LOADS = """
import numpy as np
from numba.core import event
from graphspec.cache.opened import open_cache
from graphspec.capture.host_kernels import load_or_compile_host_code
from graphspec.config.cache import CacheConfig
from support.host_functions import tiny
group = tiny()
with event.install_recorder("numba:compile") as compiles:
    result = load_or_compile_host_code(group, open_cache(CacheConfig(), {folder!r}))
    answer = group.ready()["total"](np.array([1, 2, 3], np.int64), 4)
print(result.outcome.value, result.compiled, len(compiles.buffer), answer)
"""


def test_what_one_process_compiles_another_loads(cache):
    """The second compiles nothing, and its functions give the same; what cannot be called is a TypeError, not a compile."""
    group = tiny()
    first = load_or_compile_host_code(group, cache)
    assert (first.outcome, first.compiled, first.store_problem) == (Outcome.MISS, True, "")
    assert first.name == "kernel.host.tiny"
    assert choose(cache.root, Wanted(other_toolchain=True)) == ()
    assert total_of(group) == 10
    with pytest.raises(TypeError):
        group.ready()["total"](1)
    assert run_python(LOADS.format(folder=cache.root)) == "hit False 0 10"


def test_a_group_that_is_ready_is_stored_where_it_lacks(cache, tmp_path):
    """Compiled before any cache was known: nothing compiles again, and the next process loads it."""
    group = tiny()
    group.compile()
    stored = load_or_compile_host_code(group, cache)
    assert (stored.outcome, stored.compiled) == (Outcome.MISS, False)
    again = load_or_compile_host_code(group, cache)
    assert (again.outcome, again.compiled, again.key) == (Outcome.HIT, False, stored.key)
    assert again.seconds_saved > 0


@pytest.mark.parametrize("payload", [b"", b"no code", b"d0:"])
def test_bytes_that_are_no_code_are_put_aside_and_compiled_anew(payload, cache):
    """The outcome says stale, and the next process loads what was compiled."""
    group = tiny()
    metadata = {"unit": "kernel.host.tiny", "device": "cpu", "compile_seconds": 1.0}
    cache.store.put(Entry(key=host_code_key(group), metadata=metadata, payload=payload))
    found = load_or_compile_host_code(group, cache)
    assert (found.outcome, found.compiled, total_of(group)) == (Outcome.STALE, True, 10)
    assert load_or_compile_host_code(group, cache).outcome is Outcome.HIT


def test_code_without_a_function_is_refused_with_what_was_found(cache):
    """Of another group: the error names both."""
    group = tiny()
    with pytest.raises(KernelError, match=r"functions \[\]; wanted the functions total"):
        group.load(host_code.encode({}))


def test_a_process_waits_for_the_one_that_compiles(cache, monkeypatch):
    """It then loads, as nothing is left to do."""
    other = tiny()
    other.compile()
    tried = []

    class Locks:
        @contextlib.contextmanager
        def try_lock(self, key):
            tried.append(key)
            load_or_compile_host_code(other, cache)
            yield False

    group = SimpleNamespace(
        loaded=[], name="tiny", modules=other.modules, signatures=other.signatures
    )
    group.load = lambda payload, seconds: group.loaded.append(bytes(payload))
    monkeypatch.setattr(host_kernels, "_LOCK_POLL_S", 0.0)
    held = SimpleNamespace(offline=None, store=cache.store, config=cache.config, locks=Locks())
    found = load_or_compile_host_code(group, held)
    assert (found.outcome, found.compiled, len(tried)) == (Outcome.HIT, False, 1)
    assert group.loaded == [other.code()]


def test_nobody_is_waited_for_for_ever(cache):
    """Who holds the lock for longer than the configuration says does so in vain."""

    class Held:
        @contextlib.contextmanager
        def try_lock(self, key):
            yield False

    config = SimpleNamespace(lock_wait_seconds=-1.0)
    found = load_or_compile_host_code(
        tiny(), SimpleNamespace(offline=None, store=cache.store, config=config, locks=Held())
    )
    assert (found.outcome, found.compiled) == (Outcome.MISS, True)


def test_offline_compiles_nothing_and_names_the_code_with_its_key(tmp_path, cache):
    """What is stored is loaded; what is not is an error, as it is for a unit."""
    offline = open_cache(CacheConfig(offline=True), str(tmp_path / "cache"))
    group = tiny()
    with pytest.raises(OfflineMissError) as raised:
        load_or_compile_host_code(group, offline)
    (problem,) = raised.value.problems
    assert problem.where == "unit kernel.host.tiny"
    assert host_code_key(group).digest in problem.found
    assert not group.is_ready
    load_or_compile_host_code(tiny(), cache)
    assert load_or_compile_host_code(group, offline).outcome is Outcome.HIT
    assert total_of(group) == 10


def test_strict_refuses_code_that_cannot_be_stored(tmp_path):
    """And without it the engine drafts, with a finding."""
    (tmp_path / "file").write_text("")
    cache = open_cache(CacheConfig(), str(tmp_path / "file" / "cache"))
    group = tiny()
    assert load_or_compile_host_code(group, cache).store_problem
    with pytest.raises(CacheUnusableError):
        load_or_compile_host_code(group, cache, strict=True)


def test_everything_that_changes_the_code_changes_the_key(monkeypatch):
    """Modules, types, the processor, versions and settings."""
    group = tiny()
    keys = [host_code_key(group).digest]
    assert keys == [host_code_key(tiny()).digest]
    keys.append(host_code_key(HostCode("tiny", "support.host_functions", "support.ngram")).digest)
    target, name, features = host_code.processor()
    for other in (("arm", name, features), (target, "znver4", features), (target, name, ["+avx"])):
        monkeypatch.setattr(host_kernels, "processor", lambda other=other: other)
        keys.append(host_code_key(group).digest)
    monkeypatch.setattr(host_kernels, "processor", lambda: (target, name, features))
    facts = host_code.compiler_facts()
    for changed in ({"numba": "0.0"}, {"python": "cpython 3.99"}, {"settings": {"OPT": "0"}}):
        monkeypatch.setattr(host_kernels, "compiler_facts", lambda c=changed: {**facts, **c})
        keys.append(host_code_key(group).digest)
    assert len(set(keys)) == 8


HARMLESS = {"graphspec.errors", "graphspec.keys.encoding", "graphspec.config.speculative"}
"""What is imported by modules with compiled code, and of which nothing is compiled in."""


@pytest.mark.parametrize("group", [NGRAM, VERIFY], ids=lambda g: g.name)
def test_a_group_names_every_module_whose_code_is_compiled_in(group):
    """What its modules import of graphspec is named too, or known to be harmless."""
    imported = set()
    for module in group.modules:
        path = ROOT / module.removeprefix("graphspec.").replace(".", "/")
        tree = ast.parse(path.with_suffix(".py").read_text())
        imported |= {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("graphspec")
        }
    assert imported - HARMLESS <= set(group.modules)


def test_a_keeper_makes_groups_ready_and_no_other_place_is_touched(cache):
    """`ready` asks who was named; nobody: it compiles."""
    before = keep_host_code(keeper_in(cache))
    try:
        assert total_of(tiny()) == 10
        assert len(list(cache.disk.entries())) == 1
        keep_host_code(None)
        assert host_code.nobody_keeps()
        assert total_of(tiny()) == 10
    finally:
        keep_host_code(before)


def test_the_drafter_of_a_large_engine_is_in_the_report_of_its_warmup(
    monkeypatch, tiny_config, tmp_path
):
    """Compiled or loaded once, and a hit the next time; a small engine drafts in plain Python and has none."""
    NGRAM.ready()  # Through the cache that all workers share.
    program = SimpleNamespace(units=tuple, start=lambda artifacts: Steps())
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)
    many = {"max_num_seqs": 33, "max_num_batched_tokens": 128}
    large = EngineConfig.from_dict(tiny_config(scheduler=many)).resolve()
    for outcome in (Outcome.MISS, Outcome.HIT):
        report = warmup_module.warmup(large, cache_dir=str(tmp_path))
        (unit,) = report.units
        assert (unit.name, unit.outcome) == ("kernel.host.ngram", outcome)
        assert "drafter" in report.phases
    small = EngineConfig.from_dict(tiny_config()).resolve()
    report = warmup_module.warmup(small, cache_dir=str(tmp_path))
    assert (list(report.units), "drafter" in report.phases) == ([], False)


def test_a_warmed_process_keeps_what_it_compiles_later_where_its_engine_does(
    monkeypatch, tiny_config, tmp_path
):
    """As the verification of an engine with `compiled_sampling`; where somebody keeps code already, he goes on."""
    program = SimpleNamespace(units=tuple, start=lambda artifacts: Steps())
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)
    spec, before = EngineConfig.from_dict(tiny_config()).resolve(), keep_host_code(None)
    try:
        for folder in ("first", "second"):
            warmup_module.warmup(spec, cache_dir=str(tmp_path / folder))
        assert total_of(tiny()) == 10
        entries = {
            folder: list(open_cache(CacheConfig(), str(tmp_path / folder)).disk.entries())
            for folder in ("first", "second")
        }
        assert [len(e) for e in entries.values()] == [1, 0]
    finally:
        keep_host_code(before)


def test_a_bundle_with_host_code_is_imported_and_found(cache, tmp_path):
    """An export of a whole cache takes it along; a machine with the same processor loads it, any other one leaves it."""
    group = tiny()
    load_or_compile_host_code(group, cache)
    path = str(tmp_path / "all.bundle")
    export_bundle(path, all_entries(cache.disk))
    other = open_cache(CacheConfig(), str(tmp_path / "other"))
    imported = import_bundle(path, other.disk)
    assert [e.unit for e in imported.entries] == ["kernel.host.tiny"]
    assert load_or_compile_host_code(group, other).outcome is Outcome.HIT
