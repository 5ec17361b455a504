"""The comparison table of drafting methods, read from the classes themselves."""

from collections.abc import Callable, Sequence

from graphspec.speculators.base import DraftPhase, SpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class

COLUMNS = (
    "method",
    "base class",
    "reads target hidden states",
    "separate workspace",
    "lookahead",
    "prefill lookahead",
    "extra slots",
    "draft phase",
    "block drop",
    "own vocabulary",
    "PCP",
    "runners",
)
"""Headings of `comparison`."""

Row = tuple[str, ...]


def comparison() -> Sequence[Row]:
    """One row for each method, and for each variant that declares something else; numbers are formulas in k."""
    rows = []
    for name in known_methods():
        for variant, example in speculator_config_class(name).examples():
            rows.append(_row(f"{name} ({variant})" if variant else name, example))
    return rows


def _row(name: str, example: SpeculatorConfig) -> Row:
    return (
        name,
        type(example).__mro__[1].__name__,
        _yes(example.uses_target_hidden_states),
        _yes(example.uses_separate_workspace_lane),
        formula(example.num_lookahead_tokens),
        formula(example.num_prefill_lookahead_tokens),
        formula(example.max_num_new_slots_for_drafting),
        _draft_phase(example),
        _yes(example.needs_eagle_block_drop()),
        _yes(example.draft_has_own_vocab),
        _yes(example.supports_pcp),
        ", ".join(sorted(example.runners)),
    )


def _draft_phase(example: SpeculatorConfig) -> str:
    phase: str = example.draft_phase.value
    if example.draft_phase is not DraftPhase.PARALLEL:
        return phase
    return f"{phase}, {formula(example.draft_tokens_per_request)}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def formula(count: Callable[[int], int]) -> str:
    """A count that is constant or k plus a constant, as text.

    >>> formula(lambda k: k + 1), formula(lambda k: 0), formula(lambda k: 2 * k)
    ('k+1', '0', '5:10, 9:18')
    """
    at_5, at_9 = count(5), count(9)
    if at_5 == at_9:
        return str(at_5)
    if at_9 - at_5 == 4:
        return f"k{at_5 - 5:+d}" if at_5 != 5 else "k"
    return f"5:{at_5}, 9:{at_9}"
