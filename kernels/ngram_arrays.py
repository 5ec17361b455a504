"""Memory of the compiled n-gram index: where a slot's tokens and its table lie."""

import contextlib
import mmap
import secrets
from typing import Any

import numpy as np

from graphspec.kernels import ngram_compiled as compiled
from graphspec.kernels.ngram import Tie

_LINE = 16  # Words of a cache line.
_AHEAD = 1024
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python has no name for."""


class CompiledRows:
    """Slots of an `NgramIndex` in arrays whose size never changes, so that no step allocates.

    The arrays are address space: a page of it becomes memory when a request first reaches it, and stays. Huge pages are
    declined, because a slot with a short request would take two megabytes for its table.
    """

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
        self._advance = compiled.CODE.ready()["advance"]
        levels, places = max_n - min_n + 1, max_model_len + 1
        bits = max(compiled.LEAST_BITS, (2 * max_model_len - 1).bit_length())
        table = -(-max_model_len // _LINE) * _LINE
        last = table + (1 << bits)
        previous = last + (levels * places if tie == "latest" else 0)
        words = -(-(2 * previous - last) // _LINE) * _LINE
        state = np.zeros((slots, compiled.FIELDS), np.int64)
        state[:, compiled.BITS] = compiled.LEAST_BITS
        state[:, compiled.DIRTY] = 1 << compiled.LEAST_BITS
        # Drawn anew for each index: a prompt cannot be written to collide. Drafts do not depend on it.
        state[:, compiled.SEED] = secrets.randbits(63)
        self.state = state
        self._pages = _private_pages(slots * words * 4)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._store = np.frombuffer(self._pages, np.int32)
        layout = np.zeros(compiled.LAYOUT, np.int64)
        layout[compiled.MIN_N], layout[compiled.MAX_N] = min_n, max_n
        layout[compiled.LONGEST], layout[compiled.LATEST] = max_model_len, tie == "latest"
        layout[compiled.SLOTS], layout[compiled.DEPTH] = slots, drafts.shape[1]
        layout[compiled.PLACE_BITS] = max_model_len.bit_length()
        layout[compiled.LEVEL_BITS] = (levels - 1).bit_length()
        layout[compiled.TABLE], layout[compiled.LAST] = table, last
        layout[compiled.PREVIOUS], layout[compiled.WORDS] = previous, words
        # Named, so that they live as long as their addresses are used.
        self._addressed = {
            compiled.STORE: self._store,
            compiled.STATE: state,
            compiled.VALUES: np.zeros(compiled.BLOCK, np.uint32),
            compiled.SEEN: np.zeros(slots, np.int32),
            compiled.DRAFTS: drafts,
            compiled.COUNTS: counts,
        }
        for field, array in self._addressed.items():
            assert array.flags.carray, field
            layout[field] = array.ctypes.data
        self._layout, self._address = layout, int(layout.ctypes.data)
        self._longest, self._words = max_model_len, words

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
        at = slot * self._words + match
        found: list[int] = self._store[at : at + depth].tolist()
        return found

    def advance(self, slots: Any, keep: Any, tokens: Any, starts: Any, k: int) -> int:
        """One step, see the compiled `advance`."""
        if len(tokens) >= _AHEAD:
            self._make_room(slots, starts)
        fault: int = self._advance(slots, keep, tokens, starts, k, self._address)
        return fault

    def _make_room(self, slots: Any, starts: Any) -> None:
        """Asks the kernel for the pages of long prompts at once: one by one they cost more than the tokens that fill them."""
        for slot, first, end in zip(
            slots.tolist(), starts.tolist(), starts.tolist()[1:], strict=False
        ):
            if not 0 <= slot < len(self.state) or end - first < _AHEAD:
                continue
            length = self.length(slot)
            longest = min(length + end - first, self._longest)
            self._populate(slot, length, longest)
            table = int(self._layout[compiled.TABLE])
            self._populate(slot, table, table + (1 << (2 * longest - 1).bit_length()))
            levels = int(self._layout[compiled.PREVIOUS] - self._layout[compiled.LAST]) // (
                self._longest + 1
            )
            for part in (compiled.LAST, compiled.PREVIOUS) if levels else ():
                start = int(self._layout[part])
                self._populate(slot, start + length * levels, start + (longest + 1) * levels)

    def _populate(self, slot: int, first: int, end: int) -> None:
        start = 4 * (slot * self._words + first)
        start -= start % mmap.PAGESIZE
        size = 4 * (slot * self._words + end) - start
        # An older kernel knows no such advice, and then a page comes when it is touched.
        with contextlib.suppress(OSError, ValueError):
            self._pages.madvise(_POPULATE_WRITE, start, size)


def _private_pages(size: int) -> mmap.mmap:
    """Address space of this process alone: a fork's writes are its own, and a page comes faster than one that is shared."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, size, flags=flags)
