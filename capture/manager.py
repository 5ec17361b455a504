"""`CaptureManager`: warms all shapes, captures all, seals; then dispatches and replays."""

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from graphspec.capture.addresses import Addresses
from graphspec.capture.agreement import agree_on_captured, others_told
from graphspec.capture.attempts import CaptureListener, LostGraph, attempt_each
from graphspec.capture.backends.base import Graph, GraphBackend
from graphspec.capture.dispatch import Dispatch, Fallthrough, Step, dispatch, dispatch_draft
from graphspec.capture.garbage import frozen_garbage
from graphspec.capture.keys import CaptureKey
from graphspec.capture.memory_model import GraphSample
from graphspec.capture.pieces import PiecewiseGraph, capture_pieces, pieces_of, verify_pieces
from graphspec.capture.plan import CapturePlan
from graphspec.capture.ranks import OneRank, Ranks
from graphspec.capture.routes import Routes
from graphspec.capture.source import StepSource
from graphspec.capture.survivors import Loss
from graphspec.capture.verified import Verified, compare_outputs
from graphspec.errors import CaptureError, CaptureStateError, Problem


class State(enum.Enum):
    """Life of a manager. Each transition happens in one method of the same tense."""

    PLANNED = "planned"
    WARMED = "warmed"
    CAPTURED = "captured"
    SEALED = "sealed"
    STALE = "stale"
    RETIRED = "retired"


class Change(enum.Enum):
    """What an engine declares to have done to what its graphs hold."""

    WEIGHTS_RELOADED = "weights were reloaded"
    BUFFERS_MOVED = "static buffers were moved"


_BEFORE_SEAL = frozenset({State.PLANNED, State.WARMED, State.CAPTURED})
_WAY_OUT = (
    "write new values into the buffer with copy_, never put another tensor in its place; where it had to move, "
    "call recapture() while no request runs"
)
_MEBIBYTE = 1 << 20


def _nobody(key: CaptureKey) -> None:
    """Listens to nothing."""


