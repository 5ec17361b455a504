"""Functions that numba compiles for this processor: compiled once, kept as plain bytes, and loaded without compiling.

numba's own `cache=True` stays off. Its files are keyed by the file of a function and by neither the functions that it calls
nor the settings of the compiler, lie beside the sources, and are pickles. Here a group of functions has one list of
modules, whose content its key covers, and its bytes hold object code and names and nothing that runs when it is read.

Where the bytes lie is not this module's business: `keep_host_code` names who knows. Without one, code is compiled in each
process anew.
"""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from graphspec.errors import KernelError, KeyFactorError, Problem
from graphspec.keys.encoding import decode, encode

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "ENABLE_AVX"),
    *("DISABLE_INTEL_SVML", "USING_SVML", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS"),
    *("EXTEND_VARIABLE_LIFETIMES", "DISABLE_JIT"),
)
"""What of numba's configuration can change compiled code. The processor's name and features have their own place."""


def part(**options: Any) -> Callable[[F], F]:
    """Decorates a function that compiled code calls, with the types of each call. It gets no wrappers."""
    import numba

    # numba's own types do not know the options that leave wrappers out.
    njit: Any = numba.njit
    decorate: Callable[[F], F] = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    return decorate


class HostCode:
    """Functions of one kernel that are compiled together, and how to make this process ready to call them.

    `modules` are dotted names of all modules whose code or constants are compiled in.
    """

    def __init__(self, name: str, *modules: str) -> None:
        self.name = name
        self.modules = modules
        self._made: list[tuple[Any, Any]] = []
        self._entries: dict[str, Any] = {}
        self._ready: Mapping[str, Callable[..., Any]] | None = None
        self._code: bytes | None = None
        self._guard = threading.RLock()
        self.compile_seconds = 0.0
        """What compiling took: here, or where the code was compiled that is kept."""

    def inner(self, signature: Any, **options: Any) -> Callable[[F], F]:
        """Decorates a function that only the group's compiled code calls.

        It gets no wrappers, and so compiles in three quarters of the time (measured).
        """
        return self._decorate(
            signature, False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
        )

    def entry(self, signature: Any, **options: Any) -> Callable[[F], F]:
        """Decorates a function that Python calls, through what `ready` returns under its name."""
        return self._decorate(signature, True, no_cfunc_wrapper=True, **options)

    def _decorate(self, signature: Any, entry: bool, **options: Any) -> Callable[[F], F]:
        import numba

        # numba's own types do not know the options that leave wrappers out.
        njit: Any = numba.njit

        def decorate(function: F) -> F:
            made: F = njit(nogil=True, **options)(function)
            self._made.append((made, signature))
            if entry:
                self._entries[function.__name__] = made
            return made

        return decorate

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Arguments and result of each function, as numba's types."""
        return {made.py_func.__name__: signature for made, signature in self._made}

    @property
    def is_ready(self) -> bool:
        """Whether this process can call the functions."""
        return self._ready is not None

    def ready(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that Python calls, by name: loaded or compiled now, if that was not done before.

        They check the number of arguments and the size of an array's items, not their types.
        """
        with self._guard:
            if self._ready is None:
                _keeper[0](self)
                # Nobody keeps it, or whoever does has left it alone.
                self.compile()
            return self._ready or {}

    def compile(self) -> None:
        """Compiles the functions, unless they are ready. Nothing compiles later: a call of other types is a TypeError."""
        with self._guard:
            if self._ready is not None:
                return
            began = time.perf_counter()
            for made, signature in self._made:
                if not made.overloads:
                    made.compile(signature)
                made.disable_compile()
            self.compile_seconds = time.perf_counter() - began
            self._ready = {
                name: next(iter(made.overloads.values())).entry_point
                for name, made in self._entries.items()
            }

    def code(self) -> bytes:
        """What `load` takes, of functions that are ready."""
        with self._guard:
            if self._code is None:
                self._code = encode({n: _packed(made) for n, made in self._entries.items()})
            return self._code

    def load(self, code: bytes | memoryview, compile_seconds: float = 0.0) -> None:
        """Makes the functions ready from their bytes, unless they are. Raises `KernelError` for bytes that are no such code.

        Only for bytes that were verified, of a key that has this processor and this numba in it: they are run as they are.
        """
        with self._guard:
            if self._ready is not None:
                return
            try:
                packed: Any = decode(bytes(code))
                if set(packed) != set(self._entries):
                    raise ValueError(f"functions {sorted(packed)}")
                ready = {n: _loaded(packed[n], made.py_func) for n, made in self._entries.items()}
            except (KeyFactorError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise KernelError(
                    Problem(
                        where=f"compiled code of kernel {self.name}",
                        found=f"{type(error).__name__}: {error}",
                        wanted=f"the functions {', '.join(sorted(self._entries))}",
                    )
                ) from error
            for made in self._entries.values():
                # Nothing may compile at a call either way; numba's own method wants a compiled form to be there.
                made._can_compile = False
            self._ready, self._code = ready, bytes(code)
            self.compile_seconds = compile_seconds


Keeper = Callable[[HostCode], None]
"""Makes a group ready, from bytes or by compiling it; or does nothing, and the group compiles itself."""


def _nobody(group: HostCode) -> None:
    """Keeps nothing."""


_keeper: list[Keeper] = [_nobody]


def keep_host_code(keeper: Keeper | None) -> Keeper:
    """From now on `keeper` makes groups ready, in this process; None: each is compiled. Returns who did it before."""
    before, _keeper[0] = _keeper[0], keeper or _nobody
    return before


def nobody_keeps() -> bool:
    """Whether groups are compiled in this process each time, since nobody was named to keep them."""
    return _keeper[0] is _nobody


def compiler_facts() -> Mapping[str, Any]:
    """Versions and settings that decide what a function compiles to, and whether it can be loaded. Imports numba."""
    import llvmlite  # type: ignore[import-untyped]
    import numba
    import numpy

    config: Any = numba.config
    return {
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
        # As in the keys of units, so that both are of this installation or of another for the same reason.
        "python": f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}",
        "abi": f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}",
        "settings": {name: repr(getattr(config, name, None)) for name in _SETTINGS},
    }


def processor() -> tuple[str, str, Sequence[str]]:
    """Target, name and features of the processor that functions are compiled for. Imports numba."""
    target, name, features = _codegen().magic_tuple()
    return str(target), str(name), sorted(str(features).split(","))


def _codegen() -> Any:
    from numba.core.registry import cpu_target

    context: Any = cpu_target.target_context
    context.refresh()
    return context.codegen()


def _packed(made: Any) -> Mapping[str, Any]:
    """Object code and names of a compiled function, as plain values."""
    (compiled,) = made.overloads.values()
    environments = compiled._find_referenced_environments()
    # Constants of an environment are Python objects. Our functions have none, and what has some cannot be kept as bytes.
    assert not compiled.library.has_dynamic_globals, made
    assert not any(e.consts for e in environments), made
    library, kind, (code, bitcode) = compiled.library.serialize_using_object_code()
    assert kind == "object", kind
    return {
        "library": str(library),
        "wrapper": str(compiled.fndesc.llvm_cpython_wrapper_name),
        "environment": str(compiled.environment.env_name),
        "environments": sorted(str(e.env_name) for e in environments),
        "object": bytes(code),
        "bitcode": bytes(bitcode),
    }


def _loaded(packed: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that Python calls, from what `_packed` made of it."""
    from numba.core.environment import Environment

    codegen, dynamic = _codegen(), importlib.import_module("numba._dynfunc")
    state = (packed["library"], "object", (packed["object"], packed["bitcode"]))
    library = codegen.unserialize_library(state)
    address = library.get_pointer_to_function(packed["wrapper"])
    if not address:
        raise ValueError(f"no function {packed['wrapper']}")
    environments = {}
    for name in {packed["environment"], *packed["environments"]}:
        environments[name] = _as_any(Environment)(function.__globals__)
        environments[name].env_name = name
        codegen.set_env(name, environments[name])
    made: Callable[..., Any] = dynamic.make_function(
        sys.modules[function.__module__],
        function.__name__,
        f"{function.__qualname__}, compiled by numba",
        address,
        environments[packed["environment"]],
        # Kept as long as the function is.
        (library, *environments.values()),
    )
    return made


def _as_any(value: Any) -> Any:
    """For what numba has no types of."""
    return value
