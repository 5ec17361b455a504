"""Ladders of sizes to capture: fine steps for small batches, then sixteen sizes from each power of two to the next.

A batch is padded to the next size of its ladder. Up to 8 requests there is a size for each; up to 32 every second one;
from there on a size is at most one sixteenth above the one before, however large batches get.
"""

from collections.abc import Iterator

_EXACT = 8
_PER_OCTAVE = 16
_TOKENS = 8


def request_ladder(first: int, last: int) -> tuple[int, ...]:
    """Sizes in requests to capture for batches of `first` to `last`, ascending. `last` is always among them.

    >>> request_ladder(1, 19)
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 19)
    >>> request_ladder(61, 90)
    (62, 64, 68, 72, 76, 80, 84, 88, 90)
    """
    sizes = {*range(1, _EXACT), *_rising(_EXACT, last, finest=2), last}
    return tuple(sorted(size for size in sizes if first <= size <= last))


def token_ladder(most: int) -> tuple[int, ...]:
    """Sizes in tokens for mixed batches of up to `most` tokens, ascending. `most` is always among them.

    >>> token_ladder(50)
    (1, 2, 4, 8, 16, 24, 32, 40, 48, 50)
    """
    sizes = {1, 2, 4, *_rising(_TOKENS, most, finest=_TOKENS), most}
    return tuple(sorted(size for size in sizes if size <= most))


def adapter_cases(most: int) -> tuple[int, ...]:
    """Numbers of active adapters to capture for: none, powers of two, and `most`.

    >>> adapter_cases(6)
    (0, 1, 2, 4, 6)
    """
    powers = (1 << exponent for exponent in range(most.bit_length()))
    return tuple(sorted({0, *powers, most}))


def _rising(first: int, last: int, *, finest: int) -> Iterator[int]:
    size = first
    while size <= last:
        yield size
        size += max(finest, (1 << (size.bit_length() - 1)) // _PER_OCTAVE)
