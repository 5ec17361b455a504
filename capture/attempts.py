"""Tries one thing after another for the graphs of a plan, and after a failure goes on with those that survive it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import torch

from graphspec.capture.keys import CaptureKey
from graphspec.capture.survivors import CaptureFailure, Loss, after_failure
from graphspec.errors import CaptureStateError, GraphspecError

CaptureListener = Callable[[CaptureKey], None]

_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""What torch, CUDA and its libraries say where they raise no class of its own for it."""


@attrs.frozen(kw_only=True)
class LostGraph:
    """A planned graph that is not in the set that serves: why, and the error that decided it, in one line."""

    key: CaptureKey
    loss: Loss
    error: str = ""


def failure_of(error: BaseException) -> CaptureFailure:
    """How a capture ended that raised `error`. An error that another one caused counts as its cause."""
    if not isinstance(error, Exception):
        return CaptureFailure.INTERRUPTED
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (torch.OutOfMemoryError, MemoryError)):
            return CaptureFailure.OUT_OF_MEMORY
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in _NO_MEMORY):
            return CaptureFailure.OUT_OF_MEMORY
        cause = cause.__cause__
    return CaptureFailure.ERROR


def attempt_each(
    planned: Sequence[CaptureKey],
    lost: Mapping[CaptureKey, LostGraph],
    action: Callable[[CaptureKey], None],
    *,
    recover: Callable[[], None],
    listener: CaptureListener,
    strict: bool,
) -> Mapping[CaptureKey, LostGraph]:
    """Does `action` for each planned graph that is not lost yet, in order; returns all that are lost afterwards.

    An `Exception` of the action loses what `after_failure` says; `recover` then makes room, and the others go on. With
    `strict` it is raised, and says of which graph it is. Always raised are what is no `Exception`, such as
    KeyboardInterrupt, a misuse of the manager or a backend, and errors of the listener, which hears of each success.
    """
    gone = dict(lost)
    done: list[CaptureKey] = []
    pending = [key for key in planned if key not in gone]
    while pending:
        key = pending.pop(0)
        failed: tuple[CaptureFailure, str] | None = None
        try:
            action(key)
        except CaptureStateError:
            raise
        except GraphspecError as error:
            if strict:
                raise _of_graph(error, key) from error
            failed = failure_of(error), one_line(error)
        except Exception as error:
            if strict:
                # Its class and words stay: they are the program's own.
                error.add_note(f"in the step of {key}")
                raise
            failed = failure_of(error), one_line(error)
        if failed is None:
            done.append(key)
            listener(key)
            continue
        # Outside of the handler: while an error is handled, its frames hold the tensors of the failed step.
        recover()
        kind, text = failed
        verdict = after_failure(planned, done, {k: g.loss for k, g in gone.items()}, key, kind)
        for other, loss in verdict.lost.items():
            gone.setdefault(other, LostGraph(key=other, loss=loss, error=text))
        pending = list(verdict.attempt)
    return gone


def _of_graph(error: GraphspecError, key: CaptureKey) -> GraphspecError:
    return type(error)(attrs.evolve(p, where=f"{key}: {p.where}") for p in error.problems)


def one_line(error: BaseException) -> str:
    """The class of an error and what it says, without line breaks."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def sentences(lost: Iterable[LostGraph]) -> Sequence[str]:
    """One sentence for each reason and error, with the graphs that it cost."""
    groups: dict[tuple[Loss, str], list[str]] = {}
    for graph in lost:
        groups.setdefault((graph.loss, graph.error), []).append(str(graph.key))
    return [
        f"{'graph' if len(keys) == 1 else 'graphs'} {', '.join(keys)} not captured, {loss.value}"
        + (f" ({error})" if error else "")
        for (loss, error), keys in groups.items()
    ]
