"""Batches for tests of verification: random ones with every method and edge, and how a request is taken out of one."""

import random
from typing import Any

import attrs
import torch

from graphspec.config.speculative import RejectionSampleMethod
from graphspec.kernels.verify import method_codes, verify_drafts
from graphspec.kernels.verify_random import accept_uniform, sample_uniform
from graphspec.kernels.verify_reference import Philox, decide, rows_of
from graphspec.kernels.verify_values import (
    FlyRule,
    Sampling,
    Verdict,
    VerifyJob,
    conditional_rates,
)

METHODS = list(RejectionSampleMethod)
RATES = (0.9, 0.6, 0.3, 0.2, 0.1)
FLY = FlyRule(window=1, entropy_threshold=0.2, entropy_top_k=3)


@attrs.frozen(kw_only=True, eq=False)
class Batch:
    """The arguments of `verify_drafts`."""

    logits: torch.Tensor
    drafts: torch.Tensor
    cu_drafts: torch.Tensor
    arguments: dict

    def alone(self, request: int) -> "Batch":
        """One request of the batch, as a batch of its own."""
        first, end = self.cu_drafts[request : request + 2].tolist()
        one = slice(request, request + 1)
        sampling = attrs.asdict(self.arguments["sampling"], recurse=False)
        arguments = {
            **self.arguments,
            "sampling": Sampling(**{k: v[one].contiguous() for k, v in sampling.items()}),
            "methods": self.arguments["methods"][one],
        }
        if arguments["draft_probs"] is not None:
            arguments["draft_probs"] = arguments["draft_probs"][first:end]
        return Batch(
            logits=self.logits[first + request : end + request + 1],
            drafts=self.drafts[first:end],
            cu_drafts=torch.tensor([0, end - first]),
            arguments=arguments,
        )

    def job(self) -> VerifyJob:
        """The batch as implementations take it."""
        a = self.arguments
        probs = a["draft_probs"]
        widths = [self.logits.shape[1], *([] if probs is None else [probs.shape[1]])]
        return VerifyJob(
            logits=self.logits,
            drafts=self.drafts,
            cu_drafts=self.cu_drafts,
            draft_probs=probs,
            sampling=a["sampling"],
            methods=method_codes(a["methods"], len(a["methods"]), "cpu"),
            fly=a["fly"],
            chances=torch.tensor(conditional_rates(a["synthetic_rates"]), dtype=torch.float64),
            max_drafts=a["max_drafts"],
            vocab=min(widths),
        )


def random_batch(
    seed: int,
    *,
    vocab: int,
    requests: int = 8,
    most: int = 5,
    dense: bool = True,
    dtype: torch.dtype = torch.float32,
    spoilt: bool = False,
    draft_vocab: int | None = None,
) -> Batch:
    """Requests of every method and temperature, with 0 to `most` drafts that are often right.

    `spoilt` adds what should not be there: padded drafts, ids outside of the vocabulary, NaN, infinities, zeros in q.
    """
    choose = random.Random(seed)
    make = torch.Generator().manual_seed(seed)
    lengths = [choose.randint(0, most) for _ in range(requests)]
    cu = torch.tensor([0, *lengths]).cumsum(0)
    total = int(cu[-1])
    logits = torch.randn(total + requests, vocab, generator=make) * choose.choice([0.3, 1.0, 4.0])
    q = torch.softmax(torch.randn(total, draft_vocab or vocab, generator=make), -1)
    drafts = torch.empty(total, dtype=torch.int64)
    for r in range(requests):
        for i in range(int(cu[r]), int(cu[r + 1])):
            # Often the best token, so that drafts are accepted; sometimes nearly sure.
            drafts[i] = choose.randrange(min(vocab, q.shape[1]))
            if choose.random() < 0.6:
                drafts[i] = logits[i + r, : q.shape[1]].argmax()
            if choose.random() < 0.3:
                logits[i + r, drafts[i]] += 6
            q[i] = 0.5 * q[i]
            q[i, drafts[i]] += 0.5
    if spoilt:
        for i in range(total):
            kind = choose.random()
            if kind < 0.1:
                drafts[i] = choose.choice([-1, -7, vocab, 2**31 - 1])
            elif kind < 0.2:
                q[i, drafts[i].clamp(0, q.shape[1] - 1)] = choose.choice([0.0, float("nan")])
        for row in range(total + requests):
            kind, at = choose.random(), choose.randrange(vocab)
            if kind < 0.05:
                logits[row, at] = choose.choice([float("nan"), float("inf")])
            elif kind < 0.08:
                logits[row] = float("-inf")
            elif kind < 0.3:
                logits[row, torch.rand(vocab, generator=make) < 0.5] = float("-inf")
    sampling = Sampling.of(
        temperature=[choose.choice([0, 0, 0.5, 1.0, 1.0, 1.7]) for _ in range(requests)],
        seed=[choose.randrange(-(2**63), 2**63) for _ in range(requests)],
        position=[choose.randrange(2**40) for _ in range(requests)],
        top_k=[choose.choice([0, 0, 1, 2, 5, 40]) for _ in range(requests)],
        top_p=[choose.choice([1, 1, 0.9, 0.5, 0.1]) for _ in range(requests)],
        min_p=[choose.choice([0, 0, 0.02, 0.5]) for _ in range(requests)],
    )
    methods = [choose.choice(METHODS) for _ in range(requests)]
    return Batch(
        logits=logits.to(dtype),
        drafts=drafts,
        cu_drafts=cu,
        arguments={
            "sampling": sampling,
            "methods": methods,
            "draft_probs": q if dense else None,
            "fly": FLY,
            "synthetic_rates": RATES[:most],
            "max_drafts": most,
        },
    )


