"""The pipeline from `EngineConfig` to `EngineSpec`: one module a step, no way back."""

from collections.abc import Callable
from typing import TypeVar

from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.errors import Problem, SpecError
from graphspec.resolve.checks import check_spec
from graphspec.resolve.model_facts import model_spec
from graphspec.resolve.modes import mode_decision
from graphspec.resolve.spec import EngineSpec, SpeculativeSpec
from graphspec.resolve.speculative import speculative_spec

T = TypeVar("T")


def resolve(config: EngineConfig) -> EngineSpec:
    """The contract for `config`. Raises one `SpecError` with the problems of every step.

    `EnvironmentProblem` comes first and alone: without a readable checkpoint nothing can be derived.
    """
    problems: list[Problem] = []
    model = _step(problems, lambda: model_spec(config.model))
    speculative = _step(
        problems, lambda: speculative_spec(config.speculative, config.scheduler.max_num_seqs)
    )
    schedule = _schedule(speculative, config)
    mode = _step(problems, lambda: mode_decision(config.compilation, schedule))
    _step(problems, lambda: _check_program(config.program))
    if problems or model is None or mode is None:
        raise SpecError(problems)
    spec = EngineSpec(
        model=model,
        parallel=config.parallel,
        scheduler=config.scheduler,
        kv_cache=config.kv_cache,
        runner=config.compilation.runner,
        mode=mode,
        speculative=speculative,
        device=config.device,
        program=config.program,
    )
    problems = check_spec(spec)
    if problems:
        raise SpecError(problems)
    return spec


def _step(problems: list[Problem], step: Callable[[], T]) -> T | None:
    try:
        return step()
    except SpecError as error:
        problems.extend(error.problems)
        return None


def _schedule(speculative: SpeculativeSpec | None, config: EngineConfig) -> KSchedule:
    if speculative is not None:
        return speculative.schedule
    return KSchedule(dense=(0,) * (config.scheduler.max_num_seqs + 1))


def _check_program(name: str) -> None:
    module, _, factory = name.partition(":")
    if not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise SpecError(
            Problem(
                where="program",
                found=repr(name),
                wanted="module:factory, both importable names",
                hint="for the reference engine: graphspec.engine.llama:program",
            )
        )
