"""`PlanReport`: what a plan means for an engine, tier by tier: sizes, padding, memory, and what runs without a graph."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from graphspec.capture.eager import EagerSteps, eager_steps
from graphspec.capture.keys import CaptureKey, GraphKind, GraphMode, Phase
from graphspec.capture.left_out import left_out_of
from graphspec.capture.memory_model import Estimate, GraphCosts
from graphspec.capture.plan import CapturePlan
from graphspec.capture.traffic import Traffic
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class BatchSize:
    """Steady decoding of one batch size: its depth, the graph that it runs, None for none, and its weight in the traffic."""

    requests: int
    k: int
    key: CaptureKey | None
    weight: float

    @property
    def useful_tokens(self) -> int:
        """Tokens of its requests."""
        return self.requests * (1 + self.k)

    @property
    def padded_tokens(self) -> int:
        """Tokens that are computed for nobody."""
        return 0 if self.key is None else self.key.tokens - self.useful_tokens

    @property
    def waste(self) -> float:
        """Padded tokens in proportion to useful ones."""
        return self.padded_tokens / self.useful_tokens


@attrs.frozen(kw_only=True)
class TierReport:
    """A run of batch sizes with one depth.

    `buckets` are the requests of the graphs that verify its batches, `keys` all graphs of it, drafts and adapters among
    them. `padded_tokens` is the mean of a step, None where the traffic has no such step. `mib` and `seconds` are None
    where nothing was measured; what a pool takes once is not in them.
    """

    k: int
    first: int
    last: int
    buckets: tuple[int, ...]
    keys: tuple[CaptureKey, ...]
    reachable: int
    padded_tokens: float | None
    waste: float | None
    mib: Estimate | None
    seconds: Estimate | None
    eager: tuple[int, ...]

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "k": self.k,
            "first": self.first,
            "last": self.last,
            "buckets": list(self.buckets),
            "graphs": len(self.keys),
            "reachable": self.reachable,
            "padded_tokens_mean": self.padded_tokens,
            "waste": self.waste,
            "predicted_mib": amount(self.mib),
            "predicted_seconds": amount(self.seconds),
            "without_graph": list(self.eager),
        }


@attrs.frozen(kw_only=True)
class PlanReport:
    """A plan, what it was made from, and what can be said of it before any device is touched.

    `captures` are the kinds of graphs that the program's steps can be captured as; `captures_assumed` says that the
    program was not asked. `traffic` is None where every batch size counts alike.
    """

    spec: EngineSpec
    plan: CapturePlan
    captures: frozenset[GraphKind]
    captures_assumed: bool
    traffic: Traffic | None = None
    costs: GraphCosts = attrs.field(factory=GraphCosts)

    @cached_property
    def batch_sizes(self) -> tuple[BatchSize, ...]:
        """Every batch size, from one request to the most."""
        schedule = self.plan.schedule
        weights = dict((self.traffic or Traffic.uniform(schedule.max_num_seqs)).weights)
        return tuple(
            BatchSize(
                requests=requests,
                k=schedule.k_for(requests),
                key=self.plan.key_for(requests, schedule.k_for(requests)),
                weight=weights.get(requests, 0.0),
            )
            for requests in range(1, schedule.max_num_seqs + 1)
        )

    @cached_property
    def reachable(self) -> frozenset[CaptureKey]:
        """The graphs that some pair of steps uses."""
        return self.plan.reachable()

    @cached_property
    def tiers(self) -> tuple[TierReport, ...]:
        """The tiers of the schedule, by batch size."""
        return tuple(self._tier(*tier) for tier in self.plan.schedule.tiers)

    @cached_property
    def pieces(self) -> tuple[CaptureKey, ...]:
        """The piecewise graphs, which steps of any tier use."""
        return tuple(key for key in self.plan.keys if key.mode is GraphMode.PIECEWISE)

    @cached_property
    def eager(self) -> Sequence[EagerSteps]:
        """The steps that run without a graph, and why."""
        return eager_steps(self.spec, self.plan)

    @property
    def padded_tokens(self) -> float:
        """Padded tokens of a step of steady decoding, in the mean. Steps without a graph pad nothing."""
        padded, _ = _means(self.batch_sizes)
        return padded or 0.0

    @cached_property
    def mib(self) -> Estimate | None:
        """What all graphs will take, their pool included. None where nothing was measured."""
        return self.costs.predict_mib([key.tokens for key in self.plan.keys])

    @cached_property
    def seconds(self) -> Estimate | None:
        """What capturing them will take. None where nothing was measured."""
        return self.costs.predict_seconds([key.tokens for key in self.plan.keys])

    def _tier(self, first: int, last: int, k: int) -> TierReport:
        sizes = self.batch_sizes[first - 1 : last]
        buckets = tuple(sorted({size.key.bucket for size in sizes if size.key is not None}))
        drafts = {self.plan.draft_key(k, requests) for requests in range(first, last + 1)}
        keys = tuple(
            key
            for key in self.plan.keys
            if key in drafts
            or (
                key.phase is Phase.TARGET_VERIFY
                and key.mode is GraphMode.FULL
                and key.k == k
                and key.bucket in buckets
            )
        )
        padded, waste = _means(sizes)
        tokens = [key.tokens for key in keys]
        return TierReport(
            k=k,
            first=first,
            last=last,
            buckets=buckets,
            keys=keys,
            reachable=sum(key in self.reachable for key in keys),
            padded_tokens=padded,
            waste=waste,
            mib=attrs.evolve(self.costs, pool_mib=0.0).predict_mib(tokens),
            seconds=self.costs.predict_seconds(tokens),
            eager=tuple(size.requests for size in sizes if size.key is None),
        )

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``plan --json`` prints."""
        mode, plan = self.spec.mode, self.plan
        return {
            "mode": {
                "asked": mode.asked.value,
                "granted": mode.granted.value,
                "reasons": list(mode.reasons),
            },
            "tiers": [{"k": t.k, "first": t.first, "last": t.last} for t in self.tiers],
            "graphs": [
                graph_as_dict(key, adapters=self.spec.lora is not None) for key in plan.keys
            ],
            "planned": len(plan.keys),
            "reachable": len(self.reachable),
            "fallthrough": list(plan.fallthrough()),
            "padded_tokens_mean": self.padded_tokens,
            "predicted_mib": amount(self.mib),
            "predicted_seconds": amount(self.seconds),
            "by_tier": [tier.as_dict() for tier in self.tiers],
            "left_out": [part.as_dict() for part in left_out_of(plan)],
            "eager": [steps.as_dict() for steps in self.eager],
            "captures": {
                "assumed": self.captures_assumed,
                "kinds": sorted([phase.value, mode.value] for phase, mode in self.captures),
            },
        }


def graph_as_dict(key: CaptureKey, *, adapters: bool = False) -> Mapping[str, Any]:
    """Plain data of one graph. Piecewise graphs are of tokens of any requests, so their `requests` is None."""
    data = {
        "phase": key.phase.value,
        "mode": key.mode.value,
        "k": key.k,
        "requests": key.bucket if key.mode is GraphMode.FULL else None,
        "tokens": key.tokens,
    }
    return {**data, "adapters": key.lora} if adapters else data


def amount(estimate: Estimate | None) -> float | None:
    """The number alone."""
    return None if estimate is None else estimate.amount


def _means(sizes: Sequence[BatchSize]) -> tuple[float | None, float | None]:
    """Padded tokens a step, and those in proportion to useful ones; None where no step has such a size."""
    steps = math.fsum(size.weight for size in sizes)
    if not steps:
        return None, None
    padded = math.fsum(size.weight * size.padded_tokens for size in sizes)
    useful = math.fsum(size.weight * size.useful_tokens for size in sizes)
    return padded / steps, padded / useful
