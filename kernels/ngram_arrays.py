"""Memory of the compiled n-gram index: where a slot's tokens and tables lie."""

import mmap
import secrets
from typing import Any

import numpy as np

from graphspec.kernels import ngram_compiled as compiled
from graphspec.kernels.ngram import Tie

_LINE = 16  # Words of a cache line.


class CompiledRows:
    """Slots of an `NgramIndex` in arrays whose size never changes, so that no step allocates.

    The arrays are address space: a page of it becomes memory when a request first reaches it, and stays. Huge pages are
    declined, because a slot with a short request would take two megabytes for every table.
    """

    def __init__(self, *, slots: int, min_n: int, max_n: int, max_model_len: int, tie: Tie) -> None:
        levels, places = max_n - min_n + 1, max_model_len + 1
        bits = max(compiled.LEAST_BITS, (2 * max_model_len - 1).bit_length())
        row = -(-max_model_len // _LINE) * _LINE
        previous = row + (levels << bits)
        words = previous + (levels * places if tie == "latest" else 0)
        words = -(-words // _LINE) * _LINE
        layout = np.zeros(compiled.WORDS + 1, np.int64)
        layout[compiled.MIN_N], layout[compiled.MAX_N] = min_n, max_n
        layout[compiled.LONGEST], layout[compiled.MAX_BITS] = max_model_len, bits
        layout[compiled.LATEST] = tie == "latest"
        layout[compiled.TABLES], layout[compiled.PREVIOUS] = row, previous
        layout[compiled.WORDS] = words
        state = np.zeros((slots, compiled.FIELDS), np.int64)
        state[:, compiled.BITS] = compiled.LEAST_BITS
        # Drawn anew for each index: a prompt cannot be written to collide. Drafts do not depend on it.
        state[:, compiled.SEED] = secrets.randbits(63)
        self.state = state
        self._arrays = (
            _pages(slots * words, np.int32),
            _pages(slots * places, np.uint8),
            state,
            np.zeros(compiled.BLOCK, np.uint32),
            layout,
        )
        self._longest = max_model_len

    def length(self, slot: int) -> int:
        """Tokens that the slot has."""
        return int(self.state[slot, compiled.LENGTH])

    def lengths(self) -> Any:
        """Tokens of every slot."""
        return self.state[:, compiled.LENGTH]

    def draft(self, slot: int, k: int) -> list[int]:
        """At most `k` drafts of the slot."""
        length, match = self.state[slot, : compiled.MATCH + 1].tolist()
        depth = min(k, self._longest - length, length - match)
        if not match or depth <= 0:
            return []
        store, _, _, _, layout = self._arrays
        at = slot * int(layout[compiled.WORDS]) + match
        found: list[int] = store[at : at + depth].tolist()
        return found

    def advance(
        self, slots: Any, keep: Any, tokens: Any, starts: Any, k: int, drafts: Any, counts: Any
    ) -> int:
        """One step, see the compiled `advance`."""
        fault: int = compiled.advance(slots, keep, tokens, starts, k, *self._arrays, drafts, counts)
        return fault


def _pages(count: int, kind: Any) -> Any:
    size = np.dtype(kind).itemsize
    memory = mmap.mmap(-1, count * size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind)
