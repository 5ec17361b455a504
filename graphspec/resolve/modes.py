"""The graph mode: asked, granted, and a reason for every step down."""

from graphspec.config.compilation import CompilationConfig, CudagraphMode, Runner
from graphspec.config.schedule import KSchedule
from graphspec.errors import Problem, SpecError
from graphspec.resolve.spec import ModeDecision


def mode_decision(config: CompilationConfig, schedule: KSchedule) -> ModeDecision:
    """The mode that the engine's facts allow. With ``strict`` a downgrade is a `SpecError`."""
    granted, reasons = config.cudagraph_mode, []
    if config.runner is Runner.V1 and len(schedule.depths) > 1 and granted.decode_is_full:
        granted = CudagraphMode.PIECEWISE
        reasons.append(
            "runner_v1_dynamic_k: a v1 runner knows one query length, so it cannot capture full graphs per depth; "
            "set compilation.runner to v2 or drop the table"
        )
    if reasons and config.strict:
        raise SpecError(
            Problem(
                where="compilation.cudagraph_mode",
                found=config.cudagraph_mode.value,
                wanted=f"{granted.value}, since compilation.strict forbids a downgrade",
                hint=reason,
            )
            for reason in reasons
        )
    return ModeDecision(asked=config.cudagraph_mode, granted=granted, reasons=tuple(reasons))
