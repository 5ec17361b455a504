"""The way of the speculative section through its steps, each in a module of its own, with a trace of what they decide."""

from collections.abc import Iterator

import attrs

from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.kernels import canonical_kernels
from graphspec.config.model import ModelSpec
from graphspec.config.partial import Partial, UnreadableError, attempt, found, readable
from graphspec.config.schedule import KSchedule
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem, SpecError
from graphspec.fields import evolve, policies
from graphspec.frozen import FrozenMap
from graphspec.resolve.checkpoint import read_checkpoint, text_config_of
from graphspec.resolve.depth import Depth, depth
from graphspec.resolve.detect import Chosen, choose, draft_source
from graphspec.resolve.draft import Draft, DraftOverrides, derive_draft, draft_overrides
from graphspec.resolve.infer import Inferred, canonical, class_of, infer
from graphspec.resolve.options import option_problems, without_options
from graphspec.resolve.records import Note, Step
from graphspec.resolve.runner import RunnerDecision
from graphspec.resolve.schedule import ScheduleDecision
from graphspec.resolve.spec import SpeculativeSpec
from graphspec.resolve.verification import verification_spec
from graphspec.resolve.verify import notes_of, verify
from graphspec.speculators.base import Setup, SpeculatorConfig


@attrs.frozen(kw_only=True)
class Outline:
    """What the section says by itself: the method as far as it is known, and where its draft lies.

    `section` is the user's without the options that the method does not read. Those are the `problems`.
    """

    inferred: Inferred
    source: str | None
    section: SpeculativeConfig
    problems: tuple[Problem, ...] = ()


@attrs.frozen(kw_only=True)
class Drafting:
    """Everything about drafting that does not depend on runner, schedule and graph mode.

    `section` is the user's without the options that the method does not read. `draft` is None where it has problems.
    """

    section: SpeculativeConfig
    chosen: Chosen
    depth: Depth
    draft: Draft | None
    speculator: SpeculatorConfig
    overrides: DraftOverrides | None
    notes: tuple[Note, ...]
    steps: tuple[Step, ...]


class IncompleteError(SpecError):
    """The section lacks what its method needs, so no file is worth opening."""


def outline(section: SpeculativeConfig, config: EngineConfig) -> Outline:
    """The first steps, which open no file. Raises `IncompleteError` when something is missing that the method needs."""
    inferred = canonical(infer(section))
    cls = class_of(inferred)
    name = inferred.custom_method or inferred.method
    missing: list[Problem] = []
    unread: list[Problem] = []
    if cls is not None and name is not None:
        unread.extend(option_problems(name, cls, section))
        missing.extend(_missing_depth(name, cls, section))
        if name == "custom_class":
            missing.extend(found(lambda: _custom_class_problems(cls, section)))
    source = None
    try:
        source = draft_source(inferred, section, config.model)
    except SpecError as error:
        # A model that the method needs is missing, or one is given that it does not read.
        (missing if inferred.model is None else unread)[:0] = error.problems
    except UnreadableError:
        if not missing and not unread:
            raise
        if not missing:
            raise SpecError(unread) from None
    if missing:
        raise IncompleteError([*missing, *unread])
    return Outline(
        inferred=inferred,
        source=source,
        section=without_options(section, unread),
        problems=tuple(unread),
    )


def _missing_depth(
    name: str, cls: type[SpeculatorConfig], section: SpeculativeConfig
) -> Iterator[Problem]:
    unreadable = -1
    if cls.has_draft_model or readable(section, "num_speculative_tokens", unreadable) is not None:
        return
    if cls.default_depth(section, None) is None:
        yield Problem(
            where="speculative.num_speculative_tokens",
            found=f"nothing (null) for method {name}",
            wanted="the draft depth, at least 1",
            hint=f"{name} has no checkpoint that could say it",
        )


def _custom_class_problems(
    cls: type[SpeculatorConfig], section: SpeculativeConfig
) -> Iterator[Problem]:
    setup = Setup(section=section, target=FrozenMap({}), draft=None, num_speculative_tokens=1)
    try:
        _configured(cls, setup)
    except SpecError as error:
        yield from error.problems


def drafting(
    known: Outline, config: EngineConfig, target: ModelSpec, target_config: FrozenMap
) -> tuple[Drafting | None, list[Problem]]:
    """The method, its depth, its draft and its options, and the problems of all steps.

    None where depth or options have problems. Raises `SpecError` where not even the method stands.
    """
    problems: list[Problem] = []
    section = known.section
    raw = _read(known.source, config, target_config)
    # Methods compare the draft with the language model, which may lie several levels deep.
    target_config = text_config_of(target_config)
    chosen = choose(known.inferred, known.source, raw)
    overrides = None
    adapted = raw
    if raw is not None:
        overrides = draft_overrides(chosen.name, section, config.model, target_config)
        adapted = overrides(raw)
        # The count of modules is that of the rewritten config: some families run fewer than the checkpoint holds.
        special = chosen.cls.specialize(adapted, section)
        chosen = attrs.evolve(chosen, cls=special)
    if known.inferred.method is None:
        problems.extend(option_problems(chosen.name, chosen.cls, section))
        section = without_options(section, problems)
    deep = attempt(lambda: depth(chosen, section, adapted), problems)
    # The draft's other problems do not depend on k.
    k = deep.k if deep is not None else 1
    draft = attempt(
        lambda: _derived(chosen, section, known.source, adapted, k, config, target, target_config),
        problems,
    )
    problems.extend(
        verify(
            chosen,
            section,
            draft,
            draft_config=adapted,
            target=target,
            target_config=target_config,
            config=config,
        )
    )
    if deep is None:
        return None, problems
    setup = Setup(section=section, target=target_config, draft=adapted, num_speculative_tokens=k)
    speculator = attempt(lambda: _configured(chosen.cls, setup), problems)
    if speculator is None:
        return None, problems
    asked = readable(readable(config, "scheduler", Partial({})), "async_scheduling", False)
    notes = attempt(lambda: tuple(notes_of(chosen, section, async_scheduling=asked)), problems)
    made = Drafting(
        section=section,
        chosen=chosen,
        depth=deep,
        draft=draft,
        speculator=speculator,
        overrides=overrides,
        notes=(*chosen.notes, *deep.notes, *(draft.notes if draft else ()), *(notes or ())),
        steps=tuple(_trace(known, chosen, deep, draft, speculator)) if draft else (),
    )
    return made, problems


