"""Unit keys: everything that the compiled code depends on moves the key, and nothing else does."""

import importlib
import sys

import attrs
import pytest

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput, unit_key
from graphspec.config.device import CpuIsa, DeviceProfile
from graphspec.config.engine import EngineConfig
from graphspec.errors import KeyFactorError, UndeclaredFactorError
from graphspec.keys.encoding import decode
from graphspec.keys.factors import digest
from graphspec.keys.scope import Scope
from support.checkpoints import TINY, write_checkpoint
from support.toy import build_scale

CHAIN = {"torch": "2.13.0", "python": "cpython 3.11"}
DEVICE = DeviceProfile(kind="cpu", name="x86_64", capability=("avx2", "fma"))
OPTIONS = {"cpp.simdlen": 256, "flags": ("-O2",)}
ROWS = DynamicDim(name="rows", maximum=32)
UNIT = CompileUnit(
    name="scale",
    scope=Scope(("model.rms_norm_eps",)),
    modules=("support.toy",),
    build=build_scale,
    inputs=(TensorInput(name="x", shape=(ROWS, 8), dtype="float32"),),
)


def key(unit, spec, toolchain=CHAIN, device=DEVICE, options=OPTIONS):
    return unit_key(unit, spec, toolchain=toolchain, device=device, options=options)


def with_input(**changes):
    return attrs.evolve(UNIT, inputs=(attrs.evolve(UNIT.inputs[0], **changes),))


def rows(**changes):
    return with_input(shape=(attrs.evolve(ROWS, **changes), 8))


UNITS = {
    "name": attrs.evolve(UNIT, name="other"),
    "scope": attrs.evolve(UNIT, scope=Scope(("model.rms_norm_eps", "model.hidden_size"))),
    "input name": with_input(name="y"),
    "dtype": with_input(dtype="float16"),
    "size": with_input(shape=(ROWS, 16)),
    "rank": with_input(shape=(ROWS, 8, 1)),
    "static for dynamic": with_input(shape=(32, 8)),
    "dimension name": rows(name="tokens"),
    "dimension minimum": rows(minimum=2),
    "dimension maximum": rows(maximum=64),
    "another input": attrs.evolve(UNIT, inputs=UNIT.inputs * 2),
    "modules": attrs.evolve(UNIT, modules=("support.toy", "support.checkpoints")),
}


@pytest.mark.parametrize("other", UNITS.values(), ids=UNITS)
def test_each_part_of_a_unit_moves_its_key(tiny_spec, other):
    """A unit that differs in one declared thing has another key."""
    assert key(other, tiny_spec).digest != key(UNIT, tiny_spec).digest


