"""How each model family's checkpoint becomes a multi-token-prediction draft: one row a family.

A row rewrites the target's own config into the draft's: another model type and class name, and n_predict, the number
of modules, from where the family keeps it. Names are those that vLLM and the checkpoints use.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.frozen import FrozenMap
from graphspec.speculators.checkpoint import (
    architectures,
    find,
    find_count,
    model_type,
    names_in_architectures,
)

ALIASES = frozenset(
    """deepseek_mtp dots3_note_mtp mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp
    nemotron_h_mtp exaone_moe_mtp exaone4_5_mtp qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp
    bailing_hybrid_v3_mtp bailing_hybrid_mtp minimax_m3_mtp kimi_k3_mtp pangu_ultra_moe_mtp step3p5_mtp hy_v3_mtp
    hy_v4_mtp gemma4_mtp inkling_mtp glm5_next_mtp""".split()
)
"""Model types of MTP drafts. As method names they are deprecated spellings of ``mtp``."""

_NEXTN = ("num_nextn_predict_layers",)
_MTP_LAYERS = ("mtp_num_hidden_layers", *_NEXTN)


@attrs.frozen(kw_only=True)
class Family:
    """One row: `types` or `classes` of the target become `becomes`, run by class `runs_as`, with n_predict from `counts`.

    `default` is n_predict where the checkpoint does not state it; 0 means that it then has no MTP modules. `changes`
    are further fields of the draft's config. With `one_a_draft` every module is a step of its own, so that the draft's
    config also states them as num_nextn_predict_layers. `runs_experts_as` is the class of a target with experts.
    """

    types: tuple[str, ...]
    becomes: str
    runs_as: str
    classes: tuple[str, ...] = ()
    counts: tuple[str, ...] = _NEXTN
    default: int = 0
    changes: Mapping[str, Any] = attrs.field(factory=dict)
    one_a_draft: bool = False
    runs_experts_as: str = ""


_NO_LAYERS = {"num_hidden_layers": 0}

FAMILIES: tuple[Family, ...] = (
    Family(types=("deepseek_v3", "kimi_k2"), becomes="deepseek_mtp", runs_as="DeepSeekMTPModel"),
    Family(
        types=("deepseek_v32", "glm_moe_dsa"), becomes="deepseek_mtp", runs_as="DeepseekV32MTPModel"
    ),
    Family(types=("deepseek_v4",), becomes="deepseek_mtp", runs_as="DeepSeekV4MTPModel"),
    Family(types=("kimi_k3",), becomes="kimi_k3_mtp", runs_as="KimiK3MTPModel"),
    Family(types=("glm5_next",), becomes="glm5_next_mtp", runs_as="Glm5NextMTPModel"),
    Family(
        types=("mimo",),
        classes=("MiMoForCausalLM",),
        becomes="mimo_mtp",
        runs_as="MiMoMTPModel",
        changes=_NO_LAYERS,
    ),
    Family(
        types=("glm4_moe",),
        classes=("Glm4MoeForCausalLM",),
        becomes="glm4_moe_mtp",
        runs_as="Glm4MoeMTPModel",
    ),
    Family(
        types=("glm4_moe_lite",),
        classes=("Glm4MoeLiteForCausalLM",),
        becomes="glm4_moe_lite_mtp",
        runs_as="Glm4MoeLiteMTPModel",
        changes=_NO_LAYERS,
    ),
    Family(
        types=("glm_ocr",),
        classes=("GlmOcrForConditionalGeneration",),
        becomes="glm_ocr_mtp",
        runs_as="GlmOcrMTPModel",
        changes=_NO_LAYERS,
    ),
    # Only the first of the modules in a MiMo-V2 checkpoint is supported, whatever it states.
    Family(
        types=("mimo_v2", "mimo_v2_flash", "mimo_v2_pro"),
        classes=("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"),
        becomes="mimo_v2_mtp",
        runs_as="MiMoV2MTPModel",
        counts=(),
        default=1,
        changes=_NO_LAYERS,
        one_a_draft=True,
    ),
    Family(
        types=("mimo_v2_omni",),
        classes=("MiMoV2OmniForCausalLM",),
        becomes="mimo_v2_mtp",
        runs_as="MiMoV2OmniMTPModel",
        counts=(),
        default=1,
        changes=_NO_LAYERS,
        one_a_draft=True,
    ),
    Family(
        types=("qwen3_5", "intern_s2", "intern_s2_preview"),
        becomes="qwen3_5_mtp",
        runs_as="Qwen3_5MTP",
        counts=_MTP_LAYERS,
        runs_experts_as="Qwen3_5MoeMTP",
    ),
    Family(
        types=("qwen3_5_moe",), becomes="qwen3_5_mtp", runs_as="Qwen3_5MoeMTP", counts=_MTP_LAYERS
    ),
    Family(
        types=("qwen3_next",), becomes="qwen3_next_mtp", runs_as="Qwen3NextMTP", counts=_MTP_LAYERS
    ),
    Family(
        types=("qwen4_exp",), becomes="qwen4_exp_mtp", runs_as="Qwen4ExpMTP", counts=_MTP_LAYERS
    ),
    Family(
        types=("longcat_flash", "longcat_flash_ngram"),
        becomes="longcat_flash_mtp",
        runs_as="LongCatFlashMTPModel",
        default=1,
    ),
    Family(
        types=("step3p5", "step3p7"),
        classes=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
        becomes="step3p5_mtp",
        runs_as="Step3p5MTP",
        default=1,
    ),
    Family(
        types=("inkling", "inkling_model", "inkling_mm_model"),
        becomes="inkling_mtp",
        runs_as="InklingMTPModel",
        one_a_draft=True,
    ),
    Family(
        types=("gemma4_assistant", "gemma4_unified_assistant"),
        becomes="gemma4_mtp",
        runs_as="Gemma4MTPModel",
        counts=(),
        default=1,
        changes={"num_kv_shared_layers": 0},
    ),
    Family(
        types=("minimax_m3", "minimax_m3_vl"),
        classes=("MiniMaxM3SparseForConditionalGeneration",),
        becomes="minimax_m3_mtp",
        runs_as="MiniMaxM3MTP",
        counts=("num_mtp_modules",),
        default=1,
    ),
    Family(types=("dots3_note",), becomes="dots3_note_mtp", runs_as="Dots3NoteMTPModel", default=1),
    Family(types=("ernie4_5_moe",), becomes="ernie_mtp", runs_as="ErnieMTPModel"),
    Family(types=("exaone_moe",), becomes="exaone_moe_mtp", runs_as="ExaoneMoeMTP"),
    Family(types=("exaone4_5",), becomes="exaone4_5_mtp", runs_as="Exaone4_5_MTP"),
    Family(types=("hy_v3",), becomes="hy_v3_mtp", runs_as="HYV3MTPModel"),
    Family(types=("hy_v4",), becomes="hy_v4_mtp", runs_as="HYV4MTPModel"),
    Family(types=("pangu_ultra_moe",), becomes="pangu_ultra_moe_mtp", runs_as="OpenPanguMTPModel"),
    Family(
        types=("nemotron_h", "nemotron_h_puzzle"),
        becomes="nemotron_h_mtp",
        runs_as="NemotronHMTPModel",
    ),
    # Checkpoints of the third generation have the second one's type, and a class name of their own.
    Family(
        types=("bailing_hybrid_v3",),
        classes=("BailingMoeV3ForCausalLM",),
        becomes="bailing_hybrid_v3_mtp",
        runs_as="BailingMoeV3MTPModel",
    ),
    Family(
        types=("bailing_hybrid",),
        classes=("BailingMoeV2_5ForCausalLM",),
        becomes="bailing_hybrid_mtp",
        runs_as="BailingMoeV25MTPModel",
    ),
)
"""All families. A type is in one row only; where a class name and a type differ, the first row that has either counts."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The row of a checkpoint's class name or model type, compared whole: a part of a name is another family."""
    kind, names = model_type(config), architectures(config)
    return next(
        (f for f in FAMILIES if kind in f.types or not set(names).isdisjoint(f.classes)), None
    )


