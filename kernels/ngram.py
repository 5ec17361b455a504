"""n-gram drafting on the host: what followed the last tokens where they occurred before."""

from collections.abc import Sequence
from typing import Literal

Tie = Literal["earliest", "latest"]
Backend = Literal["numba", "python"]


def propose_ngram(
    tokens: Sequence[int],
    min_n: int,
    max_n: int,
    k: int,
    max_model_len: int,
    *,
    tie: Tie = "earliest",
) -> list[int]:
    """At most `k` drafts for a request whose tokens so far are `tokens`; an empty list when nothing matches.

    Takes the largest n in `min_n`..`max_n` whose last n tokens also occur earlier, at the earliest such place, or with
    `tie="latest"` at the last one (overlap with the end is allowed), and returns what follows there. Only the longest
    match counts. Drafts never reach past `max_model_len`. Time O(len(tokens)), memory O(max_n). Ids are compared and
    nothing else, so any integers will do. `NgramIndex` gives the same answers without reading the whole context again.

    The scan is the prefix function of the reversed sequence (Knuth, Morris, Pratt 1977) with matches capped at
    `max_n`.

    >>> propose_ngram([1, 2, 3, 4, 2, 3], 2, 3, 4, 100)
    [4, 2, 3]
    >>> text = [10, 11, 12, 10, 11, 13, 10, 11]
    >>> propose_ngram(text, 2, 2, 1, 100), propose_ngram(text, 2, 2, 1, 100, tie="latest")
    ([12], [13])
    """
    length = len(tokens)
    depth = min(k, max_model_len - length)
    if length < min_n or depth <= 0 or max_n < 1:
        return []
    backwards = tokens[::-1]
    borders = [0] * min(length, max_n)
    best, best_end, match = 0, 0, 0
    for at in range(1, length):
        if match == max_n:
            # A longer match must not count, so continue from its longest border within the cap.
            match = borders[match - 1]
        while match and backwards[at] != backwards[match]:
            match = borders[match - 1]
        if backwards[at] == backwards[match]:
            match += 1
        if at < len(borders):
            borders[at] = match
        if match > best or (match == best and match and tie == "earliest"):
            # Equal length further back in the reversed sequence is an earlier place.
            best, best_end = match, at
    if best < min_n:
        return []
    follows = length - 1 - best_end + best
    return list(tokens[follows : follows + depth])