@attrs.define
class Watched:
    """Chances as `Philox` gives them; remembers how near the nearest decision was to falling the other way."""

    chances: Philox
    margin: float = 1.0

    def accept(self, row: int, chance: float, *, or_equal: bool = False) -> bool:
        u = accept_uniform(self.chances.seed, self.chances.position + row)
        self.margin = min(self.margin, abs(u - chance))
        return self.chances.accept(row, chance, or_equal=or_equal)

    def pick(self, row: int, weights: torch.Tensor) -> int:
        token = self.chances.pick(row, weights)
        shares = weights.double().cumsum(0) / weights.double().sum()
        u = sample_uniform(self.chances.seed, self.chances.position + row)
        before = float(shares[token - 1]) if token else -1.0
        self.margin = min(self.margin, abs(u - before), abs(float(shares[token]) - u))
        return token


SLACK = 1e-5
"""Decisions nearer than this may fall the other way in float32: docs/verification.md."""


def disagreements(batch: Batch, verdict: Verdict) -> list[int]:
    """Requests whose verdict is not the reference's although no decision was near."""
    job, wrong = batch.job(), []
    for r in range(job.requests):
        rows = rows_of(job, r)
        seed, position = (int(t[r]) for t in (job.sampling.seed, job.sampling.position))
        watched = Watched(Philox(seed=seed, position=position))
        kept, token = decide(rows, watched)
        tokens = [*rows.drafts[:kept], *([] if token is None else [token])]
        count = int(verdict.counts[r])
        same = tokens == verdict.tokens[r, :count].tolist() and bool(verdict.broken[r]) == (
            token is None
        )
        if (
            not (same and set(verdict.tokens[r, count:].tolist()) <= {-1})
            and watched.margin > SLACK
        ):
            wrong.append(r)
    return wrong


def run(batch: Batch, implementation: str) -> Verdict:
    """The verdict of one implementation."""
    return verify_drafts(
        batch.logits,
        batch.drafts,
        batch.cu_drafts,
        **batch.arguments,
        implementation=implementation,
    )


def answers(verdict: Verdict) -> list[list[int]]:
    """The tokens of each request."""
    rows = zip(verdict.tokens.tolist(), verdict.counts.tolist(), strict=True)
    return [tokens[:count] for tokens, count in rows]


def ask(
    target: list[list[list[float]]],
    drafts: list[list[int]],
    implementation: str = "reference",
    **arguments: Any,
) -> list[list[int]]:
    """Tokens of requests that are written as lists of rows of logits and lists of drafts; greedy unless told otherwise."""
    lengths = torch.tensor([0, *map(len, drafts)])
    arguments.setdefault("sampling", Sampling.of(temperature=[0.0] * len(drafts)))
    verdict = verify_drafts(
        torch.tensor([row for rows in target for row in rows], dtype=torch.float32),
        torch.tensor([d for request in drafts for d in request], dtype=torch.int64),
        lengths.cumsum(0),
        implementation=implementation,
        **arguments,
    )
    return answers(verdict)
