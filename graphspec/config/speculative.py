"""The speculative section: what the user writes of drafting and verification."""

import enum
from collections.abc import Mapping
from typing import ClassVar

from graphspec.config.kernels import MoeBackend
from graphspec.config.kv_cache import KVCacheDtype
from graphspec.config.speculative_rules import RULES
from graphspec.fields import Rule, Stage, config_class, keyed, unkeyed
from graphspec.frozen import JsonValue

_SOURCE = "source and parallelism"
_BUDGET = "budget and dynamic k"
_DRAFT = "draft overrides"
_LOOKUP = "n-gram and suffix"
_VERIFY = "verification"

_HOST = "matching runs on the host; no graph contains it"
_LOCATION = "a location: what lies behind it enters the key as draft model facts"
_SAMPLING = "decides which drafts are kept, on the logits that a graph gave; the graph is the same"
_BLOCKS = "bookkeeping of the block manager on the host; block numbers are replay values"


class RejectionSampleMethod(enum.Enum):
    """How drafts are verified. All but `fly` and `synthetic` keep the target's distribution."""

    STANDARD = "standard"
    SYNTHETIC = "synthetic"
    BLOCK = "block"
    FLY = "fly"


class DraftSampleMethod(enum.Enum):
    """How drafts are drawn. `probabilistic` keeps max_num_seqs x k x vocabulary float32 draft probabilities."""

    GREEDY = "greedy"
    PROBABILISTIC = "probabilistic"


class HeadQuantization(enum.Enum):
    """Quantisation of the drafter's copy of a shared head: fp8 weights and activations, or nvfp4 weights only."""

    FP8 = "fp8"
    NVFP4 = "nvfp4"


