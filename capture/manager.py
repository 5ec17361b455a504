"""`CaptureManager`: warms all shapes, captures all, seals; then dispatches and replays."""

import contextlib
import enum
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import torch

from graphspec.capture.backends.base import Graph, GraphBackend
from graphspec.capture.dispatch import Dispatch, Step, dispatch
from graphspec.capture.keys import CaptureKey
from graphspec.capture.plan import CapturePlan
from graphspec.errors import CaptureError, CaptureStateError, Problem


class State(enum.Enum):
    """Life of a manager. Each transition happens in one method of the same tense."""

    PLANNED = "planned"
    WARMED = "warmed"
    CAPTURED = "captured"
    SEALED = "sealed"
    STALE = "stale"
    RETIRED = "retired"


class StepSource(Protocol):
    """What an engine gives to be captured: decode steps on static buffers."""

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that steps read or write at a fixed address, by name."""
        ...

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        """Puts valid, harmless content into the static inputs for a step of this key, the same for equal arguments.

        Variants differ in content: a graph is captured on one and verified on another, so that a value that was frozen
        into it shows.
        """
        ...

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """Runs one step of this key on the static buffers and returns its outputs."""
        ...


@attrs.frozen(kw_only=True)
class Verified:
    """How one replay compared with the eager run: equal to the bit, within tolerance, or not."""

    key: CaptureKey
    max_difference: float
    agrees: bool


CaptureListener = Callable[[CaptureKey], None]
_TOLERANCE = 1e-4


class CaptureManager:
    """Owns the captured graphs of one step source.

    ``warm`` then ``capture`` then ``verify`` then ``seal``; after that only ``dispatch`` and ``replay``. A call that
    the state does not allow raises `CaptureStateError`. A failed capture leaves the manager warmed and usable.
    """

    def __init__(self, plan: CapturePlan, source: StepSource, backend: GraphBackend) -> None:
        self.plan = plan
        self._source = source
        self._backend = backend
        self._state = State.PLANNED
        self._graphs: dict[CaptureKey, Graph] = {}
        self._addresses: dict[str, int] = {}
        self._captured: frozenset[CaptureKey] = frozenset()

    @property
    def state(self) -> State:
        """Where in its life the manager is."""
        return self._state

    @property
    def captured(self) -> frozenset[CaptureKey]:
        """Keys of the captured graphs."""
        return self._captured

    @property
    def memory_bytes(self) -> int:
        """Device memory that all captured graphs keep."""
        return sum(g.memory_bytes for g in self._graphs.values())

    def warm(self, listener: CaptureListener = lambda key: None) -> None:
        """Runs every planned step once without capture, so that workspaces have their final size before the first
        capture. Backends that need no warm-up skip the runs."""
        self._require("warm", State.PLANNED)
        for key in self.plan.keys if self._backend.needs_warmup else ():
            self._source.fill_example(key, 0)
            self._backend.warm(partial(self._source.step, key))
            listener(key)
        self._state = State.WARMED

    def capture(self, listener: CaptureListener = lambda key: None) -> None:
        """Captures every planned graph, largest first. On an error nothing stays captured."""
        self._require("capture", State.WARMED)
        graphs: dict[CaptureKey, Graph] = {}
        addresses = self._present_addresses()
        with frozen_garbage(collect=self._backend.needs_warmup):
            for key in self.plan.keys:
                self._source.fill_example(key, 0)
                graphs[key] = self._backend.capture(partial(self._source.step, key))
                if self._present_addresses() != addresses:
                    # The graphs so far keep the old buffer, and no check at replay could tell.
                    raise self._moved(addresses, f"after the capture of {key}", "before it")
                listener(key)
        self._graphs = graphs
        self._captured = frozenset(graphs)
        self._addresses = addresses
        self._state = State.CAPTURED

    def verify(self) -> Sequence[Verified]:
        """Runs each step eagerly and replays its graph, both on content that it was not captured on, and compares."""
        self._require("verify", State.CAPTURED)
        return [self._verified(key) for key in self.plan.keys]

    def seal(self) -> None:
        """Ends capturing: from now on steps are replayed, or run with a named reason, and nothing is captured."""
        self._require("seal", State.CAPTURED)
        self._state = State.SEALED

    def retire(self) -> None:
        """Drops all graphs. The manager cannot be used again."""
        self._graphs.clear()
        self._captured = frozenset()
        self._state = State.RETIRED

    def dispatch(self, step: Step) -> Dispatch:
        """The graph for a step, or the reason why there is none."""
        return dispatch(self.plan, self._captured, step)

    def replay(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """Runs a captured step on the present content of the static buffers.

        Raises `CaptureError` when a static buffer has moved since capture, naming it: the graph would write to the old
        place. The manager is stale from then on.
        """
        if self._state is not State.SEALED:
            self._require("replay", State.SEALED)
        if self._present_addresses() != self._addresses:
            self._state = State.STALE
            self._captured = frozenset()
            raise self._moved(self._addresses, "at replay", "as at capture")
        return self._graphs[key].replay()

    def _present_addresses(self) -> dict[str, int]:
        return {name: t.data_ptr() for name, t in self._source.static_tensors().items()}

    def _moved(self, before: Mapping[str, int], now: str, then: str) -> CaptureError:
        present = self._present_addresses()
        return CaptureError(
            Problem(
                where=f"static buffer {name}",
                found=f"address {present.get(name, 0):#x} {now}",
                wanted=f"address {before.get(name, 0):#x} {then}",
                hint="write new values into the buffer with copy_, never put another tensor in its place",
            )
            for name in sorted(present.keys() | before.keys())
            if present.get(name) != before.get(name)
        )

    def _verified(self, key: CaptureKey) -> Verified:
        self._source.fill_example(key, 1)
        alone = [t.clone() for t in self._backend.warm(partial(self._source.step, key))]
        # The eager run may have written to its inputs.
        self._source.fill_example(key, 1)
        replayed = self._graphs[key].replay()
        worst, agrees = 0.0, True
        for eager, again in zip(alone, replayed, strict=True):
            if eager.is_floating_point():
                worst = max(worst, float((eager - again).abs().max()))
                agrees = agrees and torch.allclose(eager, again, rtol=_TOLERANCE, atol=_TOLERANCE)
            else:
                agrees = agrees and torch.equal(eager, again)
        return Verified(key=key, max_difference=worst, agrees=agrees)

    def _require(self, action: str, wanted: State) -> None:
        if self._state is not wanted:
            raise CaptureStateError(
                Problem(
                    where=f"CaptureManager.{action}",
                    found=f"a manager that is {self._state.value}",
                    wanted=f"one that is {wanted.value}",
                    hint="the order is warm, capture, verify, seal, replay; a new capture needs a new manager",
                )
            )


@contextlib.contextmanager
def frozen_garbage(*, collect: bool = True) -> Iterator[None]:
    """Keeps the garbage collector out of a capture, and puts it back as it was on every path.

    A collection in the middle may free a kernel's module and invalidate the graph, and collecting before each of many
    captures took most of their time (vLLM pull request 21146: 35 s to 2 s). `collect` frees garbage first, so that it
    holds no device memory meanwhile.
    """
    was_enabled = gc.isenabled()
    already_frozen = gc.get_freeze_count() > 0
    if collect:
        gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        # What the host application had frozen before cannot be told apart any more, so then all stays frozen.
        if not already_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
