"""The depth schedule: the user's table as asked, the dense schedule as granted, and why they differ."""

from collections.abc import Iterator

from graphspec.config.parallel import ParallelConfig
from graphspec.config.schedule import KSchedule, Range, dense_schedule
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, keyed, unkeyed
from graphspec.resolve.detect import Chosen
from graphspec.resolve.runner import RunnerDecision

_TABLE = "speculative.num_speculative_tokens_per_batch_size"


@config_class
class ScheduleDecision:
    """The table that was asked for, the schedule that is granted, and why the two differ."""

    asked: tuple[Range, ...] | None = unkeyed(
        doc="Table in the config, or none.", reason="only the granted schedule acts"
    )
    granted: KSchedule = keyed(Stage.CAPTURE, doc="Depth k for each batch size.")
    reasons: tuple[str, ...] = unkeyed(
        default=(), doc="One reason code and sentence per change.", reason="explanation only"
    )


def decide_schedule(
    chosen: Chosen,
    section: SpeculativeConfig,
    *,
    k: int,
    runner: RunnerDecision,
    parallel: ParallelConfig,
    max_num_seqs: int,
    strict: bool,
) -> ScheduleDecision:
    """The schedule that method, runner and data parallelism allow. With `strict`, clearing the table is a `SpecError`.

    This comes before the graph mode is decided: a table that is cleared must not cost full graphs.
    """
    table = section.num_speculative_tokens_per_batch_size
    reasons = tuple(_obstacles(chosen, runner, parallel)) if table is not None else ()
    if reasons and strict:
        raise SpecError(
            Problem(
                where=_TABLE,
                found="a table",
                wanted="no table, since compilation.strict forbids to clear it",
                hint=reason,
            )
            for reason in reasons
        )
    granted = dense_schedule(None if reasons else table, k, max_num_seqs)
    return ScheduleDecision(asked=table, granted=granted, reasons=reasons)


def _obstacles(chosen: Chosen, runner: RunnerDecision, parallel: ParallelConfig) -> Iterator[str]:
    if parallel.data_parallel_size > 1:
        yield (
            "data_parallel: ranks see batches of different sizes and would choose different depths, which hangs; "
            f"the depth is fixed with parallel.data_parallel_size {parallel.data_parallel_size}"
        )
    if not runner.facts.central_trimming and not chosen.cls.trims_depth:
        yield (
            f"runner_cannot_trim: a {runner.granted} runner leaves trimming to the drafter, and {chosen.name} always "
            "proposes its full depth; use a runner with central trimming, or drop the table"
        )
