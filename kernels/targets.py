"""Compiling Triton kernels for a GPU that this machine need not have."""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import attrs

from graphspec.config.device import DeviceProfile
from graphspec.errors import CompileError, EnvironmentProblem, Problem, TargetError
from graphspec.kernels.resources import Resources, resources_of
from graphspec.kernels.variants import Variant

_ARCHITECTURE = {"cuda": re.compile(r"sm_([0-9]{2,3})"), "hip": re.compile(r"gfx[0-9a-f]{3,4}")}
_WIDE_WAVES = ("gfx9",)


@attrs.frozen
class GpuTarget:
    """A kind of GPU: ``cuda`` with ``sm_90``, or ``hip`` with ``gfx942``. All that a kernel's code depends on."""

    backend: str
    architecture: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``cuda:sm_90`` or ``hip:gfx942``. Raises `TargetError`.

        >>> GpuTarget.parse("cuda:sm_90")
        GpuTarget(backend='cuda', architecture='sm_90')
        """
        backend, _, architecture = text.partition(":")
        form = _ARCHITECTURE.get(backend)
        if form is None or not form.fullmatch(architecture):
            raise TargetError(
                Problem(
                    where="target",
                    found=repr(text),
                    wanted="a GPU, as in cuda:sm_90 or hip:gfx942",
                    hint="sm_90 is compute capability 9.0; rocminfo prints the gfx name of an AMD GPU",
                )
            )
        return cls(backend, architecture)

    def __str__(self) -> str:
        return f"{self.backend}:{self.architecture}"

    @property
    def warp_size(self) -> int:
        """Threads that run in step."""
        return 64 if self.architecture.startswith(_WIDE_WAVES) else 32

    def profile(self) -> DeviceProfile:
        """The device part of a kernel's key. No name, no memory, no multiprocessors: Triton's code depends on none of them,
        so that all devices of an architecture share an entry."""
        return DeviceProfile(
            kind=self.backend,
            name="",
            capability=(self.architecture,),
            warp_size=self.warp_size,
        )

    def for_triton(self) -> Any:
        """The same as a ``triton.backends.compiler.GPUTarget``."""
        from triton.backends.compiler import GPUTarget

        number = _ARCHITECTURE["cuda"].fullmatch(self.architecture)
        arch = int(number[1]) if number else self.architecture
        return GPUTarget(self.backend, arch, self.warp_size)


@attrs.frozen(kw_only=True)
class Binary:
    """A compiled variant: the bytes that the driver loads, and what is known of them.

    `facts` is what the compiler found out and a launch needs, such as the size of shared memory. Options and versions are
    not in it: the host that loads has its own, and its key says that they are equal.
    """

    payload: bytes = attrs.field(repr=False)
    facts: Mapping[str, Any]
    resources: Resources
    seconds: float


def triton_version() -> str:
    """Version of Triton. Raises `EnvironmentProblem` where there is none."""
    try:
        import triton
    except ImportError:
        raise EnvironmentProblem(
            Problem(
                where="triton",
                found="not installed",
                wanted="the package triton, which compiles the kernels for GPUs",
                hint="pip install 'graphspec-engine[kernels]'; no GPU is needed",
            )
        ) from None
    return str(triton.__version__)


def source_of(variant: Variant, target: GpuTarget) -> tuple[Any, Any, Mapping[str, Any]]:
    """What ``triton.compile`` is given at a launch of the variant: source, backend and options.

    The same as the launch makes them, or Triton would not find again what is compiled ahead.
    """
    from triton.compiler import ASTSource, make_backend

    constants = {
        (variant.kernel.arg_names.index(name),): value for name, value in variant.constexprs.items()
    }
    backend = make_backend(target.for_triton())
    # A launch notes an empty attribute for each constant, and none for what it does not specialise on.
    attributes = {path: backend.parse_attr("") for path in constants}
    source = ASTSource(variant.kernel, dict(variant.types), constants, attributes)
    asked = {"debug": variant.kernel.debug or False, "instrumentation_mode": ""}
    asked |= options_for(variant, target)
    return source, backend, backend.parse_options(asked).__dict__


def options_for(variant: Variant, target: GpuTarget) -> Mapping[str, Any]:
    """The options of a variant that the target's compiler knows: ``maxnreg``, say, is NVIDIA's alone."""
    from triton.compiler import make_backend

    known = make_backend(target.for_triton()).parse_options({}).__dict__
    return {name: value for name, value in variant.options.items() if name in known}


def compile_variant(variant: Variant, target: GpuTarget) -> Binary:
    """Compiles a variant for a target. Triton's own cache is neither read nor written.

    Raises `EnvironmentProblem` without Triton, and `CompileError` with its words for what it refuses.
    """
    triton_version()
    import triton

    began = time.perf_counter()
    source, backend, options = source_of(variant, target)
    with _nothing_kept():
        try:
            compiled = triton.compile(source, target=target.for_triton(), options=dict(options))
        except Exception as error:
            raise CompileError(
                Problem(
                    where=f"kernel {variant.name} for {target}",
                    found=_words_of(error),
                    wanted="a kernel that Triton compiles",
                )
            ) from error
        payload = bytes(compiled.asm[backend.binary_ext])
        resources = resources_of(target.backend, compiled.asm, compiled.metadata)
        facts = _facts(compiled.metadata._asdict(), options)
    return Binary(
        payload=payload,
        facts=facts,
        resources=resources,
        seconds=time.perf_counter() - began,
    )


def _words_of(error: BaseException) -> str:
    """What Triton says: where in the kernel, and below that the reason, which is another error."""
    words = [f"{type(error).__name__}: {str(error).strip()[:2000]}"]
    if error.__cause__ is not None:
        words.append(_words_of(error.__cause__))
    return "\n".join(words)


_HOST_FACTS = ("hash", "target", "triton_version")


def _facts(metadata: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the stages of the compiler have added to the options, or changed in them."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    ours = {*_HOST_FACTS, *get_cache_invalidating_env_vars()}
    return {
        name: value
        for name, value in metadata.items()
        if name not in ours and (name not in options or _plain(options[name]) != _plain(value))
    }


def _plain(value: Any) -> Any:
    """As JSON gives it back: Triton writes its metadata as JSON."""
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


@contextlib.contextmanager
def _nothing_kept() -> Iterator[None]:
    """Triton's files go to a folder that vanishes, and code has no line table: that would have paths of this machine."""
    from triton import knobs

    with (
        tempfile.TemporaryDirectory(prefix="graphspec-triton-") as folder,
        knobs.cache.scope(),
        knobs.compilation.scope(),
    ):
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True
        knobs.compilation.always_compile = True
        yield
