"""Verification as the formulas have it: plain torch, float64, one request after another.

`decide` holds the rules. It asks `Chances` for what is random, so that the tests which enumerate every outcome with its
exact probability run the code that serving runs.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch

from graphspec.kernels.verify_random import accept_uniform, sample_uniform
from graphspec.kernels.verify_values import METHOD_CODES, FlyRule, Verdict, VerifyJob

_METHODS = {code: method.value for method, code in METHOD_CODES.items()}


class Chances(Protocol):
    """Where what is random comes from. `row` counts from the request's first."""

    def accept(self, row: int, chance: float, *, or_equal: bool = False) -> bool:
        """True with this chance: a uniform number of the row lies below it (or at most at it)."""
        ...

    def pick(self, row: int, weights: torch.Tensor) -> int:
        """An index, with a chance in proportion to its weight. One weight at least is positive."""
        ...


@attrs.frozen(kw_only=True)
class Philox:
    """Chances from a request's seed and the places of its rows."""

    seed: int
    position: int

    def accept(self, row: int, chance: float, *, or_equal: bool = False) -> bool:
        u = accept_uniform(self.seed, self.position + row)
        return u <= chance if or_equal else u < chance

    def pick(self, row: int, weights: torch.Tensor) -> int:
        return first_above(weights, sample_uniform(self.seed, self.position + row))


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """One request with n drafts that can be accepted.

    target: [n + 1, vocabulary], the distribution of each row after temperature and filters; for a greedy request, the
    softmax of the logits as they are. draft: [n, vocabulary] or None for drafts that were sure. best: the lowest of the most
    likely tokens of each row, for a greedy request; else None. broken: the last row is no distribution.
    """

    drafts: Sequence[int]
    target: torch.Tensor
    draft: torch.Tensor | None = None
    best: Sequence[int] | None = None
    method: str = "standard"
    fly: FlyRule | None = None
    chances: Sequence[float] = ()
    broken: bool = False

    def q(self, row: int) -> float:
        """The chance that the draft of this row had of being drafted."""
        return 1.0 if self.draft is None else float(self.draft[row, self.drafts[row]])

    def p(self, row: int) -> float:
        """The chance that the target gives the draft of this row."""
        return float(self.target[row, self.drafts[row]])


def decide(rows: Rows, random: Chances) -> tuple[int, int | None]:
    """How many drafts are accepted, and the token after them; None where verification ends at a broken row."""
    n, weight = len(rows.drafts), 1.0
    if rows.method == "fly":
        kept = _fly(rows, random)
    elif rows.method == "block" and rows.best is None:
        kept, weight = _block(rows, random)
    else:
        kept = next((i for i in range(n) if not _accepted(rows, i, random)), n)
    if kept == n and rows.broken:
        return kept, None
    if rows.best is not None:
        return kept, rows.best[kept]
    weights = rows.target[n] if kept == n else residual(rows, kept, weight)
    return kept, random.pick(kept, weights)


def _accepted(rows: Rows, i: int, random: Chances) -> bool:
    """The rule of one row, whatever becomes of the others."""
    if rows.method == "synthetic":
        return random.accept(i, rows.chances[i])
    if rows.best is not None:
        return rows.drafts[i] == rows.best[i]
    q = rows.q(i)
    return q > 0 and random.accept(i, rows.p(i) / q)


def _fly(rows: Rows, random: Chances) -> int:
    """Standard, except that an uncertain target lets a draft pass if the next ones are accepted on their own."""
    assert rows.fly is not None
    n, window = len(rows.drafts), rows.fly.window
    native = [_accepted(rows, i, random) for i in range(n)]
    for i in range(n):
        deferred = (
            i + window < n
            and all(native[i + 1 : i + 1 + window])
            and rows.p(i) > 0
            and (rows.best is not None or rows.q(i) > 0)
            and entropy(rows.target[i], rows.fly.entropy_top_k) >= rows.fly.entropy_threshold
        )
        if not native[i] and not deferred:
            return i
    return n


def _block(rows: Rows, random: Chances) -> tuple[int, float]:
    """Block verification (Sun et al. 2024, arXiv 2403.10444): the longest accepted part, and its weight.

    w(i) = min(1, w(i-1) p(x_i) / q(x_i)); R(i) = sum over x of max(w(i) p(x) - q(x), 0) in the row after the i-th draft;
    i drafts pass with chance R(i) / (R(i) + 1 - w(i)), all n with w(n). A failure does not end the search.
    """
    n, weights = len(rows.drafts), [1.0]
    for i in range(n):
        q = rows.q(i)
        weights.append(min(1.0, weights[i] * rows.p(i) / q) if q > 0 else 0.0)
    kept = 0
    for i in range(1, n + 1):
        w = weights[i]
        if i == n:
            chance = w
        else:
            mass = w * (1 - rows.p(i)) if rows.draft is None else float(surplus(rows, i, w).sum())
            chance = mass / (mass + 1 - w) if mass + 1 - w > 0 else 1.0
        if random.accept(i - 1, chance, or_equal=True):
            kept = i
    return kept, weights[kept]


