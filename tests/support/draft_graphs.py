"""Two stages that play the same script: on one the draft phases are replayed, on the other the same passes run as they are."""

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.keys import CaptureKey
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import DRAFT, plan_capture
from graphspec.engine.drafters.graphs import DraftGraphs
from graphspec.engine.drafters.protocol import CapturedSpeculator, Proposal, TargetStep
from graphspec.resolve.spec import EngineSpec
from support.drafters import POISON, Stage

Replay = Callable[[CaptureKey], Sequence[torch.Tensor]]


@attrs.frozen(eq=False)
class DrafterSource:
    """A drafter alone as what is captured."""

    drafter: CapturedSpeculator

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        return self.drafter.static_tensors()

    def fill_example(self, key: CaptureKey, variant: int) -> None:
        self.drafter.fill_draft_example(key, variant)

    def step(self, key: CaptureKey) -> Sequence[torch.Tensor]:
        return self.drafter.draft_step(key)


def sealed_drafts(drafter: CapturedSpeculator, spec: EngineSpec) -> CaptureManager:
    """The captured draft phases of a drafter, each verified."""
    plan = plan_capture(spec, captures=frozenset({DRAFT}))
    manager = CaptureManager(plan, DrafterSource(drafter), TapeBackend())
    manager.warm()
    manager.capture(strict=True)
    assert all(v.agrees for v in manager.verify())
    manager.seal()
    return manager


class Routed:
    """A drafter whose steps come with graphs, at the depth that the schedule gives to their requests."""

    def __init__(
        self, drafter: CapturedSpeculator, spec: EngineSpec, manager: CaptureManager, replay: Replay
    ) -> None:
        self.drafter, self._spec, self._manager, self._replay = drafter, spec, manager, replay
        self.taken: list[tuple[CaptureKey | None, str]] = []

    def propose(self, step: TargetStep) -> list[Proposal]:
        graphs = DraftGraphs(
            depth=self._spec.schedule.k_for(len(step.requests)),
            dispatch=self._manager.dispatch_draft,
            replay=self._replay,
        )
        proposals = self.drafter.propose(attrs.evolve(step, graphs=graphs))
        self.taken += [(d.key, d.reason.name if d.reason else "") for d in graphs.taken]
        return proposals

    def forget(self, request: int) -> None:
        self.drafter.forget(request)

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        return self.drafter.static_tensors()


def twins(spec: EngineSpec, seed: int) -> tuple[Stage, Stage, CaptureManager]:
    """The stage with replays, the one without, and the manager of the first."""
    replayed, plain = Stage(spec, seed), Stage(spec, seed)
    manager = sealed_drafts(replayed.drafter, spec)
    alone = plain.drafter

    def run(key: CaptureKey) -> Sequence[torch.Tensor]:
        return alone.draft_step(key)

    for stage, replay in ((replayed, manager.replay), (plain, run)):
        for cache in stage.caches(stage.drafter).values():
            # Verifying wrote to one of the two.
            cache.fill_(POISON)
        stage.drafter = Routed(stage.drafter, spec, manager, replay)
    return replayed, plain, manager


def play_by_schedule(stage: Stage) -> None:
    """One turn: now and then a request comes or goes, some of them take a step, at the depth of their number."""
    rolled = stage.random
    if len(stage.actors) < 3 or (len(stage.actors) < 6 and rolled.random() < 0.3):
        stage.enter(rolled.randint(1, 20))
    for actor in [a for a in stage.actors if len(a.tokens) > 110]:
        stage.leave(actor)
    acting = [a for a in stage.actors if rolled.random() < 0.8] or stage.actors[:1]
    rolled.shuffle(acting)
    if acting:
        depth = stage.spec.schedule.k_for(len(acting))
        stage.step(acting, depth, rolled.choice([None, None, 0]), chunk=rolled.randint(1, 24))