class CaptureManager:
    """Owns the captured graphs of one step source.

    ``warm`` then ``capture`` then ``verify`` then ``seal``; after that only ``dispatch`` and ``replay``. A call that
    the state does not allow raises `CaptureStateError`.

    A graph whose warming or capture fails is lost, with those that `survivors.after_failure` says; the others are
    captured, `plan` does without the lost ones, and `lost` says why. With several `ranks`, all of them serve from the
    graphs that each of them has, and each method is called by all of them. What is no failure of a step, such as
    KeyboardInterrupt or an error of a listener, is raised: then nothing stays captured, and the call can be repeated.
    """

    def __init__(
        self,
        plan: CapturePlan,
        source: StepSource,
        backend: GraphBackend,
        ranks: Ranks | None = None,
    ) -> None:
        self._asked = plan
        self._plan = plan
        self._source = source
        self._backend = backend
        self._ranks = ranks or OneRank()
        self._state = State.PLANNED
        self._graphs: dict[CaptureKey, Graph] = {}
        self._samples: dict[CaptureKey, GraphSample] = {}
        self._lost: Mapping[CaptureKey, LostGraph] = {}
        self._addresses: Addresses | None = None
        self._routes: Routes | None = None
        self._why_stale = ""

    @property
    def state(self) -> State:
        """Where in its life the manager is."""
        return self._state

    @property
    def plan(self) -> CapturePlan:
        """The plan as it was given, without the graphs that were lost."""
        return self._plan

    @property
    def captured(self) -> frozenset[CaptureKey]:
        """Keys of the graphs that can be replayed, or could be once sealed."""
        return frozenset(self._graphs) if self._state in _CAPTURED else frozenset()

    @property
    def lost(self) -> Sequence[LostGraph]:
        """The planned graphs that are not captured, in planned order."""
        return [self._lost[key] for key in self._asked.keys if key in self._lost]

    @property
    def samples(self) -> Mapping[CaptureKey, GraphSample]:
        """What each captured graph took: MiB, seconds. For `GraphCosts.from_samples`."""
        return dict(self._samples)

    @property
    def memory_bytes(self) -> int:
        """Device memory that all captured graphs keep."""
        return sum(g.memory_bytes for g in self._graphs.values())

    def warm(self, listener: CaptureListener = _nobody, *, strict: bool = False) -> None:
        """Runs every planned step once without capture, so that workspaces have their final size before the first
        capture. Backends that need no warm-up skip the runs. `strict` raises the first failure."""
        self._require("warm", State.PLANNED)
        if self._backend.needs_warmup:
            try:
                with others_told(self._ranks, self._asked.keys):
                    self._lost = self._attempt({}, self._warm_one, listener, strict)
            finally:
                # What the warm runs left in the allocator's cache is nothing that a graph's own pool could use.
                self._backend.give_back()
        self._state = State.WARMED

    def capture(self, listener: CaptureListener = _nobody, *, strict: bool = False) -> None:
        """Captures every planned graph that was not lost before, largest first, and agrees with the other ranks.

        `strict` raises the first failure. Whatever is raised, nothing stays captured.
        """
        self._require("capture", State.WARMED)
        keys, lost_before = self._asked.keys, self._lost
        try:
            with others_told(self._ranks, keys):
                self._capture_here(listener, strict)
            agreed = agree_on_captured(self._ranks, keys, tuple(self._graphs))
        except BaseException:
            self._lost = lost_before
            self._release(list(self._graphs))
            raise
        disagreed = agreed.released_by(tuple(self._graphs))
        if disagreed:
            self._release(disagreed)
        self._lost = {**self._lost} | {
            key: LostGraph(
                key=key,
                loss=Loss.RANK_DISAGREEMENT,
                error=f"lacking on {_ranks_of(agreed.lacking[key])}",
            )
            for key in disagreed
        }
        self._plan = self._asked
        for loss in Loss:
            gone = [key for key, graph in self._lost.items() if graph.loss is loss]
            self._plan = self._plan.without(gone, loss.fallthrough)
        self._state = State.CAPTURED

    def verify(self) -> Sequence[Verified]:
        """Runs each step eagerly and replays its graph, both on content that it was not captured on, and compares: of a
        step in pieces, those that `verify_pieces` says."""
        self._require("verify", State.CAPTURED)
        return [self._verified(key) for key in self._plan.keys]

    def seal(self) -> None:
        """Ends capturing: from now on steps are replayed, or run with a named reason, and nothing is captured."""
        self._require("seal", State.CAPTURED)
        self._routes = Routes.of(self._plan, self.captured)
        self._state = State.SEALED

    def declare(self, change: Change) -> None:
        """Says that something was done to what the graphs hold: the manager is stale until `recapture`."""
        self._require("declare", State.SEALED)
        self._go_stale(change.value)

    def recapture(
        self, listener: CaptureListener = _nobody, *, strict: bool = False
    ) -> Sequence[Verified]:
        """Captures the whole plan anew at the present addresses, verifies it and seals: from sealed or stale.

        Graphs that were lost before are tried again. For use while no request runs, as examples are written to the
        static buffers; in an engine of several ranks, by all of them. Raises `CaptureError` when a new graph does not
        agree with the eager run: then the manager is captured and not sealed. After any other error the old graphs are
        gone, and the manager goes on from the state that it names.
        """
        self._require("recapture", State.SEALED, State.STALE)
        self._release(list(self._graphs))
        self._plan, self._lost, self._addresses = self._asked, {}, None
        self._routes, self._why_stale = None, ""
        self._state = State.PLANNED
        self.warm(listener, strict=strict)
        self.capture(listener, strict=strict)
        verified = self.verify()
        if differing := [v for v in verified if not v.agrees]:
            raise CaptureError(
                Problem(
                    where=str(v.key),
                    found=f"a replay that differs from the eager run by {v.max_difference:.3g}",
                    wanted="the same results",
                    hint="something in the step is not fixed at capture; retire() the manager, or seal() it regardless",
                )
                for v in differing
            )
        self.seal()
        return verified

    def retire(self) -> None:
        """Drops all graphs. The manager cannot be used again."""
        self._release(list(self._graphs))
        self._routes = None
        self._state = State.RETIRED

    def dispatch(self, step: Step) -> Dispatch:
        """The graph for a step, or the reason why there is none."""
        if self._routes is not None:
            return self._routes.route(step)
        if self._state in _BEFORE_SEAL:
            return Dispatch(k=step.proposed_k, reason=Fallthrough.NOT_SEALED)
        return dispatch(self._plan, frozenset(), step)

    def dispatch_draft(self, requests: int, k: int) -> Dispatch:
        """The graph that makes `k` drafts for each of `requests` requests, or the reason why there is none."""
        if self._routes is not None:
            return self._routes.draft(requests, k)
        if self._state in _BEFORE_SEAL:
            return Dispatch(k=k, reason=Fallthrough.NOT_SEALED)
        return dispatch_draft(self._plan, frozenset(), requests, k)

    def replay(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        """Runs a captured step on the present content of the static buffers.

        Raises `CaptureError` when a static buffer has moved since capture, naming it: the graph would write to the old
        place. The manager is stale from then on: each replay is refused until `recapture`. Also for a key that is not
        captured.
        """
        if self._state is not State.SEALED:
            self._require("replay", State.SEALED)
        addresses = self._addresses
        if addresses is None or not addresses.hold(self._source.static_tensors()):
            raise self._found_stale()
        graph = self._graphs.get(key)
        if graph is None:
            raise CaptureError(
                Problem(
                    where=str(key),
                    found="no captured graph of this key",
                    wanted=f"one of the {len(self._graphs)} that are captured",
                    hint="replay the key that dispatch gives, and run the step eagerly where it gives none",
                )
            )
        return graph.replay()

    def _attempt(
        self,
        lost: Mapping[CaptureKey, LostGraph],
        action: Callable[[CaptureKey], None],
        listener: CaptureListener,
        strict: bool,
    ) -> Mapping[CaptureKey, LostGraph]:
        return attempt_each(
            self._asked.keys,
            lost,
            action,
            recover=self._backend.give_back,
            listener=listener,
            strict=strict,
        )

    def _warm_one(self, key: CaptureKey) -> None:
        self._source.fill_example(key, 0)
        self._backend.warm(partial(self._source.step, key))

    def _capture_here(self, listener: CaptureListener, strict: bool) -> None:
        addresses = self._addresses = Addresses.of(self._source.static_tensors())

        def captured(key: CaptureKey) -> None:
            present = self._source.static_tensors()
            if not addresses.hold(present):
                # The graphs so far keep the old buffer, and no check at replay could tell.
                raise CaptureError(
                    addresses.moved(
                        present,
                        now=f"after the capture of {key}",
                        then="before it",
                        hint="write new values into the buffer with copy_, never put another tensor in its place",
                    )
                )
            listener(key)

        with frozen_garbage(collect=self._backend.needs_warmup):
            self._lost = self._attempt(self._lost, self._capture_one, captured, strict)

    def _capture_one(self, key: CaptureKey) -> None:
        self._source.fill_example(key, 0)
        began = time.perf_counter()
        pieces = pieces_of(self._source, key)
        graph: Graph = (
            self._backend.capture(partial(self._source.step, key))
            if pieces is None
            else capture_pieces(self._backend, pieces)
        )
        seconds = time.perf_counter() - began
        self._samples[key] = GraphSample(
            tokens=key.tokens,
            mib=graph.memory_bytes / _MEBIBYTE,
            seconds=seconds,
            opens_pool=not self._graphs,
        )
        self._graphs[key] = graph

    def _release(self, keys: Sequence[CaptureKey]) -> None:
        for key in keys:
            self._samples.pop(key, None)
            self._graphs.pop(key).release()
        self._backend.give_back()

    def _found_stale(self) -> CaptureError:
        assert self._addresses is not None
        problems = self._addresses.moved(
            self._source.static_tensors(), now="at replay", then="as at capture", hint=_WAY_OUT
        )
        self._go_stale(f"{', '.join(p.where for p in problems)} moved")
        return CaptureError(problems)

    def _go_stale(self, why: str) -> None:
        self._why_stale = why
        self._routes = None
        self._state = State.STALE

    def _verified(self, key: CaptureKey) -> Verified:
        self._source.fill_example(key, 1)
        graph = self._graphs[key]
        if isinstance(graph, PiecewiseGraph):
            return verify_pieces(self._backend, key, graph)
        alone = [t.clone() for t in self._backend.warm(partial(self._source.step, key))]
        # The eager run may have written to its inputs.
        self._source.fill_example(key, 1)
        return compare_outputs(key, alone, graph.replay())

    def _require(self, action: str, *wanted: State) -> None:
        if self._state in wanted:
            return
        hint = "the order is warm, capture, verify, seal, replay; a new capture needs recapture or a new manager"
        if self._state is State.STALE:
            hint = f"{self._why_stale}; call recapture() while no request runs, then replay again"
        raise CaptureStateError(
            Problem(
                where=f"CaptureManager.{action}",
                found=f"a manager that is {self._state.value}",
                wanted=f"one that is {' or '.join(state.value for state in wanted)}",
                hint=hint,
            )
        )


_CAPTURED = frozenset({State.CAPTURED, State.SEALED})


def _ranks_of(which: Sequence[int]) -> str:
    return f"{'rank' if len(which) == 1 else 'ranks'} {', '.join(map(str, which))}"
