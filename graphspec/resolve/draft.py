"""Step 8: the draft's own model and parallel sections, from its checkpoint, the target, and the user's overrides."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from graphspec.config.kernels import KernelConfig, attention_backend_name
from graphspec.config.kv_cache import KVCacheDtype
from graphspec.config.model import ModelConfig, ModelSpec
from graphspec.config.parallel import ParallelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem, SpecError
from graphspec.fields import evolve
from graphspec.frozen import FrozenMap
from graphspec.resolve.detect import Chosen
from graphspec.resolve.model_facts import facts_of, model_spec_of, text_config_of
from graphspec.resolve.overrides import apply_overrides
from graphspec.resolve.records import Note
from graphspec.speculators import checkpoint
from graphspec.speculators.base import DraftModelSpeculatorConfig
from graphspec.speculators.mtp import with_index_share
from graphspec.speculators.registry import speculator_config_class
from graphspec.text import show

POSITIONS_ARE_TABLE_SIZES = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Rotary kinds for which max_position_embeddings only sizes the cos/sin table. Others compute frequencies from it."""


@attrs.frozen(kw_only=True)
class DraftOverrides:
    """What turns a draft checkpoint's config into the one that runs: the method's rewriting, then the target's function.

    Picklable, since engines send configs to spawned workers: it holds names and plain data, no closure. A worker that
    unpickles it must have the method registered.
    """

    method: str
    target: FrozenMap
    function: str | None = None
    index_share: bool | None = None

    def __call__(self, config: Mapping[str, Any]) -> FrozenMap:
        """The config as the drafter runs it."""
        cls = speculator_config_class(self.method)
        rewritten = cls.adapt_draft_model_config(_flat(config), self.target)
        shared = with_index_share(rewritten, self.index_share)
        return apply_overrides(shared, self.function, "model.hf_overrides")


def _flat(config: Mapping[str, Any]) -> FrozenMap:
    """One level: rewriting a field that a nested part also holds would have no effect.

    Class names stay the outer ones, except in the speculators format, whose inner ones say what the layer is.
    """
    flat = text_config_of(config)
    inner = checkpoint.layer_architectures(config) if checkpoint.algorithm(config) else ()
    names = inner or checkpoint.architectures(config)
    return FrozenMap({**flat, "architectures": names}) if names else flat


@attrs.frozen(kw_only=True)
class Draft:
    """The draft as derived. `model` is None for methods that run none."""

    model: ModelSpec | None
    parallel: ParallelConfig
    kernels: KernelConfig
    kv_cache_dtype: KVCacheDtype
    why: str
    notes: tuple[Note, ...] = ()


def draft_overrides(
    name: str, section: SpeculativeConfig, model: ModelConfig, target: FrozenMap
) -> DraftOverrides:
    """The composed overrides of the draft's config. A mapping in model.hf_overrides is the target's alone."""
    function = model.hf_overrides if isinstance(model.hf_overrides, str) else None
    share = section.index_share_for_mtp_iteration
    return DraftOverrides(method=name, target=target, function=function, index_share=share)


def derive_draft(
    chosen: Chosen,
    section: SpeculativeConfig,
    *,
    source: str | None,
    config: FrozenMap | None,
    k: int,
    model: ModelConfig,
    target: ModelSpec,
    parallel: ParallelConfig,
    kernels: KernelConfig,
    kv_cache_dtype: KVCacheDtype,
) -> Draft:
    """The draft's sections. Without a draft model they are the target's own. Raises `SpecError` with all problems."""
    size, problems = _tensor_parallel_size(section, parallel)
    if config is None or source is None:
        if problems:
            raise SpecError(problems)
        return Draft(
            model=None,
            parallel=parallel,
            kernels=kernels,
            kv_cache_dtype=kv_cache_dtype,
            why=f"{chosen.name} runs no model of its own; the target's sections stand for the draft's",
        )
    try:
        made, notes = _draft_model(chosen, section, source, config, k, model, target)
    except SpecError as error:
        raise SpecError([*problems, *error.problems]) from None
    if not problems:  # else the size is the target's, which nobody asked for
        problems += _fit_problems(made, size)
    problems += _length_problems(section, made, target)
    if problems:
        raise SpecError(problems)
    limited = evolve(made, max_model_len=_length(section, made, target))
    if limited.max_model_len < target.max_model_len:
        notes.append(
            Note(
                code="drafts_stop_early",
                text=f"drafts are made up to {limited.max_model_len} tokens of a sequence, and the target goes on to "
                f"{target.max_model_len}; beyond that a request runs without drafts",
            )
        )
    return Draft(
        model=limited,
        parallel=draft_parallel(parallel, size, is_moe=limited.is_moe),
        kernels=draft_kernels(kernels, section),
        kv_cache_dtype=section.kv_cache_dtype or kv_cache_dtype,
        why=f"from {source}, at most {limited.max_model_len} tokens, on {size} devices",
        notes=tuple(notes),
    )


