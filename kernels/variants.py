"""Everything that Triton would compile of graphspec's kernels, listed before any of it runs.

A module of this package whose name ends in ``_gpu`` or ``_triton`` has a function ``variants()``: one mapping for each
compiled form that its launches can ask for, with ``name``, ``kernel``, ``signature`` (argument -> Triton type),
``constexprs`` and, where they are not Triton's defaults, ``options`` such as ``num_warps``: the same that a launch gives.
"""

import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.errors import KernelError, Problem

PACKAGE = "graphspec.kernels"
_ENDINGS = ("_gpu", "_triton")

Option = int | bool | str


@attrs.frozen(kw_only=True)
class Variant:
    """One compiled form of a kernel: its types and constants are fixed, its target is not.

    `signature` has the Triton type of each argument that is not a constant. `kernel` is the function that
    ``triton.jit`` made, `module` where it is written.
    """

    name: str
    module: str
    kernel: Any = attrs.field(repr=False, eq=False)
    signature: Mapping[str, str]
    constexprs: Mapping[str, Option]
    options: Mapping[str, Option] = attrs.field(factory=dict)

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each argument in the kernel's order, as Triton writes it at a launch; a constant has ``constexpr``."""
        return {name: self.signature.get(name, "constexpr") for name in self.kernel.arg_names}


def kernel_modules() -> Sequence[str]:
    """Dotted names of the modules that hold Triton kernels, sorted."""
    folder = os.path.dirname(__file__)
    return sorted(
        f"{PACKAGE}.{info.name}"
        for info in pkgutil.iter_modules([folder])
        if info.name.endswith(_ENDINGS)
    )


def all_variants() -> Sequence[Variant]:
    """Every variant of every kernel. Imports torch and triton.

    Raises `KernelError` for variants that a launch could leave: see `variant_problems`.
    """
    return variants_of(kernel_modules())


def variants_of(modules: Sequence[str]) -> Sequence[Variant]:
    """The variants of some modules, in their order, checked as `all_variants` does it."""
    found = [v for name in modules for v in _listed(name)]
    problems = [p for v in found for p in variant_problems(v)]
    names = [v.name for v in found]
    problems += [
        Problem(where=f"variant {name}", found="two of this name", wanted="one")
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if problems:
        raise KernelError(problems)
    return found


def _listed(module: str) -> Iterator[Variant]:
    for listed in importlib.import_module(module).variants():
        kernel = listed["kernel"]
        if not hasattr(kernel, "cache_key"):
            raise KernelError(
                Problem(
                    where=f"kernel {listed['name']}",
                    found="a function that Triton interprets (TRITON_INTERPRET was set when it was loaded)",
                    wanted="one that it compiles",
                    hint="run the command without TRITON_INTERPRET",
                )
            )
        yield Variant(
            name=listed["name"],
            module=module,
            kernel=kernel,
            signature=dict(listed["signature"]),
            constexprs=dict(listed["constexprs"]),
            options=dict(listed.get("options", {})),
        )


def variant_problems(variant: Variant) -> Iterator[Problem]:
    """Why a launch could ask for more than the variant that is listed, or for nothing that is.

    Triton compiles a kernel anew for an integer that is 1, and for an integer or a pointer that 16 divides, unless the
    kernel forbids it for that argument. Which of those a batch has shows at the first request that has it: a compile in
    the middle of serving. So each argument is either a constant or not specialised on at all.
    """
    where = f"variant {variant.name}"
    arguments = list(variant.kernel.arg_names)
    given = [*variant.signature, *variant.constexprs]
    if sorted(given) != sorted(arguments):
        yield Problem(
            where=where,
            found=f"types or values for {', '.join(given)}",
            wanted=f"one for each of {', '.join(arguments)}",
        )
        return
    for parameter in variant.kernel.params:
        if parameter.is_constexpr != (parameter.name in variant.constexprs):
            kind = "a constant" if parameter.is_constexpr else "no constant"
            yield Problem(
                where=f"{where}, argument {parameter.name}",
                found=f"{kind} in the kernel",
                wanted="the same in the list",
            )
        elif not parameter.is_constexpr and not (
            parameter.do_not_specialize and parameter.do_not_specialize_on_alignment
        ):
            yield Problem(
                where=f"{where}, argument {parameter.name}",
                found="a kernel that is compiled anew for 1 or for multiples of 16",
                wanted="one form for every value",
                hint="name it in do_not_specialize and do_not_specialize_on_alignment",
            )
