"""Which function builds a unit, which variables it declares and which libraries it calls are parts of its key."""

import functools
import json
import os
import re
import shutil
import sys

import attrs
import pytest
import torch

from graphspec.cache.builds import build_identity
from graphspec.cache.compiling.compiler import _outside_operators
from graphspec.cache.native import NativeLibrary, library_digests
from graphspec.cache.units import CompileUnit, TensorInput, unit_key
from graphspec.config.device import DeviceProfile
from graphspec.errors import KeyFactorError
from graphspec.keys.encoding import decode, encode
from graphspec.keys.scope import Scope
from support import toy

UNIT = CompileUnit(
    name="probe",
    scope=Scope(()),
    modules=("support.toy",),
    build=toy.build_mix,
    inputs=(TensorInput(name="x", shape=(2, 8), dtype="float32"),),
)


def key(unit, spec):
    device = DeviceProfile(kind="cpu", name="x86_64", capability=())
    return unit_key(unit, spec, toolchain={}, device=device, options={})


def built(build, spec):
    return key(attrs.evolve(UNIT, build=build, modules=("support.toy", __name__)), spec)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Makes this file a module that can be listed."""
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    if __name__ not in sys.modules:
        monkeypatch.setitem(sys.modules, __name__, sys.modules["__main__"])


def layer(spec, index=0, *, scale=1.0):
    return lambda x: x * scale + index


def closed(index, more=None):
    def build(spec):
        return layer(spec, index) if more is None else more(spec)

    return build


class Engine:
    def __init__(self):
        self.depth = 3

    def build(self, spec):
        return layer(spec, self.depth)


LAMBDAS = [lambda spec: abs, lambda spec: bool]


def identities(*builds):
    return {encode(build_identity(build)) for build in builds}


def test_another_function_is_another_identity():
    """Two functions of one module, and two without a name in one line, are told apart."""
    assert len(identities(toy.build_mix, toy.build_scale, *LAMBDAS)) == 4


def test_what_a_build_function_holds_is_part_of_it():
    """Arguments of a partial, defaults, closures, closures of what is held: a loop over layers gives several keys."""
    partials = [functools.partial(layer, index=i) for i in range(3)]
    nested = [functools.partial(functools.partial(layer, scale=2.0), index=i) for i in range(2)]
    positional = [functools.partial(closed(9, layer), i) for i in range(2)]
    closures = [closed(i) for i in range(3)] + [closed(0, closed(i)) for i in range(2)]
    builds = [*partials, *nested, *positional, *closures, layer]
    assert len(identities(*builds)) == len(builds)
    assert identities(closed(1), closed(2)) == identities(closed(2), closed(1))
    assert len(identities(closed(1), closed(True), closed(1.0), closed("1"))) == 4


def test_a_build_function_that_was_made_twice_is_one():
    """Equal values make equal keys, whichever objects they are."""
    assert len(identities(closed(1), closed(1))) == 1
    assert (
        len(identities(functools.partial(layer, index=1), functools.partial(layer, index=1))) == 1
    )
    assert len(identities(Engine().build, Engine().build)) == 1


def test_objects_that_may_change_are_left_out(tiny_spec):
    """Lists, a whole spec, self: not part of the key; reads of a spec past the view are for the audit to find."""
    calls = []
    identity = build_identity(closed(calls))
    calls.append(1)
    assert build_identity(closed(calls)) == identity
    assert build_identity(closed(tiny_spec))["holds"] == {"closed more": None}
    assert build_identity(Engine().build)["function"].endswith(":Engine.build")
    assert build_identity(Engine().build)["holds"] == {}


def test_functions_that_hold_each_other_end():
    """A function in its own closure is named once."""

    def build(spec):
        return build

    assert build_identity(build)["holds"]["closed build"]["holds"] == {}


def test_callable_objects_and_decorated_functions_have_an_identity():
    """An object with __call__ goes by its class, a wrapper by what it wraps as well."""

    class Maker:
        def __call__(self, spec):
            return abs

    @functools.wraps(toy.build_mix)
    def wrapper(spec):
        return toy.build_mix(spec)

    assert build_identity(Maker())["function"].endswith("Maker")
    assert build_identity(wrapper)["function"] == "support.toy:build_mix"
    assert len(identities(wrapper, toy.build_mix)) == 2


def test_the_home_of_a_partial_is_that_of_its_function():
    """The module that a partial's function is written in is declared by itself."""
    unit = attrs.evolve(UNIT, modules=(), build=functools.partial(toy.build_mix))
    assert unit.own_modules == ("support.toy",)