CONTEXTS = {
    "toolchain version": {"toolchain": {**CHAIN, "torch": "2.13.1"}},
    "toolchain part": {"toolchain": {**CHAIN, "triton": None}},
    "device name": {"device": attrs.evolve(DEVICE, name="aarch64")},
    "device kind": {"device": attrs.evolve(DEVICE, kind="cuda")},
    "device features": {"device": attrs.evolve(DEVICE, capability=("avx2",))},
    "device processors": {"device": attrs.evolve(DEVICE, multiprocessors=132)},
    "device memory": {"device": attrs.evolve(DEVICE, memory_bytes=1 << 37)},
    "device warp": {"device": attrs.evolve(DEVICE, warp_size=32)},
    "option": {"options": {**OPTIONS, "cpp.simdlen": 512}},
    "flag": {"options": {**OPTIONS, "flags": ("-O2", "-march=x86-64-v3")}},
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_toolchain_device_and_options_move_the_key(tiny_spec, context):
    """Another compiler, another device or another setting is another entry."""
    assert key(UNIT, tiny_spec, **context).digest != key(UNIT, tiny_spec).digest


def test_a_value_in_scope_moves_the_key_and_one_outside_does_not(tiny_spec):
    """The key covers the declared part of the spec, so that one unit serves specs that differ elsewhere."""
    inside = attrs.evolve(tiny_spec, model=attrs.evolve(tiny_spec.model, rms_norm_eps=1e-6))
    outside = attrs.evolve(tiny_spec, model=attrs.evolve(tiny_spec.model, vocab_size=97))
    assert key(UNIT, inside).digest != key(UNIT, tiny_spec).digest
    assert key(UNIT, outside) == key(UNIT, tiny_spec)
    whole = attrs.evolve(UNIT, scope=Scope(("model",)))
    assert key(whole, outside).digest != key(whole, tiny_spec).digest


def test_a_scope_path_that_names_nothing_is_refused(tiny_spec):
    """A typing error in a scope does not become a key that covers less."""
    for path in ("model.rms_norm", "mode", "scheduler.max_num_seqs"):
        with pytest.raises(UndeclaredFactorError, match=path):
            key(attrs.evolve(UNIT, scope=Scope((path,))), tiny_spec)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes and imports a module of one build function; gives the unit of it and the file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "graphspec_test_unit_code.py"
    path.write_text("def build(spec):\n    return lambda x: x + 1\n")
    importlib.invalidate_caches()
    made = importlib.import_module("graphspec_test_unit_code")
    yield attrs.evolve(UNIT, modules=(), scope=Scope(()), build=made.build), path
    del sys.modules["graphspec_test_unit_code"]


def test_source_content_moves_the_key(tiny_spec, module):
    """A changed file of the unit's code is another key, also of the file that is not listed but holds `build`."""
    unit, path = module
    before = key(unit, tiny_spec)
    path.write_text(path.read_text().replace("+ 1", "+ 2"))
    after = key(unit, tiny_spec)
    assert after.digest != before.digest
    path.write_text(path.read_text().replace("+ 2", "+ 1"))
    assert key(unit, tiny_spec) == before


def test_the_home_of_build_is_always_among_the_modules():
    """Whoever forgets to list the module that `build` is in has it in the key all the same, once."""
    assert attrs.evolve(UNIT, modules=()).own_modules == ("support.toy",)
    assert UNIT.own_modules == ("support.toy",)


def test_a_module_without_a_file_is_refused(tiny_spec):
    """A listed module whose code cannot be digested is an error that names it."""
    with pytest.raises(KeyFactorError, match="graphspec_no_such_module"):
        key(attrs.evolve(UNIT, modules=("graphspec_no_such_module",)), tiny_spec)


def test_where_things_lie_does_not_move_the_key(tiny_config, tiny_spec, tmp_path, monkeypatch):
    """Folder of the weights, cache folder, working directory, home and user variables are in no key."""
    before = [key(u, tiny_spec) for u in (UNIT, attrs.evolve(UNIT, scope=Scope(("model",))))]
    source = write_checkpoint(tmp_path / "weights elsewhere", TINY)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "GRAPHSPEC_CACHE_DIR": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "USER": "someone",
        "CXX": "clang++",
    }.items():
        monkeypatch.setenv(name, value)
    config = tiny_config(model={"source": str(source), "max_model_len": 128})
    spec = EngineConfig.from_dict(config).resolve()
    assert [key(u, spec) for u in (UNIT, attrs.evolve(UNIT, scope=Scope(("model",))))] == before
    for made in before:
        assert str(tmp_path.parent).encode() not in made.text


def test_the_order_of_mappings_does_not_move_the_key(tiny_spec):
    """Toolchain and options are compared by content, not by the order in which they were collected."""
    turned = {
        "toolchain": dict(reversed(CHAIN.items())),
        "options": dict(reversed(OPTIONS.items())),
    }
    assert key(UNIT, tiny_spec, **turned) == key(UNIT, tiny_spec)


def test_the_key_text_can_be_read_back(tiny_spec):
    """The text of a key says what it covers, and its digest is that of the text."""
    made = key(UNIT, tiny_spec)
    content = decode(made.text)
    assert content["unit"] == "scale"
    assert content["scope"]["model.rms_norm_eps"] == 1e-5
    assert content["signature"] == [
        {"name": "x", "dtype": "float32", "shape": [("rows", 1, 32), 8]}
    ]
    assert content["toolchain"] == CHAIN
    assert made.digest == digest(made.text)


def test_the_device_section_reaches_the_key_through_options(tiny_spec):
    """Which CPU features the compiler may use is in the key by way of flags and settings."""
    from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options

    keys = set()
    for isa in CpuIsa:
        device = attrs.evolve(tiny_spec.device, isa=isa)
        options = {**compiler_options(device), "flags": compiler_flags(device)}
        keys.add(key(UNIT, tiny_spec, options=options).digest)
    assert len(keys) == len(CpuIsa)
