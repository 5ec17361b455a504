"""Step 9: rules between the method, its draft, the target and the rest of the engine."""

from collections.abc import Callable, Iterable, Iterator

from graphspec.config.engine import EngineConfig
from graphspec.config.extras import WatermarkAlgorithm, WatermarkConfig
from graphspec.config.model import ModelSpec
from graphspec.config.parallel import ParallelConfig
from graphspec.config.partial import found
from graphspec.config.speculative import (
    DraftSampleMethod,
    RejectionSampleMethod,
    SpeculativeConfig,
)
from graphspec.errors import Problem
from graphspec.frozen import FrozenMap
from graphspec.resolve.detect import Chosen
from graphspec.resolve.draft import Draft
from graphspec.resolve.model_facts import facts_of
from graphspec.resolve.records import Note
from graphspec.text import show


def verify(
    chosen: Chosen,
    section: SpeculativeConfig,
    draft: Draft | None,
    *,
    draft_config: FrozenMap | None,
    target: ModelSpec,
    target_config: FrozenMap,
    config: EngineConfig,
) -> Iterator[Problem]:
    """Every rule that is broken, of those whose fields could be read. `draft` is None where deriving it failed."""
    rules: tuple[Callable[[], Iterable[Problem]], ...] = (
        lambda: _head_type(section, draft, draft_config),
        lambda: _checkpoint(chosen, section, draft_config, target_config),
        lambda: _vocabularies(chosen, section, draft_config, target),
        lambda: _sampling(chosen, section),
        lambda: _candidates(section, draft),
        lambda: _split_prompts(chosen, config.parallel),
        lambda: _watermark(chosen, config.watermark),
    )
    for rule in rules:
        yield from found(rule)


def _checkpoint(
    chosen: Chosen, section: SpeculativeConfig, config: FrozenMap | None, target: FrozenMap
) -> Iterator[Problem]:
    if config is not None:
        broken = chosen.cls.checkpoint_problems(config, target, section)
        yield from (p.under("speculative") for p in broken)


def _candidates(section: SpeculativeConfig, draft: Draft | None) -> Iterator[Problem]:
    if section.dspark_draft_topk is None or draft is None:
        return
    if draft.parallel.tensor_parallel_size != 1:
        yield Problem(
            where="speculative.dspark_draft_topk",
            found=f"{section.dspark_draft_topk} on {draft.parallel.tensor_parallel_size} devices",
            wanted="a draft on one device: candidates are ranked over the whole vocabulary",
            hint="set speculative.draft_tensor_parallel_size to 1",
        )


def _split_prompts(chosen: Chosen, parallel: ParallelConfig) -> Iterator[Problem]:
    if parallel.prefill_context_parallel_size > 1 and not chosen.cls.supports_pcp:
        yield Problem(
            where="parallel.prefill_context_parallel_size",
            found=show(parallel.prefill_context_parallel_size),
            wanted=f"1 with method {chosen.name}, which does not draft from split prompts",
            hint="of the built-in methods mtp with one module and dspark do",
        )


def _head_type(
    section: SpeculativeConfig, draft: Draft | None, config: FrozenMap | None
) -> Iterator[Problem]:
    if section.draft_lm_head_quantization is None or draft is None or config is None:
        return
    if draft.model is None:
        return
    head = facts_of(config).head_dtype
    if head is not None and head != draft.model.dtype.value:
        yield Problem(
            where="speculative.draft_lm_head_quantization",
            found=f"{section.draft_lm_head_quantization.value} with a head of type {head}",
            wanted=f"a head of the draft's own type ({draft.model.dtype.value})",
            hint="drop it, or choose model.dtype so that both agree",
        )