def num_modules(config: Mapping[str, Any]) -> int:
    """MTP modules that the checkpoint holds: of a draft its n_predict, of a target what its family's fields say."""
    if model_type(config) in ALIASES:
        return stated_modules(config) or 1
    family = family_of(config)
    if family is None:
        return 1 if names_in_architectures(config, "mtp") else 0
    inner = config.get("mtp_config")
    nested = find_count(inner, *family.counts) if isinstance(inner, Mapping) else None
    return nested or find_count(config, *family.counts) or family.default


def stated_modules(config: Mapping[str, Any]) -> int | None:
    """Modules that a draft's own config states, under any family's name for them."""
    return find_count(config, "n_predict", *_MTP_LAYERS, "num_mtp_modules")


def is_mtp(config: Mapping[str, Any]) -> bool:
    """True when the checkpoint is an MTP draft, or a target that ships MTP modules."""
    return (
        model_type(config) in ALIASES
        or names_in_architectures(config, "mtp")
        or num_modules(config) > 0
    )


def as_draft(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the MTP draft inside a target's checkpoint. A draft's own config stays as it is, n_predict added."""
    family, modules = family_of(config), num_modules(config)
    if model_type(config) in ALIASES:
        stated = stated_modules(config)
        known = stated is None or "n_predict" in config
        return config if known else FrozenMap({**config, "n_predict": stated})
    if family is None or modules == 0:
        return config
    experts = find_count(config, "num_experts") is not None
    changes: dict[str, Any] = {
        "model_type": family.becomes,
        "architectures": ((family.runs_experts_as if experts else "") or family.runs_as,),
        "n_predict": modules,
        **family.changes,
    }
    if family.one_a_draft:
        changes["num_nextn_predict_layers"] = modules
    shared = find(config, "index_share_for_mtp_iteration")
    if shared is not None:
        changes["index_share_for_mtp_iteration"] = shared
    return FrozenMap({**config, **changes})
