"""What an engine did, in numbers: drafts and how many were right, how steps ran, what padding cost, how full the cache is.

`EngineCollector` gives them to Prometheus: those that vLLM has too under vLLM's names, so that its dashboards work.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.tiers.metrics import prometheus_core
from graphspec.capture.dispatch import Dispatch
from graphspec.engine.sampling import Accepted
from graphspec.engine.scheduler import Scheduler, StepPlan, StepResult

Mode = tuple[str, str]
"""How a step or a draft phase ran: in a `full` or `piecewise` graph, or in `none`; and why not in a full one, or an empty
text."""


@attrs.frozen(kw_only=True)
class EngineCounts:
    """Counts since the engine began, and how things stand now.

    A draft is one request's drafts in one step; `trimmed_tokens` of them were not verified, as not worth their time, and count
    as wrong. `accepted_at` has for each position how often the draft there was right;
    stop rules may have cut it off afterwards. `depths` counts steps by the k they verified, `modes` by how they ran.
    `draft_modes` counts the draft phases of steps in the same way; a step in which nobody wants drafts has none. `tokens`
    were computed for requests, `padding` beside them. `prefix_queries` and `prefix_hits` are prompt tokens.
    """

    drafts: int
    draft_tokens: int
    trimmed_tokens: int
    accepted_tokens: int
    accepted_at: tuple[int, ...]
    depths: Mapping[int, int]
    modes: Mapping[Mode, int]
    draft_modes: Mapping[Mode, int]
    tokens: int
    padding: int
    generated_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    finished: Mapping[str, int]
    running: int
    waiting: int
    kv_usage: float

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step with drafts gives a request on average, 1 without any that is right; NaN before the first."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else float("nan")

    @property
    def padding_share(self) -> float:
        """Share of computed tokens that were padding, 0 to 1."""
        return self.padding / (self.tokens + self.padding) if self.tokens else 0.0


class EngineMetrics:
    """Counts steps. `snapshot` gives a value that no later step changes."""

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self._scheduler = scheduler
        self._total: Counter[str] = Counter()
        self._accepted_at = [0] * depth
        self._depths: Counter[int] = Counter()
        self._modes: Counter[Mode] = Counter()
        self._draft_modes: Counter[Mode] = Counter()
        self._finished: Counter[str] = Counter()

    def count_step(
        self, plan: StepPlan, accepted: Sequence[Accepted | None], result: StepResult, rows: int
    ) -> None:
        """Counts a finished step that computed `rows` rows, padding included."""
        total = self._total
        for part, new in zip(plan.requests, accepted, strict=True):
            if new is not None and (part.drafts or part.trimmed):
                total["drafts"] += 1
                total["draft_tokens"] += part.drafts + part.trimmed
                total["trimmed_tokens"] += part.trimmed
                total["accepted_tokens"] += new.right
                for at in range(new.right):
                    self._accepted_at[at] += 1
        total["tokens"] += plan.tokens
        total["padding"] += rows - plan.tokens
        total["generated_tokens"] += sum(len(delta.tokens) for delta in result.deltas)
        total["preemptions"] += len(plan.preempted)
        for queried, hit in plan.admitted:
            total["prefix_queries"] += queried
            total["prefix_hits"] += hit
        self.count_ended(result)
        self._depths[plan.route.k] += 1
        self._modes[_mode_of(plan.route)] += 1

    def count_drafting(self, phases: Sequence[Dispatch]) -> None:
        """Counts the draft phases of a step by how they ran."""
        self._draft_modes.update(map(_mode_of, phases))

    def count_ended(self, result: StepResult) -> None:
        """Counts the requests that ended, in a step or by an abort."""
        self._finished.update(d.finished.value for d in result.deltas if d.finished is not None)

    def snapshot(self) -> EngineCounts:
        """The counts so far."""
        names = (
            "drafts draft_tokens trimmed_tokens accepted_tokens tokens padding generated_tokens prefix_queries "
            "prefix_hits preemptions"
        )
        return EngineCounts(
            **{name: self._total[name] for name in names.split()},
            accepted_at=tuple(self._accepted_at),
            depths=dict(self._depths),
            modes=dict(self._modes),
            draft_modes=dict(self._draft_modes),
            finished=dict(self._finished),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_usage=self._scheduler.kv.usage,
        )


def _mode_of(way: Dispatch) -> Mode:
    mode = "none" if way.key is None else way.key.mode.value
    return mode, way.reason.name.lower() if way.reason else ""


class EngineCollector:
    """Metrics of one engine: ``REGISTRY.register(EngineCollector("smollm2", engine.counts))``; the name is the label
    `model_name`. Each scrape is one snapshot. Raises `EnvironmentProblem` where prometheus_client is missing.

    | metric | more labels | says |
    |---|---|---|
    | ``vllm:spec_decode_num_drafts_total`` | | drafts that were verified: one request in one step |
    | ``vllm:spec_decode_num_draft_tokens_total`` | | tokens of them |
    | ``vllm:spec_decode_num_accepted_tokens_total`` | | those that were right |
    | ``vllm:spec_decode_num_accepted_tokens_per_pos_total`` | position | the same, by position in the draft |
    | ``vllm:generation_tokens_total`` | | tokens that requests were given |
    | ``vllm:prefix_cache_queries_total``, ``vllm:prefix_cache_hits_total`` | | tokens looked up, and found |
    | ``vllm:num_preemptions_total`` | | times that a request lost its blocks |
    | ``vllm:request_success_total`` | finished_reason | requests that ended |
    | ``vllm:num_requests_running``, ``vllm:num_requests_waiting`` | | requests now |
    | ``vllm:kv_cache_usage_perc`` | | share of the blocks in use, 0 to 1 |
    | ``graphspec_engine_acceptance_length`` | | tokens of a step with drafts; absent before the first |
    | ``graphspec_engine_steps_total`` | mode, reason | steps by graph, and why not a full one |
    | ``graphspec_engine_draft_phases_total`` | mode, reason | the same of the draft phases after them |
    | ``graphspec_engine_verified_depth_total`` | k | steps by the depth that they verified |
    | ``graphspec_engine_tokens_total`` | kind | rows computed: `real`, `padding` |
    | ``graphspec_engine_trimmed_draft_tokens_total`` | | draft tokens that adaptive verification left out; they count as wrong |
    """

    def __init__(self, model_name: str, counts: Callable[[], EngineCounts]) -> None:
        prometheus_core()
        self._model_name = model_name
        self._counts = counts

    def collect(self) -> Iterator[Any]:
        """All metrics with the values of one snapshot."""
        counts = self._counts()
        for family, values in zip(self.describe(), _values(counts), strict=True):
            for labels, value in values:
                family.add_metric((self._model_name, *labels), value)
            yield family

    def describe(self) -> Iterator[Any]:
        """The metrics without values."""
        core = prometheus_core()
        for name, text, labels in _COUNTERS:
            yield core.CounterMetricFamily(name, text, labels=("model_name", *labels))
        for name, text in _GAUGES:
            yield core.GaugeMetricFamily(name, text, labels=("model_name",))


_COUNTERS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("vllm:spec_decode_num_drafts", "Drafts that were verified.", ()),
    ("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified.", ()),
    ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were right.", ()),
    (
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that were right, by position in the draft.",
        ("position",),
    ),
    ("vllm:generation_tokens", "Tokens that requests were given.", ()),
    ("vllm:prefix_cache_queries", "Tokens that were looked up in the prefix cache.", ()),
    ("vllm:prefix_cache_hits", "Tokens that were found there.", ()),
    ("vllm:num_preemptions", "Times that a request lost its blocks.", ()),
    ("vllm:request_success", "Requests that ended.", ("finished_reason",)),
    ("graphspec_engine_steps", "Steps, by the graph that they ran in.", ("mode", "reason")),
    (
        "graphspec_engine_draft_phases",
        "Draft phases, by the graph that they ran in.",
        ("mode", "reason"),
    ),
    ("graphspec_engine_verified_depth", "Steps, by the depth that they verified.", ("k",)),
    ("graphspec_engine_tokens", "Rows that were computed.", ("kind",)),
    ("graphspec_engine_trimmed_draft_tokens", "Draft tokens that were not verified.", ()),
)
_GAUGES = (
    ("vllm:num_requests_running", "Requests that hold blocks."),
    ("vllm:num_requests_waiting", "Requests that hold none yet."),
    ("vllm:kv_cache_usage_perc", "Share of the blocks in use, 0 to 1."),
    ("graphspec_engine_acceptance_length", "Tokens that a step with drafts gives a request."),
)

_Samples = Sequence[tuple[tuple[str, ...], float]]


def _values(c: EngineCounts) -> Iterator[_Samples]:
    """The samples of each family, in the order of `describe`."""

    def one(value: float) -> _Samples:
        return [((), value)]

    yield from map(one, (c.drafts, c.draft_tokens, c.accepted_tokens))
    yield [((str(at),), value) for at, value in enumerate(c.accepted_at)]
    yield from map(one, (c.generated_tokens, c.prefix_queries, c.prefix_hits, c.preemptions))
    yield [((reason,), value) for reason, value in c.finished.items()]
    yield list(c.modes.items())
    yield list(c.draft_modes.items())
    yield [((str(k),), value) for k, value in c.depths.items()]
    yield [(("real",), c.tokens), (("padding",), c.padding)]
    yield one(c.trimmed_tokens)
    yield from map(one, (c.running, c.waiting, c.kv_usage))
    yield one(c.acceptance_length) if c.drafts else []