def test_the_build_function_moves_the_key(tiny_spec):
    """The engine may take one function or the other by a field that is in no scope."""
    assert key(UNIT, tiny_spec) != key(attrs.evolve(UNIT, build=toy.build_scale), tiny_spec)
    one, two = (attrs.evolve(UNIT, build=functools.partial(toy.build_mix, i)) for i in (1, 2))
    assert key(one, tiny_spec) != key(two, tiny_spec)


def test_declared_variables_are_in_the_key_by_value(tiny_spec, monkeypatch):
    """Set, empty and missing are three keys; which variables are declared counts too."""
    unit = attrs.evolve(UNIT, environment=("SUPPORT_SCALE",))
    keys = [key(UNIT, tiny_spec)]
    for value in (None, "", "2"):
        if value is None:
            monkeypatch.delenv("SUPPORT_SCALE", raising=False)
        else:
            monkeypatch.setenv("SUPPORT_SCALE", value)
        keys.append(key(unit, tiny_spec))
    assert len(set(keys)) == 4
    assert "environment" not in decode(keys[0].text)
    assert decode(keys[3].text)["environment"] == {"SUPPORT_SCALE": "2"}


def test_a_secret_cannot_be_declared(tiny_spec):
    """Its value would be stored in the key."""
    with pytest.raises(KeyFactorError, match="HF_TOKEN"):
        key(attrs.evolve(UNIT, environment=("HF_TOKEN",)), tiny_spec)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a library file in it; gives the file and its declaration."""
    folder = tmp_path / "graphspec_test_native"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    file = folder / "lib" / "libops.so"
    file.write_bytes(b"first build")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file, NativeLibrary(namespace="ops", file="graphspec_test_native:lib/libops.so")
    sys.modules.pop("graphspec_test_native", None)


def test_a_rebuilt_library_moves_the_key(tiny_spec, package, tmp_path, monkeypatch):
    """The content of the file counts, not where it lies or when it was written; its package is not imported."""
    file, library = package
    unit = attrs.evolve(UNIT, libraries=(library,))
    first = key(unit, tiny_spec)
    assert first != key(UNIT, tiny_spec)
    os.utime(file, (1, 1))
    assert key(unit, tiny_spec) == first
    moved = tmp_path / "elsewhere"
    shutil.copytree(file.parent.parent, moved / "graphspec_test_native")
    monkeypatch.syspath_prepend(str(moved))
    assert str(moved) in library.path()
    assert key(unit, tiny_spec) == first
    (moved / "graphspec_test_native" / "lib" / "libops.so").write_bytes(b"second build")
    assert key(unit, tiny_spec) != first
    assert "graphspec_test_native" not in sys.modules


def test_libraries_are_named_by_package_module_or_loaded_file(tmp_path, monkeypatch):
    """An extension module by its dotted name, and a file that torch has loaded by its bare name."""
    import _ctypes

    extension = NativeLibrary(namespace="ops", file="_ctypes")
    assert extension.path() == os.path.realpath(_ctypes.__file__)
    loaded = tmp_path / "libloaded.so"
    loaded.write_bytes(b"content")
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(loaded), "/other/libother.so"})
    library = NativeLibrary(namespace="ops", file="libloaded.so")
    assert library.path() == str(loaded)
    assert list(library_digests([library])) == ["ops"]


@pytest.mark.parametrize(
    "file",
    ["libmissing.so", "no_such_package:lib.so", "support:missing.so", "no_such_module", ":x"],
)
def test_a_library_that_is_not_there_is_named(file):
    """No file, no package, no module, not loaded: a KeyFactorError that says which."""
    with pytest.raises(KeyFactorError, match=re.escape(file)):
        library_digests([NativeLibrary(namespace="ops", file=file)])


def test_operators_that_a_library_would_look_for_beside_it_are_named(tmp_path):
    """Inductor leaves such operators to an interpreter, which a library that is loaded from memory does not have."""
    assert _outside_operators(str(tmp_path)) == []
    nodes = [{"name": "buf0", "node": {"target": target}} for target in ("b::op", "a::op", "b::op")]
    (tmp_path / "x.wrapper.json").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "x.wrapper_metadata.json").write_text(json.dumps({"AOTI_DEVICE_KEY": "cpu"}))
    assert _outside_operators(str(tmp_path)) == ["a::op", "b::op"]
