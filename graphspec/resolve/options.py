"""Which fields of the speculative section a method reads. Anything else that is set is refused: it would be ignored."""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from graphspec.config.partial import Partial, readable
from graphspec.config.speculative import DraftSampleMethod, SpeculativeConfig
from graphspec.errors import Problem
from graphspec.fields import evolve, policies
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class
from graphspec.text import show

GUARDED = (
    "dspark_draft_topk",
    "draft_lm_head_quantization",
    "index_share_for_mtp_iteration",
    "xpress_topc",
    "speculator_options",
)
"""Options that a class must list in `supported_options`. 0 and False count as set."""

_OWNED: Mapping[str, str] = {
    "prompt_lookup_": "ngram or ngram_gpu",
    "suffix_decoding_": "suffix",
}
"""Prefixes of options that belong to one family, and the methods that read them."""

_DRAFT_ONLY = (
    "draft_load_config",
    "revision",
    "code_revision",
    "quantization",
    "max_model_len",
    "moe_backend",
    "attention_backend",
    "kv_cache_dtype",
)
"""Options of a draft model, meaningless for methods that have none."""


def option_problems(
    name: str, cls: type[SpeculatorConfig], section: SpeculativeConfig
) -> Iterator[Problem]:
    """Every option that is set and that the method `name` does not read."""
    for option in GUARDED:
        value = readable(section, option)
        if value is not None and option not in cls.supported_options:
            yield _unread(option, value, name, _readers(option))
    for prefix, owners in _OWNED.items():
        if prefix not in cls.owned_prefixes:
            for option in (n for n in policies(SpeculativeConfig) if n.startswith(prefix)):
                value = readable(section, option)
                if value is not None:
                    yield _unread(option, value, name, f"only {owners} reads it")
    if not cls.has_draft_model:
        yield from _draft_model_options(name, section)
    if (
        readable(section, "parallel_drafting")
        and "parallel_drafting" not in policies(cls)
        and not _block(cls)
    ):
        yield _unread(
            "parallel_drafting", True, name, "draft_model (PARD) and eagle3 (P-EAGLE) read it"
        )
    if readable(section, "use_heterogeneous_vocab") and not cls.draft_has_own_vocab:
        yield _unread(
            "use_heterogeneous_vocab", True, name, "only draft_model maps between vocabularies"
        )


def without_options(section: SpeculativeConfig, unread: Iterable[Problem]) -> SpeculativeConfig:
    """The section with the options that `unread` names at their defaults: what nobody reads must decide nothing."""
    fields = attrs.fields_dict(SpeculativeConfig)  # type: ignore[arg-type]
    names = [p.where.removeprefix("speculative.") for p in unread]
    defaults = {name: fields[name].default for name in names}
    if isinstance(section, Partial):
        replaced: SpeculativeConfig = section.replaced(defaults)
        return replaced
    return evolve(section, **defaults)


def _draft_model_options(name: str, section: SpeculativeConfig) -> Iterator[Problem]:
    for option in _DRAFT_ONLY:
        value = readable(section, option)
        if value is not None:
            yield _unread(option, value, name, "only methods with a draft model read it")
    if readable(section, "use_local_argmax_reduction"):
        yield _unread("use_local_argmax_reduction", True, name, "it needs a draft model's head")
    if readable(section, "draft_sample_method") is DraftSampleMethod.PROBABILISTIC:
        yield _unread(
            "draft_sample_method", "probabilistic", name, "it needs a draft model's probabilities"
        )
    if readable(section, "enable_adaptive_verification"):
        yield _unread(
            "enable_adaptive_verification", True, name, "it needs a draft model's confidence"
        )


def _block(cls: type[SpeculatorConfig]) -> bool:
    """True for block drafters, which draft in parallel whatever is asked."""
    return cls.base_method in ("dflash", "dspark")


def _readers(option: str) -> str:
    names = [n for n in known_methods() if option in speculator_config_class(n).supported_options]
    *others, last = names
    return f"only {', '.join(others)} and {last} read it" if others else f"only {last} reads it"


def _unread(option: str, value: object, name: str, why: str) -> Problem:
    return Problem(
        where=f"speculative.{option}",
        found=f"{show(value)} with method {name}, which does not read it",
        wanted="no value for this method",
        hint=f"drop it, or choose another method; {why}",
    )
