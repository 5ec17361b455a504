"""The ladder of bucket sizes in requests."""


def request_ladder(first: int, last: int) -> tuple[int, ...]:
    """Sizes to capture for batches of `first` to `last` requests, ascending: fine steps below, coarse above, `last` always.

    >>> request_ladder(1, 20)
    (1, 2, 4, 8, 16, 20)
    >>> request_ladder(9, 16)
    (16,)
    """
    steps = {1, 2, 4, *range(8, 256, 8), *range(256, last + 1, 16), last}
    return tuple(sorted(s for s in steps if first <= s <= last))
