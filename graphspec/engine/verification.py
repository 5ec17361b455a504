"""Verification of a step: which drafts of each request the target keeps, and the token behind them.

The one place where the engine meets `graphspec.kernels.verify_drafts`, and `verify_trees` for drafts that form trees. Where every request is greedy under an exact
method, the best tokens that the step returns anyway are enough.
"""

from collections.abc import Mapping, Sequence

import attrs
import torch

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.engine.outputs import StepOutputs
from graphspec.engine.request import Request
from graphspec.engine.sampling import Accepted, accept_greedy, accept_greedy_tree
from graphspec.engine.scheduler import Scheduled
from graphspec.errors import Problem, SpecError
from graphspec.kernels import FlyRule, Sampling, Verdict, verify_drafts
from graphspec.kernels.tree import verify_trees
from graphspec.resolve.spec import EngineSpec
from graphspec.resolve.verification import VerificationSpec

_EXACT = frozenset({RejectionSampleMethod.STANDARD, RejectionSampleMethod.BLOCK})


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """One sampling request's part of a step, and where its 1 + drafts rows begin in the logits."""

    part: Scheduled
    request: Request
    first: int

    @property
    def drafts(self) -> tuple[int, ...]:
        """The drafts that the rows decide on."""
        tokens = self.part.tokens
        return tokens[len(tokens) - self.part.drafts :]


def check_trees(spec: EngineSpec) -> None:
    """Raises `SpecError` for a rule that no tree of drafts can be verified by, where the contract has trees."""
    rule = spec.speculative.verification if spec.speculative else None
    if rule is None or not spec.drafts_in_trees or rule.rejection_sample_method in _EXACT:
        return
    raise SpecError(
        Problem(
            where="speculative.rejection_sample_method",
            found=f"{rule.rejection_sample_method.value} for trees of drafts",
            wanted="standard or block: a tree is kept as far as the target itself would write it",
        )
    )


def verify_step(
    spec: EngineSpec,
    rows: Sequence[Rows],
    outputs: StepOutputs,
    draft_logits: Mapping[int, torch.Tensor],
    implementation: str = "auto",
) -> list[Accepted]:
    """What each request of `rows` accepts, in their order.

    draft_logits: by request, [drafts, vocabulary] float32 of the distribution that its drafts were drawn from; requests
    that it lacks were given sure drafts. implementation: as for `verify_drafts`.
    """
    rule = spec.speculative.verification if spec.speculative else None
    method = rule.rejection_sample_method if rule else RejectionSampleMethod.STANDARD
    best, margins = outputs.best.tolist(), outputs.margin.tolist()
    made: dict[int, Accepted] = {}
    sampled: list[Rows] = []
    trees: list[Rows] = []
    for r in rows:
        here = slice(r.first, r.first + 1 + r.part.drafts)
        if r.part.parents and not r.request.params.greedy:
            trees.append(r)
        elif r.part.parents:
            made[r.request.id] = accept_greedy_tree(
                r.drafts, r.part.parents, best[here], margins[here]
            )
        elif r.request.params.greedy and method in _EXACT:
            made[r.request.id] = accept_greedy(r.drafts, best[here], margins[here])
        else:
            sampled.append(r)
    if trees:
        made.update(_sampled_trees(trees, outputs.logits, implementation))
    # Each request's outcome is its own whatever the batch, so those with and without draft logits may go one by one.
    for drawn in (False, True):
        group = [r for r in sampled if (r.request.id in draft_logits) is drawn]
        if group:
            logits = [draft_logits[r.request.id][: r.part.drafts] for r in group if drawn]
            probs = torch.cat(logits).softmax(dim=-1) if drawn else None
            made.update(_sampled(spec, method, group, outputs.logits, probs, implementation))
    return [made[r.request.id] for r in rows]


def _sampled(
    spec: EngineSpec,
    method: RejectionSampleMethod,
    group: Sequence[Rows],
    logits: torch.Tensor,
    draft_probs: torch.Tensor | None,
    implementation: str,
) -> Mapping[int, Accepted]:
    device = logits.device
    rule = spec.speculative.verification if spec.speculative else None
    drafts = [token for r in group for token in r.drafts]
    ends = [0]
    for r in group:
        ends.append(ends[-1] + r.part.drafts)
    verdict: Verdict = verify_drafts(
        _logits_of(group, logits),
        torch.tensor(drafts, dtype=torch.int64, device=device),
        torch.tensor(ends, dtype=torch.int64, device=device),
        sampling=_sampling_of(group, device),
        methods=method,
        draft_probs=draft_probs,
        fly=_fly_of(rule),
        synthetic_rates=rule.synthetic_acceptance_rates if rule else None,
        max_drafts=max(r.part.drafts for r in group),
        implementation=implementation,
    )
    counts, broken = verdict.counts.tolist(), verdict.broken.tolist()
    return {
        r.request.id: Accepted(tokens=tuple(tokens[:count]), broken=bad)
        for r, tokens, count, bad in zip(
            group, verdict.tokens.tolist(), counts, broken, strict=True
        )
    }


def _sampled_trees(
    group: Sequence[Rows], logits: torch.Tensor, implementation: str
) -> Mapping[int, Accepted]:
    """Whatever the drafts were drawn from, the target's own tokens decide: see `verify_trees`."""
    verdicts = verify_trees(
        _logits_of(group, logits),
        [r.drafts for r in group],
        [r.part.parents for r in group],
        sampling=_sampling_of(group, logits.device),
        implementation=implementation,
    )
    return {
        r.request.id: Accepted(tokens=v.tokens, broken=v.broken, kept=v.kept)
        for r, v in zip(group, verdicts, strict=True)
    }


def _logits_of(group: Sequence[Rows], logits: torch.Tensor) -> torch.Tensor:
    at = [r.first + row for r in group for row in range(1 + r.part.drafts)]
    return logits.index_select(0, torch.tensor(at, device=logits.device))


def _sampling_of(group: Sequence[Rows], device: torch.device) -> Sampling:
    params = [r.request.params for r in group]
    return Sampling.of(
        temperature=[p.temperature for p in params],
        seed=[r.request.seed for r in group],
        position=[len(r.request.tokens) for r in group],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
        device=str(device),
    )


def _fly_of(rule: VerificationSpec | None) -> FlyRule | None:
    if rule is None or rule.rejection_sample_method is not RejectionSampleMethod.FLY:
        return None
    window, threshold = rule.fly_window_size, rule.fly_entropy_threshold
    top_k = rule.fly_entropy_top_k
    # Settled when the contract was resolved.
    assert window is not None
    assert threshold is not None
    assert top_k is not None
    return FlyRule(window=window, entropy_threshold=threshold, entropy_top_k=top_k)