def _read(source: str | None, config: EngineConfig, target_config: FrozenMap) -> FrozenMap | None:
    if source is None:
        return None
    if source in (config.model.source, config.model.weights):
        # Drafts inside the target's checkpoint see the user's overrides of it: they are one config. A function among
        # them acts after the rewriting, so it must not have acted before.
        by_function = isinstance(config.model.hf_overrides, str)
        return read_checkpoint(config.model.source) if by_function else target_config
    return read_checkpoint(source, "speculative.model")


def _derived(
    chosen: Chosen,
    section: SpeculativeConfig,
    source: str | None,
    adapted: FrozenMap | None,
    k: int,
    config: EngineConfig,
    target: ModelSpec,
    target_config: FrozenMap,
) -> Draft:
    draft = derive_draft(
        chosen,
        section,
        source=source,
        config=adapted,
        k=k,
        model=config.model,
        target=target,
        parallel=config.parallel,
        kernels=config.kernels,
        kv_cache_dtype=config.kv_cache.dtype,
    )
    if draft.model is None:
        copied = chosen.cls.adapt_draft_model_config(target_config, target_config)
        if copied is not target_config:
            names = tuple(copied["architectures"])
            draft = attrs.evolve(draft, model=evolve(target, architectures=names))
    return draft


def _configured(cls: type[SpeculatorConfig], setup: Setup) -> SpeculatorConfig:
    try:
        return cls.configure(setup)
    except SpecError as error:
        raise SpecError(p.under("speculative") for p in error.problems) from None


def _trace(
    known: Outline, chosen: Chosen, deep: Depth, draft: Draft, speculator: SpeculatorConfig
) -> Iterator[Step]:
    inferred = known.inferred
    yield Step(
        name="infer",
        decided=inferred.method or "left to the checkpoint",
        why=inferred.why,
    )
    yield Step(
        name="locate",
        decided=known.source or "no checkpoint",
        why="speculative.model"
        if inferred.model is not None and known.source is not None
        else "the method's default model"
        if known.source is not None
        else "the method runs no model of its own",
    )
    yield Step(name="choose", decided=chosen.name, why=chosen.why)
    cls = type(speculator)
    yield Step(
        name="specialise",
        decided=f"{cls.__module__}.{cls.__qualname__}",
        why=f"the class of {chosen.name} that fits the checkpoint",
    )
    yield Step(name="depth", decided=f"k = {deep.k}", why=deep.why)
    yield Step(
        name="derive",
        decided=", ".join(draft.model.architectures or (draft.model.architecture,))
        if draft.model
        else "no draft model",
        why=draft.why,
    )
    options = {name: getattr(speculator, name) for name in policies(cls)}
    yield Step(
        name="configure",
        decided=", ".join(f"{n} = {v!r}" for n, v in options.items()) or "no options",
        why="what the section gives, else the checkpoint, else the method's defaults",
    )


def speculative_spec(
    section: SpeculativeConfig,
    made: Drafting,
    *,
    schedule: ScheduleDecision,
    max_num_seqs: int,
    mode: CudagraphMode,
) -> SpeculativeSpec:
    """The resolved section. The schedule ends at the requests that a step can hold."""
    dense = schedule.granted.dense[: max_num_seqs + 1]
    assert made.draft is not None
    return SpeculativeSpec(
        method=made.chosen.method,
        custom_method=made.chosen.custom_method,
        num_speculative_tokens=made.depth.k,
        schedule=evolve(schedule, granted=KSchedule(dense=dense)),
        speculator=made.speculator,
        draft_model=made.draft.model,
        draft_parallel=made.draft.parallel,
        draft_kernels=canonical_kernels(made.draft.kernels),
        draft_kv_cache_dtype=made.draft.kv_cache_dtype,
        draft_cudagraph_mode=CudagraphMode.NONE if section.enforce_eager else mode,
        draft_lm_head_quantization=section.draft_lm_head_quantization,
        use_local_argmax_reduction=section.use_local_argmax_reduction,
        disable_padded_drafter_batch=section.disable_padded_drafter_batch,
        verification=verification_spec(section, made.depth.k),
        disable_eagle_block_drop=section.disable_eagle_block_drop,
        disable_lookahead_block_hashes=section.disable_lookahead_block_hashes,
        draft_overrides=made.overrides,
        draft_load_config=section.draft_load_config,
    )


def runner_steps(
    runner: RunnerDecision, schedule: ScheduleDecision | None, mode_text: str, mode_why: str
) -> Iterator[Step]:
    """The trace of what engine facts decide."""
    yield Step(
        name="runner",
        decided=runner.granted,
        why="; ".join(runner.reasons) or f"compilation.runner is {runner.asked}",
    )
    if schedule is not None:
        tiers = ", ".join(f"{a} to {b}: {k}" for a, b, k in schedule.granted.tiers)
        yield Step(
            name="schedule",
            decided=f"k by requests: {tiers}",
            why="; ".join(schedule.reasons)
            or ("the table" if schedule.asked is not None else "no table"),
        )
    yield Step(name="mode", decided=mode_text, why=mode_why)
