"""Which runner the engine has, and what it can do: asked, granted, and why the two differ."""

from collections.abc import Iterator

from graphspec.config.compilation import Runner, RunnerFacts
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.resolve.detect import Chosen
from graphspec.speculators.base import SpeculatorConfig

_FACTS = {
    "v1": RunnerFacts(full_graphs_per_k=False, central_trimming=False),
    "v2": RunnerFacts(full_graphs_per_k=True, central_trimming=True),
}


@config_class
class RunnerDecision:
    """The runner that was asked for, the one that is granted, and its capabilities."""

    asked: str = unkeyed(doc="Runner in the config.", reason="only the granted runner acts")
    granted: str = keyed(Stage.CAPTURE, doc="v1, v2, or declared for an engine's own runner.")
    facts: RunnerFacts = keyed(Stage.CAPTURE, doc="What the runner can do.")
    reasons: tuple[str, ...] = unkeyed(
        default=(), doc="Why it is another than the newest.", reason="explanation only"
    )


def decide_runner(
    asked: Runner | RunnerFacts,
    chosen: Chosen | None,
    section: SpeculativeConfig | None,
    speculator: SpeculatorConfig | None,
) -> RunnerDecision:
    """The runner for the chosen method. `auto` is v2 unless the method, or an option of it, is in v1 only.

    Raises `SpecError` when the runner that was asked for lacks the method or an option.
    """
    if isinstance(asked, RunnerFacts):
        return RunnerDecision(asked="declared", granted="declared", facts=asked)
    lacks = {name: list(_lacks(name, chosen, section, speculator)) for name in _FACTS}
    if asked is Runner.AUTO:
        granted = "v2" if not lacks["v2"] or lacks["v1"] else "v1"
        reasons = tuple(f"runner_v2_lacks: {what}, so v1 runs" for what in lacks["v2"])
    else:
        granted, reasons = asked.value, ()
    if asked is Runner.AUTO and lacks[granted]:
        raise SpecError(
            Problem(
                where="speculative",
                found="; ".join(f"{name} lacks {' and '.join(lacks[name])}" for name in lacks),
                wanted="what one runner has",
                hint="drop one of them; compilation.runner is auto, and no runner has all",
            )
        )
    if lacks[granted]:
        raise SpecError(
            Problem(
                where="compilation.runner",
                found=f"{granted}, which lacks {what}",
                wanted="a runner that has it",
                hint=f"the other runner lacks {' and '.join(lacks[_other(granted)])}: drop one of the options"
                if lacks[_other(granted)]
                else f"set compilation.runner to {_other(granted)} or auto",
            )
            for what in lacks[granted]
        )
    return RunnerDecision(
        asked=asked.value, granted=granted, facts=_FACTS[granted], reasons=reasons
    )


def _other(name: str) -> str:
    return "v1" if name == "v2" else "v2"


def _lacks(
    name: str,
    chosen: Chosen | None,
    section: SpeculativeConfig | None,
    speculator: SpeculatorConfig | None,
) -> Iterator[str]:
    if chosen is None or section is None:
        return
    if name not in chosen.cls.runners:
        yield f"method {chosen.name}"
    if name == "v1":
        if section.enable_adaptive_verification:
            yield "enable_adaptive_verification"
        if section.draft_lm_head_quantization is not None:
            yield "draft_lm_head_quantization"
        if getattr(speculator, "xpress_topc", None) is not None:
            yield "XPress refiners"
    elif name == "v2":
        if getattr(speculator, "parallel_drafting", False):
            yield f"parallel_drafting with {chosen.name}"
        if section.use_heterogeneous_vocab:
            yield "use_heterogeneous_vocab"
