"""One exception tree, and `Problem`: what was found where, what was wanted, and what to do."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import attrs


@attrs.frozen(kw_only=True)
class Problem:
    """One thing that is wrong, in the four parts a reader needs.

    `where` is a dotted path or a file position, `found` and `wanted` are short phrases, `hint` says what to do.
    """

    where: str
    found: str
    wanted: str
    hint: str = ""

    def render(self) -> str:
        """One or two lines of text without a trailing newline."""
        text = f"{self.where}: found {self.found}; wanted {self.wanted}"
        return f"{text}\n    {self.hint}" if self.hint else text

    def under(self, prefix: str) -> "Problem":
        """The same problem, seen from one level further out."""
        if not prefix:
            return self
        glue = "" if not self.where or self.where.startswith("[") else "."
        return attrs.evolve(self, where=f"{prefix}{glue}{self.where}")


class GraphspecError(Exception):
    """Base of every error that graphspec raises on purpose.

    `exit_code` is what the command line returns for it: 2 usage or invalid config, 3 environment,
    4 cache unusable in strict mode.
    """

    exit_code: ClassVar[int] = 3
    headline: ClassVar[str] = "graphspec could not go on"

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__(self.render())

    def render(self) -> str:
        """All problems, one after another, below a headline that counts them."""
        count = len(self.problems)
        head = self.headline if count == 1 else f"{self.headline} ({count} problems)"
        body = "\n".join("  " + p.render().replace("\n", "\n  ") for p in self.problems)
        return f"{head}:\n{body}"

    def __reduce__(self) -> tuple[type, tuple[Sequence[Problem]]]:
        # BaseException would rebuild from the rendered text, and worker processes send errors back.
        return (type(self), (self.problems,))


class SpecError(GraphspecError):
    """The config is invalid, or cannot be read. Carries every problem that was found."""

    exit_code = 2
    headline = "the config is not usable"


class KeyFactorError(GraphspecError):
    """A value has no canonical encoding, or a key was asked of something that has none."""

    headline = "no key can be made"


class UndeclaredFactorError(KeyFactorError):
    """A traced unit read something that its key does not cover."""

    headline = "the trace read something outside its declared scope"


class CacheError(GraphspecError):
    """A cache entry or the cache folder is not what it should be."""

    headline = "the cache failed"


class CacheUnusableError(CacheError):
    """The cache folder cannot be written or read, and strict mode forbids going on without it."""

    exit_code = 4
    headline = "the cache is unusable"


class UntrustedError(CacheError):
    """The cache folder, an entry or a bundle could have been written by somebody who is not trusted."""

    exit_code = 4
    headline = "the cache is not trusted"


class OfflineMissError(CacheError):
    """A unit is not in the cache, and compiling is forbidden."""

    exit_code = 4
    headline = "compiling is forbidden (offline), and the cache lacks what is needed"


class BundleError(CacheError):
    """A bundle is damaged, or was made for another toolchain or device."""

    exit_code = 2
    headline = "the bundle is not usable"


class NondeterministicError(CacheError):
    """Two compiles under one key gave different bytes, and strict mode forbids that."""

    exit_code = 4
    headline = "two compiles under one key differ"


class CompileError(GraphspecError):
    """The compiler refused a unit, or cannot run on this machine."""

    headline = "a unit did not compile"


class SignatureError(CacheError):
    """An artifact was called with inputs that it was not compiled for."""

    headline = "an artifact was called with the wrong inputs"


class CaptureError(GraphspecError):
    """A graph could not be captured or replayed."""

    headline = "capture failed"


class CaptureIllegalError(CaptureError):
    """The captured call did something that no replay can repeat."""

    headline = "the call cannot be captured"


class CaptureStateError(CaptureError):
    """The capture manager was asked for something its state does not allow."""

    headline = "the capture manager is in the wrong state"


class KernelError(GraphspecError):
    """A kernel was called with something that it does not take."""

    headline = "a kernel was called with the wrong inputs"


class TargetError(GraphspecError):
    """Kernels are to be compiled for something that is no GPU, or within bounds that cannot be read."""

    exit_code = 2
    headline = "kernels cannot be compiled as asked"


class TrafficError(GraphspecError):
    """A histogram of batch sizes cannot be read, or does not fit the schedule. Carries every problem that was found."""

    exit_code = 2
    headline = "the traffic is not usable"


class BudgetError(GraphspecError):
    """Graphs were asked for within limits that nothing can keep, or that nobody can check without measurements."""

    exit_code = 2
    headline = "no ladder fits the limits"


class BucketsError(GraphspecError):
    """A file of buckets cannot be read. Carries every problem that was found."""

    exit_code = 2
    headline = "the buckets are not usable"


class WarmupFileError(GraphspecError):
    """A file that should hold the report of a warmup does not. Carries every problem that was found."""

    exit_code = 2
    headline = "the report of a warmup is not usable"


class NodeReportError(GraphspecError):
    """A file that should hold what a node says of itself does not. Carries every problem that was found."""

    exit_code = 2
    headline = "the report of a node is not usable"


class DeviceFileError(GraphspecError):
    """A described device is not known, or the file of its facts cannot be read."""

    exit_code = 2
    headline = "the device is not described"


class RequestError(GraphspecError):
    """A request asks for what the engine cannot do. Carries every problem that was found."""

    exit_code = 2
    headline = "the request cannot be served"


class EnvironmentProblem(GraphspecError):  # noqa: N818 - EnvironmentError is a builtin
    """This machine lacks something: a package, a compiler, a device, a file of weights."""

    headline = "this machine lacks something"
