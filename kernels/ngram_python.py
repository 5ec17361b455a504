"""The n-gram index without numba: a dictionary for each n, with the same answers."""

from typing import Any

import attrs

from graphspec.kernels.ngram import Tie
from graphspec.kernels.ngram_faults import FINE, fault_of


@attrs.define(eq=False)
class _Request:
    """One slot. `matches[end]` is the longest known suffix of the first `end` tokens and the position behind its place;
    `before[end]` has, for each n, the position behind the n-gram's place before token `end` came, or 0."""

    levels: int
    tokens: list[int] = attrs.field(factory=list)
    matches: list[tuple[int, int]] = attrs.field(factory=lambda: [(0, 0)])
    before: list[list[int]] = attrs.field(factory=lambda: [[]])
    places: list[dict[tuple[int, ...], int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.places = [{} for _ in range(self.levels)]


class PythonRows:
    """Slots of an `NgramIndex`. Time O(max_n ** 2) a token, since a dictionary compares whole n-grams."""

    def __init__(
        self,
        *,
        slots: int,
        min_n: int,
        max_n: int,
        max_model_len: int,
        tie: Tie,
        drafts: Any,
        counts: Any,
    ) -> None:
        self._min_n, self._max_n, self._longest = min_n, max_n, max_model_len
        self._latest = tie == "latest"
        self._drafts, self._counts = drafts, counts
        self._requests = [_Request(max_n - min_n + 1) for _ in range(slots)]

    def length(self, slot: int) -> int:
        """Tokens that the slot has."""
        return len(self._requests[slot].tokens)

    def lengths(self) -> list[int]:
        """Tokens of every slot."""
        return [len(r.tokens) for r in self._requests]

    def draft(self, slot: int, k: int) -> list[int]:
        """At most `k` drafts of the slot."""
        r = self._requests[slot]
        _, match = r.matches[-1]
        depth = min(k, self._longest - len(r.tokens))
        return r.tokens[match : match + depth] if match and depth > 0 else []

    def advance(self, slots: Any, keep: Any, tokens: Any, starts: Any, k: int) -> int:
        """One step, as the compiled `advance` does it."""
        seen = [0] * len(self._requests)
        fault = fault_of(self.lengths(), self._longest, slots, keep, tokens, starts, seen)
        if k >= 0:
            self._counts[:] = 0
            self._drafts[:] = -1
        if fault != FINE:
            return fault
        for i, slot in enumerate(slots.tolist()):
            if len(keep):
                self._truncate(slot, int(keep[i]))
            new = tokens[starts[i] : starts[i + 1]].tolist()
            for token in new:
                self._append(self._requests[slot], token)
            if new and k >= 0:
                found = self.draft(slot, k)
                self._drafts[slot, : len(found)] = found
                self._counts[slot] = len(found)
        return FINE

    def _append(self, r: _Request, token: int) -> None:
        r.tokens.append(token)
        end = len(r.tokens)
        before, longest, match = [], 0, 0
        for n in range(self._min_n, min(self._max_n, end) + 1):
            places, gram = r.places[n - self._min_n], tuple(r.tokens[end - n :])
            place = places.get(gram, 0)
            before.append(place)
            if place:
                longest, match = n, place
            if self._latest or not place:
                places[gram] = end
        r.before.append(before)
        r.matches.append((longest, match))

    def _truncate(self, slot: int, length: int) -> None:
        r = self._requests[slot]
        while len(r.tokens) > length:
            end = len(r.tokens)
            for i, place in enumerate(r.before.pop()):
                gram = tuple(r.tokens[end - self._min_n - i :])
                if not place:
                    del r.places[i][gram]
                elif self._latest:
                    r.places[i][gram] = place
            r.matches.pop()
            r.tokens.pop()
