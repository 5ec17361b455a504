"""Parts of a plan in words, alike on a terminal and on a page."""

from collections.abc import Sequence

from graphspec.capture.eager import in_words, spans
from graphspec.capture.ladder_choice import LadderChoice
from graphspec.capture.memory_model import NOT_MEASURED, Estimate

ASSUMED = (
    "The program was not asked what it can capture: assumed are the target's whole decode steps, as of a program that "
    "states nothing. --ask-program asks it, which imports torch."
)


def told(estimate: Estimate | None) -> str:
    """An estimate in words; that there is none is said too."""
    return NOT_MEASURED if estimate is None else str(estimate)


def padding(tokens: float | None, waste: float | None) -> str:
    """Padded tokens of a step and what they are of the useful ones, in words."""
    if tokens is None or waste is None:
        return "no such step"
    return f"{tokens:.3g} ({waste:.1%})"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs of them as ranges: ``1 to 8, 10, 12``."""
    return in_words(spans(numbers))


def compared(choice: LadderChoice) -> str:
    """What the best ladder pads against the default one. Within tight limits it has fewer graphs, and pads more."""
    best, default = choice.best, choice.default
    how = f"{abs(choice.fewer):.0%} {'less' if choice.fewer >= 0 else 'more'} than the default one"
    return f"{how}, with {best.graphs} graphs instead of {default.graphs}"
