"""Step 7: the draft depth k, given or from the checkpoint, and what the checkpoint's modules allow."""

from collections.abc import Iterator

import attrs

from graphspec.config.speculative import SpeculativeConfig
from graphspec.config.speculative_rules import fly_problems, length_problems, rates_count_problems
from graphspec.errors import Problem, SpecError
from graphspec.frozen import FrozenMap
from graphspec.resolve.detect import Chosen
from graphspec.resolve.records import Note
from graphspec.speculators import checkpoint
from graphspec.text import plural, show

_K = "speculative.num_speculative_tokens"


@attrs.frozen(kw_only=True)
class Depth:
    """The largest k, and where it comes from."""

    k: int
    why: str
    notes: tuple[Note, ...] = ()


def depth(chosen: Chosen, section: SpeculativeConfig, config: FrozenMap | None) -> Depth:
    """k for the chosen method and its draft's config. Raises `SpecError` with all problems of the depth."""
    given = section.num_speculative_tokens
    notes: tuple[Note, ...] = ()
    if given is None:
        k, why = _default(chosen, section, config), "what the checkpoint was made for"
        if config is None:
            why = f"the method's own default for {chosen.name}"
        problems = [p.under("speculative") for p in _late_rules(section, k)]
        notes = (
            Note(code="depth_defaulted", text=f"{_K} is {k}, {why}; write it to choose another"),
        )
    else:
        k, why = given, f"{_K} is {given}"
        problems = list(_module_problems(given, _n_predict(chosen, config)))
    if problems:
        raise SpecError(problems)
    return Depth(k=k, why=why, notes=(*notes, *_reuse(chosen, k, config)))


def _default(chosen: Chosen, section: SpeculativeConfig, config: FrozenMap | None) -> int:
    k = chosen.cls.default_depth(section, config)
    if k is None and config is not None:
        k = checkpoint.trained_depth(config) or _n_predict(chosen, config)
    if k is None:
        raise SpecError(
            Problem(
                where=_K,
                found=f"nothing (null) for method {chosen.name}",
                wanted="the draft depth, at least 1",
                hint="the checkpoint does not say what depth it was made for"
                if config is not None
                else f"{chosen.name} has no checkpoint that could say it",
            )
        )
    return k


def _n_predict(chosen: Chosen, config: FrozenMap | None) -> int | None:
    if config is None or chosen.method == "dspark":
        return None
    return checkpoint.find_count(config, "n_predict")


def _module_problems(k: int, modules: int | None) -> Iterator[Problem]:
    if modules is None or k <= modules or k % modules == 0:
        return
    low = k // modules * modules
    yield Problem(
        where=_K,
        found=show(k),
        wanted=f"at most the checkpoint's {modules} modules (n_predict), or a multiple of {modules}",
        hint=f"{low} or {low + modules} would work: all modules run in turn, and none can stop half-way",
    )


def _late_rules(section: SpeculativeConfig, k: int) -> Iterator[Problem]:
    """The section's rules about k, which could not run while the user had given none."""
    if section.synthetic_acceptance_rates is not None:
        yield from rates_count_problems(len(section.synthetic_acceptance_rates), k)
    if section.synthetic_acceptance_length is not None:
        yield from length_problems(section.synthetic_acceptance_length, k)
    if section.rejection_sample_method.value == "fly":
        yield from fly_problems(k, section.fly_window_size)


def _reuse(chosen: Chosen, k: int, config: FrozenMap | None) -> Iterator[Note]:
    modules = _n_predict(chosen, config)
    if modules is not None and k > modules:
        yield Note(
            code="mtp_modules_reused",
            text=f"{plural(modules, 'module')} of the checkpoint run in turn for {k} drafts; each further round is "
            "less often right",
        )
    block = checkpoint.find_count(config, "block_size") if config is not None else None
    if chosen.method in ("dflash", "dspark") and block is not None and k > block:
        yield Note(
            code="depth_above_block",
            text=f"the draft was trained on blocks of {block}, and {_K} is {k}; later drafts are less often right",
        )