def _draft_model(
    chosen: Chosen,
    section: SpeculativeConfig,
    source: str,
    config: FrozenMap,
    k: int,
    model: ModelConfig,
    target: ModelSpec,
) -> tuple[ModelSpec, list[Note]]:
    notes = []
    own = source == (model.weights or model.source)
    if model.hf_overrides and not own and not isinstance(model.hf_overrides, str):
        notes.append(
            Note(
                code="overrides_not_for_draft",
                text="model.hf_overrides replaces fields of the target's config only; the draft keeps what its own "
                f"checkpoint says ({', '.join(model.hf_overrides)} among it)",
            )
        )
    cls = chosen.cls
    if "num_lookahead_tokens" in config and section.num_speculative_tokens is not None:
        config = FrozenMap({**config, "num_lookahead_tokens": k})
    shares = issubclass(cls, DraftModelSpeculatorConfig) and cls.shares_target_positions
    raised, why = raised_positions(config, target.max_model_len) if shares else (config, None)
    if why is not None:
        notes.append(why)
    made = model_spec_of(
        facts_of(raised),
        raised,
        source=source,
        weights=model.weights if own else None,
        dtype=model.dtype,
        quantization=section.quantization or (target.quantization if own else None),
        max_model_len=None,
        where="speculative.model",
        default_max_model_len=target.max_model_len,
    )
    return made, notes


def raised_positions(config: FrozenMap, positions: int) -> tuple[FrozenMap, Note | None]:
    """The config with rotary tables as long as the target's positions, where a longer table changes nothing else."""
    facts = facts_of(config)
    own = facts.max_position_embeddings
    if own is None or own >= positions:
        return config, None
    if facts.rope_type not in POSITIONS_ARE_TABLE_SIZES:
        return config, Note(
            code="draft_positions_kept",
            text=f"the draft has {own} positions and the target {positions}; with {facts.rope_type} rotary scaling the "
            "limit is part of the frequencies, so it is not raised",
        )
    return apply_overrides(
        config, {"max_position_embeddings": positions}, "max_position_embeddings"
    ), Note(
        code="draft_positions_raised",
        text=f"the draft's rotary tables are made for {positions} positions instead of {own}, since it sees the "
        "target's",
    )


def _tensor_parallel_size(
    section: SpeculativeConfig, parallel: ParallelConfig
) -> tuple[int, list[Problem]]:
    given, target = section.draft_tensor_parallel_size, parallel.tensor_parallel_size
    if given is None or given in (1, target):
        return given or target, []
    problem = Problem(
        where="speculative.draft_tensor_parallel_size",
        found=show(given),
        wanted="1" if target == 1 else f"1 or the target's tensor_parallel_size ({target})",
        hint=f"parallel.tensor_parallel_size is {target}; a draft runs on one device of a group or on all",
    )
    return target, [problem]


def _fit_problems(model: ModelSpec, size: int) -> list[Problem]:
    if model.num_attention_heads % size == 0:
        return []
    return [
        Problem(
            where="speculative.draft_tensor_parallel_size",
            found=f"{size} devices for a draft of {model.num_attention_heads} attention heads",
            wanted="a divisor of the draft's heads",
            hint="set draft_tensor_parallel_size to 1",
        )
    ]


def _length_problems(
    section: SpeculativeConfig, draft: ModelSpec, target: ModelSpec
) -> Iterator[Problem]:
    given = section.max_model_len
    limit, whose = min(
        (draft.max_model_len, "the draft's own limit"), (target.max_model_len, "the target's limit")
    )
    if given is not None and given > limit:
        yield Problem(
            where="speculative.max_model_len",
            found=show(given),
            wanted=f"at most {limit}, {whose}",
        )


def _length(section: SpeculativeConfig, draft: ModelSpec, target: ModelSpec) -> int:
    return section.max_model_len or min(draft.max_model_len, target.max_model_len)


def draft_parallel(target: ParallelConfig, size: int, *, is_moe: bool) -> ParallelConfig:
    """The draft's parallel section: one pipeline stage, its own tensor parallel size, experts spread if it has any.

    How processes start and reduce is the target's; data, prefill and decode context parallelism are not the draft's.
    """
    return ParallelConfig(
        tensor_parallel_size=size,
        enable_expert_parallel=target.enable_expert_parallel and is_moe,
        all2all_backend=target.all2all_backend
        if target.enable_expert_parallel and is_moe
        else None,
        disable_custom_all_reduce=target.disable_custom_all_reduce,
        distributed_executor_backend=target.distributed_executor_backend,
        max_parallel_loading_workers=target.max_parallel_loading_workers,
        ray_workers_use_nsight=target.ray_workers_use_nsight,
    )


def draft_kernels(target: KernelConfig, section: SpeculativeConfig) -> KernelConfig:
    """A copy of the target's kernels section with the user's draft overrides on it."""
    given = section.attention_backend
    return KernelConfig(
        attention_backend=attention_backend_name(target.attention_backend)
        if given is None
        else attention_backend_name(given),
        moe_backend=section.moe_backend or target.moe_backend,
    )
