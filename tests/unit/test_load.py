"""`load_or_compile`: how each lookup ends, what is stored of it, and what strict and offline refuse. The compiler is a stand-in."""

import contextlib

import pytest

from graphspec.cache import load
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import keyed_units, load_or_compile, outcome_counts
from graphspec.cache.loading import artifact
from graphspec.cache.opened import OFFLINE, open_cache
from graphspec.cache.store import DisabledStore, Lookup, Outcome, Stored
from graphspec.config.cache import CacheConfig
from graphspec.config.engine import EngineConfig
from graphspec.errors import (
    CacheError,
    CacheUnusableError,
    CompileError,
    NondeterministicError,
    OfflineMissError,
    Problem,
)
from support import toy

GOOD, BAD = b"library of ", b"does not load"


class Compiler:
    """Gives `library` for every unit, and counts."""

    def __init__(self, library=GOOD):
        self.library = library
        self.compiled = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def compile(self, unit, traced):
        self.compiled.append(unit.name)
        return Compiled(
            library=self.library + unit.name.encode(), seconds=2.0, provenance={"compiler": "none"}
        )


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that takes no time, and a loader that refuses libraries which begin with BAD."""
    made = Compiler()
    monkeypatch.setattr(load.CompileRun, "_compiler", lambda run: made)

    def loaded(entry, *, single_threaded):
        if bytes(entry.payload).startswith(BAD):
            raise CacheError(Problem(where="unit", found="its library does not load", wanted="one"))
        return bytes(entry.payload)

    monkeypatch.setattr(artifact, "load_artifact", loaded)
    return made


@pytest.fixture
def units(tiny_spec):
    """The two units of the toy program."""
    return toy.program(tiny_spec).units()


@pytest.fixture
def root(tmp_path):
    """A cache folder that is not there yet."""
    return str(tmp_path / "cache")


def run(units, spec, root, store=None, **options):
    return load_or_compile(units, spec, store or DiskStore(root), KeyLocks(root), **options)


def outcomes(results):
    return [(r.outcome, r.compiled) for r in results]


def test_a_miss_is_compiled_and_stored_and_then_a_hit(units, tiny_spec, root, compiler):
    """The second start compiles nothing and says what it saved."""
    artifacts, results = run(units, tiny_spec, root)
    assert outcomes(results) == [(Outcome.MISS, True)] * 2
    assert artifacts == {"scale": b"library of scale", "mix": b"library of mix"}
    again, results = run(units, tiny_spec, root)
    assert outcomes(results) == [(Outcome.HIT, False)] * 2
    assert again == artifacts
    assert all(1.0 < r.seconds_saved <= 2.0 for r in results)
    assert len(compiler.compiled) == 2


def test_an_entry_that_does_not_load_is_stale_and_is_replaced_once(
    units, tiny_spec, root, compiler
):
    """Whole, of the very key, and of no use here: set aside with its reason, compiled anew, and a hit at the next start."""
    store = DiskStore(root)
    for keyed in keyed_units(units, tiny_spec):
        metadata = {"unit": keyed.unit.name, "compile_seconds": 1.0}
        store.put(Entry(key=keyed.key, metadata=metadata, payload=BAD))
    _, results = run(units, tiny_spec, root)
    assert outcomes(results) == [(Outcome.STALE, True)] * 2
    assert {r.reason for r in results} == {"its library does not load"}
    _, results = run(units, tiny_spec, root)
    assert outcomes(results) == [(Outcome.HIT, False)] * 2


def test_a_library_that_does_not_load_is_never_stored(units, tiny_spec, root, compiler):
    """It is loaded before it is published: the next start does not find it."""
    compiler.library = BAD
    with pytest.raises(CacheError, match="does not load"):
        run(units, tiny_spec, root)
    assert list(DiskStore(root).entries()) == []


class HeldLocks:
    """Locks that another process holds for good."""

    @contextlib.contextmanager
    def try_lock(self, key):
        yield False


def test_a_lock_that_is_held_too_long_is_locked_out_and_compiled(units, tiny_spec, root, compiler):
    """After the stated wait this process compiles too; the outcome says how long it waited."""
    store = DiskStore(root)
    _, results = load_or_compile(units, tiny_spec, store, HeldLocks(), lock_wait_seconds=0)
    assert outcomes(results) == [(Outcome.LOCKED_OUT, True)] * 2
    assert all("has held the unit's lock for" in r.reason for r in results)


class Forgetful:
    """Finds nothing, and has other bytes under every key all the same, as after a race."""

    def get(self, key):
        return Lookup(outcome=Outcome.MISS, reason="nothing is stored under this key")

    def put(self, entry):
        return Stored(written=False, differs=True)


def test_a_second_writer_with_other_bytes_is_told(units, tiny_spec, root, compiler):
    """The first entry stays. The unit is marked, and strict mode raises with its name and key."""
    _, results = run(units, tiny_spec, root, Forgetful())
    assert [r.differs for r in results] == [True, True]
    with pytest.raises(NondeterministicError, match="unit scale: found other bytes") as caught:
        run(units, tiny_spec, root, Forgetful(), strict=True)
    assert keyed_units(units, tiny_spec)[0].key.digest in str(caught.value)


def test_a_cache_that_is_switched_off_reads_and_writes_nothing(units, tiny_spec, root, compiler):
    """Each unit is compiled at each start with the outcome disabled, and that is no problem."""
    store = DisabledStore("the cache is switched off")
    for _ in range(2):
        _, results = run(units, tiny_spec, root, store)
        assert outcomes(results) == [(Outcome.DISABLED, True)] * 2
        assert {r.store_problem for r in results} == {""}
    assert list(DiskStore(root).entries()) == []


def test_a_cache_that_is_not_trusted_is_a_problem_and_strict_refuses(
    units, tiny_spec, root, compiler
):
    """What could not be stored for a reason carries it, and `strict` makes it an error."""
    store = DisabledStore("others may write there", problem=True)
    _, results = run(units, tiny_spec, root, store)
    assert outcomes(results) == [(Outcome.DISABLED, True)] * 2
    assert {r.store_problem for r in results} == {"others may write there"}
    with pytest.raises(CacheUnusableError, match="others may write there"):
        run(units, tiny_spec, root, store, strict=True)


def test_every_lookup_has_one_outcome_and_the_counts_add_up(units, tiny_spec, root, compiler):
    """One unit hits and one is corrupt: two outcomes, two units."""
    run(units, tiny_spec, root)
    store = DiskStore(root)
    first, _ = keyed_units(units, tiny_spec)
    with open(store.path_of(first.key), "r+b") as file:
        file.truncate(50)
    _, results = run(units, tiny_spec, root)
    counts = outcome_counts(results)
    assert counts == {"corrupt": 1, "hit": 1}
    assert sum(counts.values()) == len(results)


def test_a_compile_that_fails_leaves_no_entry(units, tiny_spec, root, compiler, monkeypatch):
    """The error is the compiler's, nothing is stored, and a good compiler succeeds afterwards."""

    def boom(unit, traced):
        raise CompileError(Problem(where="unit scale", found="boom", wanted="a library"))

    monkeypatch.setattr(compiler, "compile", boom)
    with pytest.raises(CompileError, match="boom"):
        run(units, tiny_spec, root)
    assert list(DiskStore(root).entries()) == []
    monkeypatch.undo()


