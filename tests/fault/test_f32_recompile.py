"""F32: units of the golden specs are compiled anew and compared with what is stored: equal keys give equal bytes."""

import json

import pytest
import yaml

from graphspec.cache import load
from graphspec.cache.compiling import compiler
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.compiling.fingerprint import graph_lines
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import NoLocks
from graphspec.cache.load import load_or_compile
from graphspec.cache.loading import artifact
from graphspec.cache.recompile import recompile
from graphspec.capture.program import load_program
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.device import Target
from graphspec.fields import evolve
from support import toy
from support.golden_specs import NAMES, golden_spec
from support.warmups import warm


class GraphCompiler:
    """Its library is all that the real one would be given: the text of the graph, the flags and the options."""

    def __init__(self, flags, options, device):
        self._given = (flags, sorted(options.items()), device)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def compile(self, unit, traced):
        text = "\n".join((*graph_lines(traced.program), str(self._given)))
        return Compiled(library=text.encode(), seconds=1.0, provenance={"compiler": "none"})


@pytest.fixture
def without_a_compiler(monkeypatch):
    """Units are traced as ever, and their graphs stand for libraries."""

    def compiler_of(run):
        device = run._spec.device
        return GraphCompiler(compiler_flags(device), compiler_options(device), device.target.value)

    monkeypatch.setattr(load.CompileRun, "_compiler", compiler_of)
    monkeypatch.setattr(compiler, "Compiler", GraphCompiler)
    monkeypatch.setattr(artifact, "load_artifact", lambda entry, *, single_threaded: entry.payload)


@pytest.fixture
def specs(tmp_path):
    """The golden specs for a CPU."""
    made = [golden_spec(name, tmp_path / "model") for name in NAMES]
    return [spec for spec in made if spec.device.target is Target.CPU]


def recompiled(specs, program, store):
    """What a second compile of each unit gives, after a first one has stored it."""
    given = [evolve(spec, program=program) for spec in specs]
    given = [(spec, load_program(spec).units()) for spec in given]
    for spec, units in given:
        load_or_compile(units, spec, store, NoLocks())
    return [result for spec, units in given for result in recompile(units, spec, store)]


def test_F32_golden_specs_traced_anew_give_the_bytes_that_are_stored(
    specs, tmp_path, without_a_compiler
):
    """A unit that reads all of each spec: what the compiler is given the second time is what it was given the first."""
    store = DiskStore(str(tmp_path / "cache"))
    results = recompiled(specs, "support.small_units:everything", store)
    assert [result.reason for result in results] == [""] * len(specs)
    assert len({result.key for result in results}) == len(specs) > 3


def test_F32_a_unit_that_compiles_otherwise_each_time_is_told(specs, tmp_path, without_a_compiler):
    """Its graph holds the time of day: the two differ, and the first byte that does is named."""
    store = DiskStore(str(tmp_path / "cache"))
    (result,) = recompiled(specs[:1], "support.audited:restless", store)
    assert "stored bytes differ, the first at" in result.reason or "instead of" in result.reason
    assert result.first is not None


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", ["support.small_units:everything", toy.NAME])
def test_F32_golden_specs_compiled_anew_give_the_bytes_that_are_stored(specs, tmp_path, program):
    """The same with inductor and the C++ compiler, in other processes and folders than the first time."""
    results = recompiled(specs, program, DiskStore(str(tmp_path / "cache")))
    assert [result.reason for result in results] == [""] * len(results)
    assert all(result.bytes > 1000 for result in results)


@pytest.mark.deep
@pytest.mark.slow
def test_F32_the_command_recompiles_a_unit_that_another_process_has_stored(
    capsys, tmp_path, tiny_config, shared_cache
):
    """Compiled by a warmup in one process and by the command in another, in other folders: byte for byte the same."""
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    code, _, err = warm(config, shared_cache)
    assert code == 0, err
    before = {p: p.stat() for p in (shared_cache / "entries").rglob("*.entry")}
    command = ["cache", "verify", "--recompile", "--config", str(config), "--unit", "scale"]
    code = run(_root, [*command, "--json", "--cache-dir", str(shared_cache)])
    (scale,) = json.loads(capsys.readouterr().out)["units"]
    assert (code, scale["reason"], scale["equal"]) == (0, "", True)
    assert scale["bytes"] == scale["stored_bytes"] > 1000
    assert scale["seconds"] > 0.1
    for path, facts in before.items():
        assert path.stat().st_ino == facts.st_ino
