"""Which graphs survive when a capture fails, on one rank and on all: a pure policy that the manager only applies."""

import enum
from collections.abc import Mapping, Sequence

import attrs

from graphspec.capture.dispatch import Fallthrough
from graphspec.capture.keys import CaptureKey
from graphspec.errors import CaptureError, Problem
from graphspec.text import plural


class CaptureFailure(enum.Enum):
    """How the capture of one graph ended."""

    OUT_OF_MEMORY = "out of memory"
    ERROR = "the step failed"
    INTERRUPTED = "interrupted"


class Loss(enum.Enum):
    """Why a planned graph is not in the set that serves."""

    FAILED = "its capture failed"
    NO_ROOM = "not tried: a graph of fewer than twice its tokens ran out of memory"
    SAME_CODE = "not tried: the step of its phase, mode and k failed at another size"
    INTERRUPTED = "not kept: capturing was interrupted"
    RANK_DISAGREEMENT = "rank disagreement: another rank does not have it"

    @property
    def fallthrough(self) -> Fallthrough:
        """Why a step that would use such a graph runs without one: what `CapturePlan.without` takes."""
        if self is Loss.RANK_DISAGREEMENT:
            return Fallthrough.RANK_DISAGREEMENT
        return Fallthrough.NOT_CAPTURED


@attrs.frozen(kw_only=True)
class Survival:
    """The verdict on a failure: graphs to keep, graphs still to capture, and the others with the reason of each.

    Each planned graph is in exactly one of the three, in planned order. What belongs to a lost graph is to be released.
    """

    keep: tuple[CaptureKey, ...]
    attempt: tuple[CaptureKey, ...]
    lost: Mapping[CaptureKey, Loss]


def after_failure(
    planned: Sequence[CaptureKey],
    captured: Sequence[CaptureKey],
    lost: Mapping[CaptureKey, Loss],
    failed: CaptureKey,
    failure: CaptureFailure,
) -> Survival:
    """What survives when capturing `failed` ended in `failure`; `captured` and `lost` are the graphs decided before it.

    | failure | kept | tried next | lost |
    |---|---|---|---|
    | out of memory | what is captured | graphs of at most half the tokens | it, and the others above that |
    | the step failed | what is captured | graphs of another phase, mode or k | it, and the others of its own |
    | interrupted | nothing | nothing | all |

    Half the tokens, because memory is nearly gone by then: what is left goes to small batches, where launches weigh
    most, and at most log2 of the largest graph's tokens captures can fail. A step's code is the same for all sizes of
    its phase, mode and k, so that it fails at each. Who interrupts wants no engine.

    Raises `CaptureError` when `failed` is not a planned graph that is still to come.
    """
    decided = {*captured, *lost}
    if failed not in planned or failed in decided:
        raise CaptureError(
            Problem(
                where=str(failed),
                found="a failure of a graph that is not planned, or was decided before",
                wanted="a planned graph that is neither captured nor lost",
            )
        )
    if failure is CaptureFailure.INTERRUPTED:
        return Survival(
            keep=(), attempt=(), lost={k: lost.get(k, Loss.INTERRUPTED) for k in planned}
        )
    now_lost = {**lost, failed: Loss.FAILED}
    for key in planned:
        if key in decided or key == failed:
            continue
        if failure is CaptureFailure.OUT_OF_MEMORY and 2 * key.tokens > failed.tokens:
            now_lost[key] = Loss.NO_ROOM
        elif failure is CaptureFailure.ERROR and (key.kind, key.k) == (failed.kind, failed.k):
            now_lost[key] = Loss.SAME_CODE
    return Survival(
        keep=tuple(k for k in planned if k in captured),
        attempt=tuple(k for k in planned if k not in captured and k not in now_lost),
        lost={k: now_lost[k] for k in planned if k in now_lost},
    )


@attrs.frozen(kw_only=True)
class Agreement:
    """The graphs that every rank has, in planned order, and for each other the ranks that lack it."""

    keep: tuple[CaptureKey, ...]
    lacking: Mapping[CaptureKey, tuple[int, ...]]

    def released_by(self, own: Sequence[CaptureKey]) -> tuple[CaptureKey, ...]:
        """What a rank that holds `own` gives up, since others lack it: `Loss.RANK_DISAGREEMENT`."""
        return tuple(key for key in own if key in self.lacking)


def agree(planned: Sequence[CaptureKey], kept_by_rank: Sequence[Sequence[CaptureKey]]) -> Agreement:
    """The set that all ranks replay from: the graphs that each of them kept. A pure function of what all of them
    gathered, so all come to the same.

    One rank that runs a graph while another runs eagerly would wait for it forever, so nothing is kept that one lacks.
    Raises `CaptureError` for no rank at all, and naming every rank that kept what is not planned: it has another plan.
    """
    known = frozenset(planned)
    problems = [
        Problem(
            where=f"rank {rank}",
            found=f"{plural(len(strange), 'captured graph')} outside the plan: {', '.join(strange)}",
            wanted="graphs of the one plan that all ranks have",
            hint="start all ranks with the same config and the same version of graphspec",
        )
        for rank, kept in enumerate(kept_by_rank)
        if (strange := sorted(str(key) for key in set(kept) - known))
    ]
    if not kept_by_rank:
        problems = [Problem(where="ranks", found="none", wanted="what at least one rank kept")]
    if problems:
        raise CaptureError(problems)
    held = [frozenset(kept) for kept in kept_by_rank]
    lacking = {
        key: tuple(rank for rank, kept in enumerate(held) if key not in kept) for key in planned
    }
    return Agreement(
        keep=tuple(key for key in planned if not lacking[key]),
        lacking={key: ranks for key, ranks in lacking.items() if ranks},
    )