@config_class
class SpeculativeConfig:
    """What the user writes of speculative decoding. Which depths reach compiled code is the method's declaration."""

    method: str | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_SOURCE,
        doc="Built-in or registered drafting method; none: inferred from `model`.",
    )
    model: str | None = unkeyed(
        default=None,
        group=_SOURCE,
        doc="Draft checkpoint, as in model.source; ngram; or the import name of a custom class.",
        reason=_LOCATION,
    )
    draft_tensor_parallel_size: int | None = keyed(
        Stage.COMPILE,
        default=None,
        minimum=1,
        maximum=1 << 16,
        group=_SOURCE,
        doc="1 or the target's tensor parallel size; none: the target's.",
    )
    tensor_parallel_size: int | None = unkeyed(
        default=None,
        group=_SOURCE,
        doc="Not a field of drafting: any value is refused and points to draft_tensor_parallel_size.",
        reason="never holds a value",
    )
    enforce_eager: bool | None = keyed(
        Stage.CAPTURE,
        default=None,
        group=_SOURCE,
        doc="Whether the draft phase runs without graphs; none: as the target does.",
    )
    revision: str | None = unkeyed(
        default=None, group=_SOURCE, doc="Revision of the draft checkpoint.", reason=_LOCATION
    )
    code_revision: str | None = unkeyed(
        default=None, group=_SOURCE, doc="Revision of the draft's code.", reason=_LOCATION
    )
    quantization: str | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_SOURCE,
        doc="Quantisation of the draft weights; none: what the draft checkpoint says, and the target's for "
        "drafts inside the target's checkpoint.",
    )
    draft_load_config: Mapping[str, JsonValue] | None = unkeyed(
        default=None,
        group=_SOURCE,
        doc="How the draft weights are loaded; none: as the target's are.",
        reason="weights are inputs of every unit",
    )
    max_model_len: int | None = keyed(
        Stage.CAPTURE,
        default=None,
        minimum=1,
        maximum=1 << 27,
        group=_SOURCE,
        doc="Longest sequence in tokens that drafts are made for; beyond it a request runs without drafts.",
    )
    num_speculative_tokens: int | None = keyed(
        Stage.CAPTURE,
        default=None,
        minimum=1,
        maximum=1024,
        group=_BUDGET,
        doc="Largest draft depth k, in tokens; none: what the draft checkpoint was trained for.",
    )
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = keyed(
        Stage.CAPTURE,
        default=None,
        group=_BUDGET,
        doc="Dynamic depth: inclusive ranges [first, last, k] of requests in a step.",
    )
    parallel_drafting: bool | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_BUDGET,
        doc="Whether all k drafts come from one pass (PARD, P-EAGLE); none: as the method and checkpoint declare.",
    )
    disable_padded_drafter_batch: bool = keyed(
        Stage.CAPTURE,
        default=False,
        group=_BUDGET,
        doc="EAGLE family: whether the drafter runs on ragged batches.",
    )
    moe_backend: MoeBackend | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="The draft's kernels.moe_backend; none: the target's.",
    )
    attention_backend: str | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="The draft's kernels.attention_backend; none: the target's; auto: the engine's choice.",
    )
    kv_cache_dtype: KVCacheDtype | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="The draft's kv_cache.dtype; none: the target's, with one layout for both.",
    )
    draft_lm_head_quantization: HeadQuantization | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="EAGLE and MTP: quantisation of the drafter's copy of the target's head.",
    )
    use_local_argmax_reduction: bool = keyed(
        Stage.COMPILE,
        default=False,
        group=_DRAFT,
        doc="Whether the draft's argmax is taken per device before it is exchanged. Greedy drafts only.",
    )
    index_share_for_mtp_iteration: bool | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="MTP: whether later iterations reuse the first one's sparse indices; none: what the checkpoint says.",
    )
    dspark_draft_topk: int | None = keyed(
        Stage.COMPILE,
        default=None,
        minimum=1,
        maximum=1 << 24,
        group=_DRAFT,
        doc="DSpark: candidates a position; none: what the checkpoint says.",
    )
    xpress_topc: int | None = keyed(
        Stage.COMPILE,
        default=None,
        minimum=0,
        maximum=1 << 24,
        group=_DRAFT,
        doc="DFlash with an XPress refiner: candidates a position, 0 for the whole vocabulary; none: what the "
        "checkpoint says, else 512.",
    )
    speculator_options: Mapping[str, JsonValue] | None = keyed(
        Stage.COMPILE,
        default=None,
        group=_DRAFT,
        doc="Options of a registered method or custom class, as plain data.",
    )
    disable_eagle_block_drop: bool = unkeyed(
        default=False,
        group=_DRAFT,
        doc="Whether the last block of a matched prefix is kept although the drafter has not proven it.",
        reason=_BLOCKS,
    )
    disable_lookahead_block_hashes: bool = unkeyed(
        default=False,
        group=_DRAFT,
        doc="Whether block hashes leave out the tokens that the drafter reads past the block. Every engine that "
        "shares the cache or its events must agree.",
        reason=_BLOCKS,
    )
    prompt_lookup_min: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1 << 27,
        group=_LOOKUP,
        doc="n-gram: shortest suffix that must match, in tokens.",
        reason=_HOST,
    )
    prompt_lookup_max: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1 << 27,
        group=_LOOKUP,
        doc="n-gram: longest suffix that is looked up, in tokens.",
        reason=_HOST,
    )
    suffix_decoding_max_tree_depth: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1 << 16,
        group=_LOOKUP,
        doc="Suffix: depth of the trees; none: 24. Also the depth k when that is not given.",
        reason=_HOST,
    )
    suffix_decoding_max_cached_requests: int | None = unkeyed(
        default=None,
        minimum=0,
        maximum=1 << 32,
        group=_LOOKUP,
        doc="Suffix: finished requests kept in the global tree, oldest out first; none: 10000; 0: no global tree.",
        reason=_HOST,
    )
    suffix_decoding_max_spec_factor: float | None = unkeyed(
        default=None,
        minimum=0,
        maximum=1 << 16,
        group=_LOOKUP,
        doc="Suffix: drafts per matched token, at most; none: 1.0.",
        reason=_HOST,
    )
    suffix_decoding_min_token_prob: float | None = unkeyed(
        default=None,
        minimum=0,
        maximum=1,
        group=_LOOKUP,
        doc="Suffix: smallest frequency of a drafted token; none: 0.1.",
        reason=_HOST,
    )
    rejection_sample_method: RejectionSampleMethod = unkeyed(
        default=RejectionSampleMethod.STANDARD,
        group=_VERIFY,
        doc="How drafts are verified.",
        reason=_SAMPLING,
    )
    synthetic_acceptance_rates: tuple[float, ...] | None = unkeyed(
        default=None,
        group=_VERIFY,
        doc="synthetic: probability that the first i drafts are all kept, for each i up to k; never rising.",
        reason=_SAMPLING,
    )
    synthetic_acceptance_length: float | None = unkeyed(
        default=None,
        group=_VERIFY,
        doc="synthetic: mean tokens a step, from 1 to k + 1; instead of the rates.",
        reason=_SAMPLING,
    )
    fly_window_size: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1024,
        group=_VERIFY,
        doc="fly: drafts after a deferred rejection that must all be kept; none: min(6, k - 1).",
        reason=_SAMPLING,
    )
    fly_entropy_threshold: float | None = unkeyed(
        default=None,
        minimum=0,
        maximum=100,
        group=_VERIFY,
        doc="fly: entropy in nats above which a rejection may be deferred; none: 0.3.",
        reason=_SAMPLING,
    )
    fly_entropy_top_k: int | None = unkeyed(
        default=None,
        minimum=1,
        maximum=1 << 24,
        group=_VERIFY,
        doc="fly: most likely tokens that the entropy is taken over; none: 3.",
        reason=_SAMPLING,
    )
    draft_sample_method: DraftSampleMethod = keyed(
        Stage.CAPTURE,
        default=DraftSampleMethod.GREEDY,
        group=_VERIFY,
        doc="How drafts are drawn.",
    )
    enable_adaptive_verification: bool = keyed(
        Stage.CAPTURE,
        default=False,
        group=_VERIFY,
        doc="Whether each step verifies only the drafts whose confidence pays for their time.",
    )
    use_heterogeneous_vocab: bool = keyed(
        Stage.COMPILE,
        default=False,
        group=_VERIFY,
        doc="draft_model: whether drafts are mapped between two vocabularies by their strings.",
    )

    rules: ClassVar[tuple[Rule, ...]] = RULES
