"""`SamplingParams`: how a request's tokens are chosen, and when it ends."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from graphspec.errors import Problem, RequestError
from graphspec.kernels.tree import verdict_on


def _ids(given: Iterable[int]) -> frozenset[int]:
    return frozenset(given)


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@attrs.frozen(kw_only=True)
class SamplingParams:
    """One request's wishes. Raises `RequestError` with everything that is wrong.

    `temperature` 0 takes the best token each time, and the other filters then change nothing. `top_k` 0 and `top_p` 1 keep
    the whole vocabulary; `min_p` keeps tokens of at least that share of the best one's probability. `seed` makes the random
    numbers those of the request alone, whatever else is in its batches.

    A request ends with the tokenizer's end-of-text unless `ignore_eos`, after a token of `stop_token_ids`, before the first
    text of `stop`, and after `max_tokens`. `speculate` False decodes it without drafts. Requests share cached prefixes only
    with those of the same `cache_salt`, which keeps tenants from learning of each other by the time an answer takes.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 64
    stop: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    stop_token_ids: frozenset[int] = attrs.field(default=frozenset(), converter=_ids)
    ignore_eos: bool = False
    speculate: bool = True
    cache_salt: str = ""

    def __attrs_post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise RequestError(problems)

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, so that no random number is needed."""
        return self.temperature == 0

    def _problems(self) -> Iterator[Problem]:
        for name, wanted, holds in _RULES:
            if not holds(self):
                yield Problem(where=name, found=repr(getattr(self, name)), wanted=wanted)


def _finite_from_zero(value: float) -> bool:
    return 0 <= value < float("inf")


_RULES: tuple[tuple[str, str, Callable[[SamplingParams], bool]], ...] = (
    (
        "temperature",
        "a finite number, 0 or more; 0 takes the best token",
        lambda p: _finite_from_zero(p.temperature),
    ),
    ("top_k", "0 for the whole vocabulary, or a number of tokens", lambda p: p.top_k >= 0),
    ("top_p", "above 0, at most 1", lambda p: 0 < p.top_p <= 1),
    ("min_p", "0 to 1", lambda p: 0 <= p.min_p <= 1),
    (
        "seed",
        "none, or an integer of 63 bits, 0 or more",
        lambda p: p.seed is None or 0 <= p.seed < 1 << 63,
    ),
    ("max_tokens", "at least 1", lambda p: p.max_tokens >= 1),
    ("stop", "texts of at least one character", lambda p: all(p.stop)),
)


@attrs.frozen(kw_only=True)
class Accepted:
    """What verification gave one request in one step: the drafts that were right, then one token more.

    `margins` has for each token how far its logit lay above the second best, where the best was taken. `broken` says that
    a row of logits was no distribution (a NaN, say): what comes before it is good, and nothing can follow. `kept` has the
    indices of the right drafts of a tree, from the first on; None for a chain, where they are the first ones.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...] = ()
    broken: bool = False
    kept: tuple[int, ...] | None = None

    @property
    def right(self) -> int:
        """How many drafts were right."""
        return len(self.tokens) - (not self.broken)


def accept_greedy(drafts: Sequence[int], best: Sequence[int], margins: Sequence[float]) -> Accepted:
    """Greedy verification: drafts are right as long as each is the target's best token after those before it.

    `best` and `margins` have a row for the last known token, and one for each draft. The margin of a row without a best
    token is NaN.
    """
    rows = 1
    while rows <= len(drafts) and drafts[rows - 1] == best[rows - 1]:
        rows += 1
    whole = next((row for row in range(rows) if math.isnan(margins[row])), rows)
    return Accepted(tokens=tuple(best[:whole]), margins=tuple(margins[:whole]), broken=whole < rows)


def accept_greedy_tree(
    drafts: Sequence[int], parents: Sequence[int], best: Sequence[int], margins: Sequence[float]
) -> Accepted:
    """As `accept_greedy`, for drafts that form a tree: the longest path that the target would write itself is right."""
    broken = [math.isnan(m) for m in margins]
    verdict = verdict_on(drafts, parents, best, broken)
    rows = [0, *(draft + 1 for draft in verdict.kept)][: len(verdict.tokens)]
    return Accepted(
        tokens=verdict.tokens,
        margins=tuple(margins[row] for row in rows),
        broken=verdict.broken,
        kept=verdict.kept,
    )