def surplus(rows: Rows, row: int, weight: float = 1.0) -> torch.Tensor:
    """max(weight p - q, 0). A sure draft's q is one at the draft: there, nothing can remain."""
    if rows.draft is None:
        left = rows.target[row].clone()
        left[rows.drafts[row]] = 0
        return left
    return (weight * rows.target[row] - rows.draft[row]).nan_to_num(nan=0.0).clamp(min=0)


def residual(rows: Rows, row: int, weight: float = 1.0) -> torch.Tensor:
    """Weights of the token in place of a rejected draft; p itself where rounding leaves nothing of max(p - q, 0)."""
    left = surplus(rows, row, weight)
    return left if float(left.sum()) > 0 else rows.target[row]


def entropy(probabilities: torch.Tensor, top_k: int) -> float:
    """-sum p ln p in nats over the `top_k` largest, not renormalised."""
    largest = probabilities.topk(min(top_k, probabilities.shape[0])).values
    return float(torch.special.entr(largest).sum())


def first_above(weights: torch.Tensor, u: float) -> int:
    """The first index at which the sum of weights so far exceeds the part `u` of their total."""
    sums = weights.double().cumsum(0)
    above = (sums > u * sums[-1]).nonzero()
    # u < 1 leaves the total above its part, unless it is too small for a product to be exact.
    return int(above[0]) if len(above) else int(weights.nonzero()[-1])


def filtered(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """The distribution of each row, [rows, vocabulary], after temperature, min-p, top-k and top-p, in this order.

    min-p keeps tokens of at least `min_p` times the largest probability, top-k the k largest, top-p the fewest of the rest
    whose share of the rest's mass is at least `top_p`. Tokens as likely as the last one kept are kept too, so that no order
    of equal tokens matters.
    """
    p = torch.softmax(logits / temperature, -1)
    kept = p >= min_p * p.amax(-1, keepdim=True)
    if 0 < top_k < logits.shape[-1]:
        kept &= logits >= logits.topk(top_k).values[:, -1:]
    if top_p < 1:
        ordered, order = logits.masked_fill(~kept, -torch.inf).sort(descending=True)
        mass = (p * kept).gather(-1, order).cumsum(-1)
        enough = (mass >= top_p * mass[:, -1:]).int().argmax(-1, keepdim=True)
        kept &= logits >= ordered.gather(-1, enough)
    p = p * kept
    return p / p.sum(-1, keepdim=True)


def best_token(logits: torch.Tensor) -> list[int]:
    """The lowest of the largest of each row."""
    columns = torch.arange(logits.shape[-1], device=logits.device)
    largest = logits == logits.amax(-1, keepdim=True)
    return list(torch.where(largest, columns, logits.shape[-1]).amin(-1).tolist())


def usable_rows(logits: torch.Tensor) -> list[bool]:
    """Which rows are distributions: no NaN, no +inf, and something above -inf."""
    return list(torch.isfinite(logits.amax(-1)).tolist())


def rows_of(job: VerifyJob, request: int, dtype: torch.dtype = torch.float64) -> Rows:
    """One request's rows, up to its first draft outside of the vocabulary or its first broken row.

    What is cut off there cannot be accepted, and its first row then decides the token after the drafts before it: a padded
    draft means that there was no draft.
    """
    first, end = (int(job.cu_drafts[request + i]) for i in (0, 1))
    start, s = first + request, job.sampling
    logits = job.logits[start : start + end - first + 1, : job.vocab].to(dtype)
    drafts, usable = job.drafts[first:end].tolist(), usable_rows(logits)
    wrong = (i for i, d in enumerate(drafts) if not 0 <= d < job.vocab or not usable[i])
    n = next(wrong, len(drafts))
    logits = logits[: n + 1]
    temperature = float(s.temperature[request])
    greedy = not temperature > 0
    setting = (int(s.top_k[request]), float(s.top_p[request]), float(s.min_p[request]))
    return Rows(
        drafts=drafts[:n],
        target=torch.softmax(logits, -1) if greedy else filtered(logits, temperature, *setting),
        draft=None
        if job.draft_probs is None
        else job.draft_probs[first : first + n, : job.vocab].to(dtype),
        best=best_token(logits) if greedy else None,
        method=_METHODS[int(job.methods[request])],
        fly=job.fly,
        chances=job.chances.tolist(),
        broken=not usable[n],
    )


def verify(job: VerifyJob, dtype: torch.dtype = torch.float64) -> Verdict:
    """Every request of the batch in turn. Working memory: some ten rows of the vocabulary for each row of one request."""
    verdict = job.nothing_yet()
    for request in range(job.requests):
        rows = rows_of(job, request, dtype)
        seed, position = (int(t[request]) for t in (job.sampling.seed, job.sampling.position))
        kept, token = decide(rows, Philox(seed=seed, position=position))
        tokens = [*rows.drafts[:kept], *([] if token is None else [token])]
        verdict.tokens[request, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        verdict.counts[request] = len(tokens)
        verdict.broken[request] = token is None
    return verdict
