"""What ranks agree on: the same facts before capture, the same graphs before serving, the same shape at each step."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import attrs

from graphspec.capture.attempts import one_line
from graphspec.capture.dispatch import Step
from graphspec.capture.keys import CaptureKey
from graphspec.capture.ranks import Ranks
from graphspec.capture.survivors import Agreement, agree
from graphspec.errors import CaptureError, Problem

_UNKNOWN = -1
"""Stands for the tokens of a step that its engine does not count."""


def agree_on(ranks: Ranks, facts: Mapping[str, str]) -> None:
    """Raises `CaptureError` unless every rank has the same facts, such as graph mode, plan and capture hash.

    Digests are compared; only where they differ are the texts gathered, and the error names each fact that differs, the
    ranks that differ from rank 0, and the first line in which they do.
    """
    text = json.dumps(dict(facts), sort_keys=True).encode()
    digests = ranks.gather(hashlib.sha256(text).digest())
    if len(set(digests)) == 1:
        return
    by_rank = [json.loads(each) for each in ranks.gather(text)]
    raise CaptureError(_differences(by_rank))


def _differences(by_rank: Sequence[Mapping[str, str]]) -> list[Problem]:
    problems = []
    for name in sorted(set().union(*by_rank)):
        first = by_rank[0].get(name, "nothing")
        others: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
            if (value := facts.get(name, "nothing")) != first:
                others.setdefault(value, []).append(rank)
        for value, which in others.items():
            ours, theirs = _first_difference(first, value)
            who = "rank" if len(which) == 1 else "ranks"
            problems.append(
                Problem(
                    where=name,
                    found=f"{theirs} on {who} {', '.join(map(str, which))}",
                    wanted=f"{ours}, as on rank 0",
                    hint="start all ranks with the same config, files and version of graphspec",
                )
            )
    return problems


def _first_difference(one: str, other: str) -> tuple[str, str]:
    """The first lines in which two texts differ."""
    pairs = itertools.zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing")
    return next(((a, b) for a, b in pairs if a != b), (one, other))


def agree_on_captured(
    ranks: Ranks, planned: Sequence[CaptureKey], kept: Sequence[CaptureKey]
) -> Agreement:
    """The graphs that every rank kept. All ranks come to the same, or all raise.

    Raises `CaptureError` where a rank has another plan, or said by `others_told` that it cannot go on, naming it.
    """
    place = {key: at for at, key in enumerate(planned)}
    return _agreement(ranks, planned, {"kept": sorted(place[key] for key in kept)})


@contextmanager
def others_told(ranks: Ranks, planned: Sequence[CaptureKey]) -> Iterator[None]:
    """For what a rank does on its own before `agree_on_captured`: where that raises, the others are told why in its
    place, so that they raise too and do not wait for this rank. An interrupt tells nobody: it wants no more waiting."""
    try:
        yield
    except Exception as error:
        # That the others are told is an error of its own, here too; and who cannot be reached cannot be told.
        with suppress(Exception):
            _agreement(ranks, planned, {"failed": one_line(error)})
        raise


def _agreement(
    ranks: Ranks, planned: Sequence[CaptureKey], told: Mapping[str, object]
) -> Agreement:
    plan = hashlib.sha256("\n".join(map(repr, planned)).encode()).hexdigest()
    given = [json.loads(each) for each in ranks.gather(json.dumps({"plan": plan, **told}).encode())]
    problems = [
        Problem(
            where=f"rank {rank}",
            found=f"a failure: {said['failed']}",
            wanted="captured graphs",
            hint="mend that rank; no rank serves without it",
        )
        if "failed" in said
        else Problem(
            where=f"rank {rank}",
            found="another plan",
            wanted="the plan of this rank",
            hint="start all ranks with the same config, files and version of graphspec",
        )
        for rank, said in enumerate(given)
        if "failed" in said or said["plan"] != plan
    ]
    if problems:
        raise CaptureError(problems)
    return agree(planned, [[planned[at] for at in said["kept"]] for said in given])


def common_step(steps: Sequence[Step]) -> Step:
    """The one shape that all ranks run when these are their own steps: each pads up to it.

    Most requests, deepest k, most adapters; a prefill or a ragged batch anywhere is one everywhere, and then the tokens
    are the most of any rank. A rank without requests takes part with none, and runs padding only. Dispatched on the
    agreed graphs, it is the same answer on every rank, since the answer depends on nothing else.
    """
    if len(steps) == 1:
        return steps[0]
    uniform = all(step.uniform and step.not_a_decode is None for step in steps if step.requests)
    return Step(
        requests=max(step.requests for step in steps),
        proposed_k=max(step.proposed_k for step in steps),
        prefill=any(step.prefill for step in steps),
        tokens=None if uniform else max(map(_tokens, steps)),
        uniform=uniform,
        lora=max(step.lora for step in steps),
    )


def agree_on_step(ranks: Ranks, step: Step) -> Step:
    """`common_step` of what each rank is about to run: one small gather."""
    tokens = _UNKNOWN if step.tokens is None else step.tokens
    mine = (step.requests, step.proposed_k, step.prefill, tokens, step.uniform, step.lora)
    return common_step([_step(*given) for given in ranks.gather_ints([int(v) for v in mine])])


def _step(requests: int, k: int, prefill: int, tokens: int, uniform: int, lora: int) -> Step:
    return Step(
        requests=requests,
        proposed_k=k,
        prefill=bool(prefill),
        tokens=None if tokens == _UNKNOWN else tokens,
        uniform=bool(uniform),
        lora=lora,
    )


def _tokens(step: Step) -> int:
    return step.requests * (1 + step.proposed_k) if step.tokens is None else step.tokens


@attrs.frozen(kw_only=True)
class Facts:
    """What ranks must have in common before any of them captures."""

    mode: str
    capture_hash: str
    planned: Sequence[CaptureKey]

    def as_texts(self) -> Mapping[str, str]:
        """By name, as `agree_on` takes them."""
        return {
            "granted graph mode": self.mode,
            "capture hash": self.capture_hash,
            "capture plan": "\n".join(f"{key} of {key.width} tokens" for key in self.planned),
        }