def test_offline_names_each_missing_unit_with_its_key(units, tiny_spec, root, compiler):
    """Nothing is compiled. Each unit has its key, the folder, and what is known of the reason."""
    with pytest.raises(OfflineMissError) as caught:
        run(units, tiny_spec, root, offline=root)
    assert [p.where for p in caught.value.problems] == ["unit scale", "unit mix"]
    for problem, keyed in zip(caught.value.problems, keyed_units(units, tiny_spec), strict=True):
        assert f"under {keyed.key.digest} in {root}: nothing is stored" in problem.found
        assert "nothing like it is stored" in problem.hint
    assert compiler.compiled == []


def test_offline_explains_a_miss_by_the_nearest_entry(
    units, tiny_config, tiny_spec, root, compiler
):
    """The field that differs is named with its old and its new value."""
    run(units, tiny_spec, root)
    changed = tiny_config()
    changed["model"] = {**changed["model"], "hf_overrides": {"rms_norm_eps": 0.5}}
    other = EngineConfig.from_dict(changed).resolve()
    with pytest.raises(OfflineMissError) as caught:
        run(toy.program(other).units(), other, root, offline=root)
    (problem,) = caught.value.problems
    assert problem.where == "unit scale"
    assert "model.rms_norm_eps: stored 1e-05, wanted 0.5" in problem.hint
    assert len(compiler.compiled) == 2


def test_offline_serves_what_is_stored(units, tiny_spec, root, compiler):
    """With every unit in the folder, offline is as any other start."""
    run(units, tiny_spec, root)
    _, results = run(units, tiny_spec, root, offline=root)
    assert outcomes(results) == [(Outcome.HIT, False)] * 2


@pytest.mark.parametrize(
    ("config", "variable", "forbidden"),
    [
        (False, None, False),
        (True, None, True),
        (False, "1", True),
        (False, "0", False),
        (True, "0", True),
    ],
)
def test_offline_comes_from_the_config_or_the_environment(
    root, monkeypatch, config, variable, forbidden
):
    """Either forbids compiling; 0 and nothing in the environment leave the config's word."""
    monkeypatch.delenv(OFFLINE, raising=False)
    if variable is not None:
        monkeypatch.setenv(OFFLINE, variable)
    opened = open_cache(CacheConfig(offline=config), root)
    assert opened.offline == (root if forbidden else None)