def _vocabularies(
    chosen: Chosen, section: SpeculativeConfig, config: FrozenMap | None, target: ModelSpec
) -> Iterator[Problem]:
    if not chosen.cls.draft_has_own_vocab or config is None:
        return
    ours, theirs = facts_of(config).vocab_size, target.vocab_size
    if not section.use_heterogeneous_vocab:
        if ours is not None and ours != theirs:
            yield Problem(
                where="speculative.model",
                found=f"a draft with {ours} tokens",
                wanted=f"the target's vocabulary of {theirs}: ids of one are not ids of the other",
                hint="set speculative.use_heterogeneous_vocab to map them by their strings, also where the sizes "
                "differ by padding only",
            )
        return
    if section.draft_sample_method is DraftSampleMethod.PROBABILISTIC:
        yield Problem(
            where="speculative.draft_sample_method",
            found="probabilistic with use_heterogeneous_vocab",
            wanted="greedy: draft probabilities over a part of the vocabulary would break the ratio test",
        )
    if section.use_local_argmax_reduction:
        yield Problem(
            where="speculative.use_local_argmax_reduction",
            found="true with use_heterogeneous_vocab",
            wanted="false: the mapping masks full logits before the argmax",
        )


def _sampling(chosen: Chosen, section: SpeculativeConfig) -> Iterator[Problem]:
    local = section.use_local_argmax_reduction
    needs_logits = chosen.cls.adaptive_verification_uses_draft_logits
    if section.enable_adaptive_verification and local and needs_logits:
        yield Problem(
            where="speculative.use_local_argmax_reduction",
            found="true with enable_adaptive_verification",
            wanted=f"false: the confidence of {chosen.name} comes from full draft logits",
        )
    if local and section.draft_sample_method is DraftSampleMethod.PROBABILISTIC:
        yield Problem(
            where="speculative.use_local_argmax_reduction",
            found="true with draft_sample_method probabilistic",
            wanted="false: drafts are drawn from full logits",
        )
    if (
        section.rejection_sample_method is RejectionSampleMethod.FLY
        and not chosen.cls.proposes_draft_tokens
    ):
        yield Problem(
            where="speculative.rejection_sample_method",
            found=f"fly with method {chosen.name}, which proposes no drafts",
            wanted="standard",
        )


def _watermark(chosen: Chosen, watermark: WatermarkConfig | None) -> Iterator[Problem]:
    if watermark is None:
        return
    if not chosen.cls.supports_watermarking:
        yield Problem(
            where="watermark",
            found=f"watermarked sampling with method {chosen.name}",
            wanted="a method that keeps the mark: eagle, eagle3, dflash or dspark",
        )
    elif watermark.algorithm is not WatermarkAlgorithm.DUAL_KEY_GUMBEL:
        yield Problem(
            where="watermark.algorithm",
            found=watermark.algorithm.value,
            wanted=f"{WatermarkAlgorithm.DUAL_KEY_GUMBEL.value} with speculative decoding",
        )


def notes_of(
    chosen: Chosen, section: SpeculativeConfig, *, async_scheduling: bool
) -> Iterator[Note]:
    """What is valid and still worth knowing."""
    if section.rejection_sample_method is RejectionSampleMethod.FLY:
        yield Note(
            code="fly_lossy",
            text="rejection_sample_method fly keeps drafts that the target would not: the output distribution changes",
        )
    if section.rejection_sample_method is RejectionSampleMethod.SYNTHETIC:
        yield Note(
            code="synthetic_lossy",
            text="rejection_sample_method synthetic keeps drafts by a die: a tool for benchmarks, never for serving",
        )
    if chosen.method == "custom_class":
        yield Note(
            code="custom_class_unchecked",
            text="a custom class is trusted: graphspec knows neither its lookahead nor its graphs",
        )
    if section.model is not None and chosen.method == "extract_hidden_states":
        yield Note(
            code="model_unused",
            text="speculative.model is not read: extract_hidden_states runs the target only",
        )
    if section.disable_padded_drafter_batch and (
        async_scheduling or chosen.method not in ("eagle", "eagle3", "mtp")
    ):
        yield Note(
            code="padded_drafter_kept",
            text="disable_padded_drafter_batch has no effect: ragged drafter batches are for the EAGLE family without "
            "scheduler.async_scheduling",
        )
