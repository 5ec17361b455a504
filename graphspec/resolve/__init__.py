"""The pipeline from `EngineConfig` to `EngineSpec`: one module a step, no way back."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import attrs

from graphspec.config.engine import EngineConfig
from graphspec.config.kernels import canonical_kernels
from graphspec.config.model import ModelSpec
from graphspec.config.partial import Partial, UnreadableError, readable
from graphspec.config.schedule import KSchedule
from graphspec.config.structure import structure_partial
from graphspec.errors import EnvironmentProblem, GraphspecError, Problem, SpecError
from graphspec.fields import evolve
from graphspec.frozen import FrozenMap
from graphspec.resolve.checkpoint import read_checkpoint
from graphspec.resolve.checks import MODEL_CHECKS, program_problems
from graphspec.resolve.decision import ModeDecision
from graphspec.resolve.engine_facts import mode_facts
from graphspec.resolve.limits import Limits, budget_problems, decide_limits
from graphspec.resolve.model_facts import ModelFacts, length_problems, target_facts, target_spec
from graphspec.resolve.modes import decide_mode
from graphspec.resolve.records import Step
from graphspec.resolve.runner import RunnerDecision, decide_runner
from graphspec.resolve.schedule import ScheduleDecision, decide_schedule
from graphspec.resolve.spec import EngineSpec
from graphspec.resolve.speculative import (
    Drafting,
    IncompleteError,
    Outline,
    drafting,
    outline,
    runner_steps,
    speculative_spec,
)

T = TypeVar("T")
_UNREADABLE = object()


@attrs.frozen(kw_only=True)
class Resolution:
    """What a config comes to: the contract or every problem, and what each step decided.

    `unreadable` counts the problems that are this machine's, such as a checkpoint that is not here.
    """

    spec: EngineSpec | None
    problems: tuple[Problem, ...]
    unreadable: int
    steps: tuple[Step, ...]

    def require(self) -> EngineSpec:
        """The contract. Raises `SpecError`, or `EnvironmentProblem` when only this machine is at fault."""
        if self.spec is not None:
            return self.spec
        raise self.error()

    def error(self) -> GraphspecError:
        """All problems as one error."""
        only_machine = self.unreadable == len(self.problems)
        return (EnvironmentProblem if only_machine else SpecError)(self.problems)


def resolve(config: EngineConfig) -> EngineSpec:
    """The contract for `config`. Raises one error with the problems of every step."""
    return resolution(config).require()


def check(data: Any) -> Resolution:
    """What plain data comes to: problems of type, of rules and of resolution in one report."""
    config, problems = structure_partial(data, EngineConfig)
    made = resolution(config)
    if not problems:
        return made
    return attrs.evolve(made, spec=None, problems=(*problems, *made.problems))


class _Run:
    """The steps of one resolution. A step that lacks its input is left out; what it lacks is already reported."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unreadable = 0
        self.incomplete = False

    def step(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except UnreadableError:
            return None
        except EnvironmentProblem as error:
            new = [p for p in error.problems if p not in self.problems]
            self.unreadable += len(new)
            self.problems.extend(new)
        except SpecError as error:
            self.incomplete = self.incomplete or isinstance(error, IncompleteError)
            self.problems.extend(p for p in error.problems if p not in self.problems)
        return None

    def collect(self, rule: Callable[[], Iterable[Problem]]) -> None:
        self.problems.extend(self.step(lambda: list(rule())) or ())


@attrs.frozen(kw_only=True)
class _Target:
    spec: ModelSpec
    config: FrozenMap
    facts: ModelFacts


def resolution(config: EngineConfig | Partial) -> Resolution:
    """What `config`, or what could be read of one, comes to. Every step runs whose input is there."""
    run = _Run()
    asked: Any = config
    written = readable(asked, "speculative", _UNREADABLE)
    section = None if written is _UNREADABLE else written
    known = run.step(lambda: outline(section, asked)) if section is not None else None
    # A method without its draft or its depth is reported before any file is opened.
    target = None if run.incomplete else run.step(lambda: _target(run, asked))
    made = None
    if known is not None:
        run.problems.extend(known.problems)
        if target is not None:
            made = run.step(lambda: _drafting(run, asked, known, target))
        else:
            run.step(lambda: _draft_is_there(asked, known))
    run.collect(lambda: program_problems(asked))
    if target is not None:
        for rule in MODEL_CHECKS:
            run.collect(partial(rule, target.spec, asked))
    spec, steps = None, made.steps if made is not None else ()
    if target is not None and (written is None or made is not None):
        spec, more = _finish(run, asked, target, made)
        steps = (*steps, *more)
    else:
        run.collect(lambda: budget_problems(asked.scheduler, None, 0))
    if run.problems:
        spec = None
    return Resolution(
        spec=spec, problems=tuple(run.problems), unreadable=run.unreadable, steps=steps
    )


def _target(run: _Run, config: Any) -> _Target:
    raw, facts = target_facts(config.model)
    asked = readable(config.model, "max_model_len")
    too_long = list(length_problems(facts, asked))
    run.problems.extend(too_long)
    spec = target_spec(config.model, raw, facts, None if too_long else asked)
    return _Target(spec=spec, config=raw, facts=facts)


def _drafting(run: _Run, config: EngineConfig, known: Outline, target: _Target) -> Drafting | None:
    made, problems = drafting(known, config, target.spec, target.config)
    run.problems.extend(p for p in problems if p not in run.problems)
    return made


def _draft_is_there(config: EngineConfig, known: Outline) -> None:
    """Reads the draft of a target that has problems, so that a draft's absence is reported with them."""
    if known.source is not None and known.source != config.model.source:
        read_checkpoint(known.source, "speculative.model")


def _finish(
    run: _Run, config: Any, target: _Target, made: Drafting | None
) -> tuple[EngineSpec | None, tuple[Step, ...]]:
    """What the engine's facts decide, once model and drafting stand. What `config` says is read in steps only."""
    section = made.section if made is not None else None
    chosen = made.chosen if made is not None else None
    k = made.depth.k if made is not None else 0
    speculator = made.speculator if made is not None else None
    runner = run.step(lambda: decide_runner(config.compilation.runner, chosen, section, speculator))
    schedule = None
    if runner is not None and chosen is not None and section is not None:
        schedule = run.step(
            lambda: decide_schedule(
                chosen,
                section,
                k=k,
                runner=runner,
                parallel=config.parallel,
                max_num_seqs=config.scheduler.max_num_seqs,
                strict=config.compilation.strict,
            )
        )
    if runner is None or (chosen is not None and schedule is None):
        run.collect(lambda: budget_problems(config.scheduler, speculator, k))
        return None, ()
    granted = schedule.granted if schedule is not None else run.step(lambda: _no_drafts(config))
    if granted is None:
        return None, ()
    limits = run.step(
        lambda: decide_limits(
            config.scheduler, granted, speculator, k=k, strict=config.compilation.strict
        )
    )
    most = limits.max_num_seqs if limits is not None else granted.max_num_seqs
    mode = run.step(
        lambda: decide_mode(
            config.compilation.cudagraph_mode,
            mode_facts(
                config,
                target.facts,
                runner=runner,
                schedule=granted,
                k=k,
                max_num_seqs=most,
                section=section,
            ),
            strict=config.compilation.strict,
        )
    )
    if mode is None:
        return None, ()
    spec = None
    if limits is not None and isinstance(config, EngineConfig) and not run.problems:
        spec = run.step(lambda: _spec(config, target, made, limits, runner, schedule, mode))
    why = "; ".join(mode.reasons) or "as asked"
    return spec, tuple(runner_steps(runner, schedule, mode.granted.value, why))


def _no_drafts(config: EngineConfig) -> KSchedule:
    return KSchedule(dense=(0,) * (config.scheduler.max_num_seqs + 1))


def _spec(
    config: EngineConfig,
    target: _Target,
    made: Drafting | None,
    limits: Limits,
    runner: RunnerDecision,
    schedule: ScheduleDecision | None,
    mode: ModeDecision,
) -> EngineSpec:
    speculative = None
    if config.speculative is not None and made is not None and schedule is not None:
        speculative = speculative_spec(
            config.speculative,
            made,
            schedule=schedule,
            max_num_seqs=limits.max_num_seqs,
            mode=mode.granted,
        )
    return EngineSpec(
        model=target.spec,
        parallel=config.parallel,
        scheduler=evolve(config.scheduler, max_num_seqs=limits.max_num_seqs),
        kv_cache=config.kv_cache,
        kernels=canonical_kernels(config.kernels),
        runner=runner,
        mode=mode,
        speculative=speculative,
        lora=config.lora,
        watermark=config.watermark,
        device=config.device,
        program=config.program,
        hysteresis=config.compilation.hysteresis,
        cache=config.cache,
        notes=(*(made.notes if made is not None else ()), *limits.notes),
    )
