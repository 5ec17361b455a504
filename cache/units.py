"""`CompileUnit`: one thing to compile, with everything that its key must cover, and that key."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from graphspec.cache.builds import bare, build_identity
from graphspec.cache.native import NativeLibrary, library_digests
from graphspec.config.device import DeviceProfile
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.environment import declared_environment
from graphspec.keys.factors import digest
from graphspec.keys.scope import Scope
from graphspec.keys.source import source_digest

if TYPE_CHECKING:
    from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class DynamicDim:
    """A dimension that varies from call to call, from `minimum` to `maximum`, both included."""

    name: str
    minimum: int = 1
    maximum: int


@attrs.frozen(kw_only=True)
class TensorInput:
    """One tensor argument of a unit: contiguous, of fixed dtype, with static or dynamic dimensions.

    `dtype` is torch's name for it without the module: ``float32``, ``int64``.
    """

    name: str
    shape: tuple[int | DynamicDim, ...]
    dtype: str


@attrs.frozen(kw_only=True)
class CompileUnit:
    """One thing to compile.

    `build(spec)` returns the callable that is traced; it and what it returns may read only the fields in `scope`, and
    run only code of `modules` (dotted names) and the toolchain. The callable takes the `inputs` in order and returns
    a tensor or a tuple of tensors. Weights are inputs, so one unit serves all layers of equal shape.

    `environment` names variables that the unit's code may read: they are in its key by value. `libraries` are the files
    behind custom operators that it calls: they are in its key by content.
    """

    name: str
    scope: Scope
    modules: tuple[str, ...]
    build: Callable[[Any], Callable[..., Any]]
    inputs: tuple[TensorInput, ...]
    environment: tuple[str, ...] = ()
    libraries: tuple[NativeLibrary, ...] = ()

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The declared modules, and the one that `build` is written in."""
        home = inspect.getmodule(bare(self.build))
        name = home.__name__ if home is not None else ""
        if not name or name == "__main__" or name in self.modules:
            return self.modules
        return (*self.modules, name)


@attrs.frozen
class EntryKey:
    """Identity of a stored entry: canonical text, and its xxh3-128 in hexadecimal, which names the file.

    A digest that is anything else, such as a path that leads out of the folder, is a ValueError.
    """

    text: bytes
    digest: str = attrs.field(validator=attrs.validators.matches_re("[0-9a-f]{32}"))


def equal_but_for_name(one: CompileUnit, other: CompileUnit) -> bool:
    """Whether two units are one thing to compile: built by the very same function, and equal in all but the name."""
    # Two functions that are merely alike, such as methods of two layers, may each hold what no key has.
    same = one.build is other.build
    if not same and isinstance(one.build, MethodType):
        same = one.build == other.build
    return same and attrs.evolve(one, name=other.name, build=other.build) == other


class UnitSource(Protocol):
    """An object of the engine's that lists what there is to compile for one spec."""

    def units(self) -> Sequence[CompileUnit]:
        """Every unit, in the order in which a step first needs them."""
        ...


def signature(unit: CompileUnit) -> Sequence[Mapping[str, Any]]:
    """Names, dtypes and shapes of a unit's inputs as plain values; a dynamic dimension is (name, minimum, maximum)."""
    return [
        {
            "name": i.name,
            "dtype": i.dtype,
            "shape": [
                (d.name, d.minimum, d.maximum) if isinstance(d, DynamicDim) else d for d in i.shape
            ],
        }
        for i in unit.inputs
    ]


def unit_key(
    unit: CompileUnit,
    spec: "EngineSpec",
    *,
    toolchain: Mapping[str, Any],
    device: DeviceProfile,
    options: Mapping[str, Any],
) -> EntryKey:
    """The key of the compiled unit: its part of the spec, its code, its inputs, the toolchain and the device."""
    declared = {
        "environment": declared_environment(unit.environment),
        "libraries": library_digests(unit.libraries),
    }
    text = encode(
        {
            "epoch": EPOCH,
            "kind": "unit",
            "unit": unit.name,
            "build": build_identity(unit.build),
            "scope": unit.scope.factors(spec),
            "signature": signature(unit),
            "source": source_digest(unit.own_modules),
            "toolchain": toolchain,
            "device": device,
            "options": options,
            **{part: values for part, values in declared.items() if values},
        }
    )
    return EntryKey(text, digest(text))
