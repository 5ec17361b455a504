"""Limits between sections: how many requests a step can hold, and what must fit before an engine starts."""

from collections.abc import Iterator

import attrs

from graphspec.config.schedule import KSchedule
from graphspec.config.scheduler import SchedulerConfig
from graphspec.errors import Problem, SpecError
from graphspec.resolve.records import Note
from graphspec.speculators.base import SpeculatorConfig

_BUDGET = "scheduler.max_num_batched_tokens"


@attrs.frozen(kw_only=True)
class Limits:
    """The most requests of a step as granted, and what was lowered."""

    max_num_seqs: int
    notes: tuple[Note, ...] = ()


def decide_limits(
    scheduler: SchedulerConfig,
    schedule: KSchedule,
    speculator: SpeculatorConfig | None,
    *,
    k: int,
    strict: bool,
) -> Limits:
    """The most requests a step can hold. Raises `SpecError` when the token budget cannot serve max_num_seqs at all.

    A verify step of b requests holds b x (1 + k) tokens, and a draft pass as many requests as the method says. A
    budget below that lowers max_num_seqs, with a note; with `strict` that is a `SpecError` too.
    """
    problems = list(budget_problems(scheduler, speculator, k))
    if problems:
        raise SpecError(problems)
    asked, budget = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    fits = next((b - 1 for b in range(1, asked + 1) if b * (1 + schedule.k_for(b)) > budget), asked)
    pass_holds = speculator.max_num_draft_seqs(budget, k) if speculator is not None else None
    granted = fits if pass_holds is None else min(fits, pass_holds)
    if granted == asked:
        return Limits(max_num_seqs=asked)
    next_up = min(granted + 1, asked)
    depth = schedule.k_for(next_up)
    if granted == 0:
        raise SpecError(_no_room(budget, depth, speculator, k))
    text = (
        f"scheduler.max_num_seqs is {granted} instead of {asked}: {next_up} requests with {depth} drafts each are "
        f"{next_up * (1 + depth)} tokens, and {_BUDGET} is {budget}"
        if granted == fits
        else f"scheduler.max_num_seqs is {granted} instead of {asked}: one draft pass of {budget} tokens holds no more"
    )
    whole = max(b * (1 + schedule.k_for(b)) for b in range(1, asked + 1))
    if pass_holds is not None and speculator is not None:
        whole = max(whole, asked * speculator.num_lookahead_tokens(k))
    if strict:
        raise SpecError(
            Problem(
                where=_BUDGET,
                found=str(budget),
                wanted=f"at least {whole}, since compilation.strict forbids to lower max_num_seqs",
                hint=text,
            )
        )
    note = Note(code="max_num_seqs_lowered", text=f"{text}; {whole} would serve all {asked}")
    return Limits(max_num_seqs=granted, notes=(note,))


def _no_room(budget: int, depth: int, speculator: SpeculatorConfig | None, k: int) -> Problem:
    least = 1 + depth
    if speculator is not None and speculator.max_num_draft_seqs(budget, k) is not None:
        least = max(least, speculator.num_lookahead_tokens(k))
    return Problem(
        where=_BUDGET,
        found=str(budget),
        wanted=f"at least {least}: one request with its drafts",
        hint=f"raise it to {least} or more, or lower speculative.num_speculative_tokens",
    )


def budget_problems(
    scheduler: SchedulerConfig, speculator: SpeculatorConfig | None, k: int
) -> Iterator[Problem]:
    """A step has room for one token of each request beside the slots that drafting adds."""
    slots = speculator.max_num_new_slots_for_drafting(k) if speculator is not None else 0
    asked, budget = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    left = budget - asked * slots
    if left >= asked:
        return
    drafts = f" - {asked} x {slots} slots for drafting = {left}" if slots else ""
    yield Problem(
        where=_BUDGET,
        found=f"{budget}{drafts} tokens for {asked} requests (max_num_seqs)",
        wanted="at least one token for each request",
        hint=f"any one of: {_BUDGET} {asked * (1 + slots)} or more; scheduler.max_num_seqs {budget // (1 + slots)} or "
        f"fewer{_fewer_drafts(scheduler, speculator, k)}",
    )


def _fewer_drafts(scheduler: SchedulerConfig, speculator: SpeculatorConfig | None, k: int) -> str:
    if speculator is None:
        return ""
    asked, budget = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    fitting = [
        n
        for n in range(1, k)
        if budget - asked * speculator.max_num_new_slots_for_drafting(n) >= asked
    ]
    return f"; speculative.num_speculative_tokens {fitting[-1]} or fewer" if fitting else ""
