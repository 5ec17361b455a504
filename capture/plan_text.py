"""Parts of a plan in words, alike on a terminal and on a page."""

from collections.abc import Sequence

from graphspec.capture.eager import in_words, spans
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
