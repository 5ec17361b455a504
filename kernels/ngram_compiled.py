"""The n-gram index as compiled code: one function that advances request slots, over plain arrays.

For each n of the window a slot has a hash table from n-grams to the position behind their earliest occurrence (or the
latest, see `LATEST`). A table holds positions only, 4 bytes each, and a candidate is compared token by token before it
counts: two n-grams with one hash cost a probe and never a wrong draft.

What makes both directions cheap:

- The longest known suffix grows by at most one a token, because a match of n ending here is one of n - 1 ending one
  token ago. So an append tries one length, goes down until something is known, and stores every longer n-gram as new
  without a look at the text.
- Tokens leave in the reverse order of their coming. The entry that was stored last in an open-addressed table took the
  first free place of its probe and nothing was placed behind it since, so setting it to 0 is a complete deletion.
- A table is a function of tokens, capacity and multiplier. Growing clears it and appends again, in place.

Probes are bounded. An append that needed more than `PROBES` draws another multiplier for the slot and builds its tables
again, up to `RESEEDS` times in the life of a request; from then on long probes are taken as they come, and the worst
case of one append is a walk over the whole table.

Everything below takes the arrays of `Storage` by position: attribute access on objects is what compiled code lacks.
"""

from typing import Any

import numpy as np
from numba import njit, types

from graphspec.kernels.ngram_faults import FINE, fault_of

# Columns of `state`, one row a slot.
LENGTH, MATCH, BITS, MULTIPLIER, RESEEDED, FIELDS = range(6)
# Entries of `layout`: the same for all slots.
MIN_N, MAX_N, LONGEST, MAX_BITS, LATEST, ROW, TABLES, PREVIOUS, WORDS = range(9)

LEAST_BITS = 6
PROBES = 512
RESEEDS = 8
# 2**64 / golden ratio, and an odd constant of splitmix64 (Steele, Lea, Flood 2014): far-apart odd multipliers.
GOLDEN, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9

_fault = njit(fault_of)


@njit
def _hash(
    store: Any, state: Any, hashes: Any, layout: Any, slot: int, end: int, limit: int
) -> None:
    """Writes the hashes of the n-grams that end at `end` into the slot's part of `hashes`, for n in 1..limit."""
    multiplier = np.uint64(state[slot, MULTIPLIER])
    last = slot * layout[WORDS] + layout[ROW] + end - 1
    out = slot * layout[MAX_N]
    value = np.uint64(0)
    for n in range(limit):
        value = (value + np.uint64(store[last - n] + 1)) * multiplier
        hashes[out + n] = value


@njit
def _start(state: Any, hashes: Any, layout: Any, slot: int, n: int) -> int:
    shift = np.uint64(64 - state[slot, BITS])
    return np.int64(hashes[slot * layout[MAX_N] + n - 1] >> shift)


@njit
def _table(layout: Any, slot: int, n: int) -> int:
    level = n - layout[MIN_N]
    return slot * layout[WORDS] + layout[TABLES] + (level << layout[MAX_BITS])


@njit
def _seek(
    store: Any, state: Any, hashes: Any, layout: Any, slot: int, end: int, n: int
) -> tuple[int, int]:
    """Where the n-gram that ends at `end` is stored, or the free place where it would be, and the probes it took."""
    table = _table(layout, slot, n)
    row = slot * layout[WORDS] + layout[ROW]
    mask = (np.int64(1) << state[slot, BITS]) - 1
    at = _start(state, hashes, layout, slot, n)
    steps = 1
    while True:
        other = store[table + at]
        if other == 0:
            return table + at, steps
        same = True
        for i in range(1, n + 1):
            if store[row + other - i] != store[row + end - i]:
                same = False
                break
        if same:
            return table + at, steps
        at = (at + 1) & mask
        steps += 1


@njit
def _walk(
    store: Any, state: Any, hashes: Any, layout: Any, slot: int, n: int, wanted: int
) -> tuple[int, int]:
    """The first place of the probe that holds the position `wanted`, and the probes it took; reads no text."""
    table = _table(layout, slot, n)
    mask = (np.int64(1) << state[slot, BITS]) - 1
    at = _start(state, hashes, layout, slot, n)
    steps = 1
    while store[table + at] != wanted:
        at = (at + 1) & mask
        steps += 1
    return table + at, steps


@njit
def _insert_earliest(
    store: Any, known: Any, state: Any, hashes: Any, layout: Any, slot: int, end: int
) -> int:
    """Enters the n-grams that end at `end`; returns the probes of the longest search."""
    min_n = layout[MIN_N]
    limit = min(layout[MAX_N], end)
    _hash(store, state, hashes, layout, slot, end, limit)
    lengths = slot * (layout[LONGEST] + 1)
    highest = min(limit, max(known[lengths + end - 1], min_n - 1) + 1)
    worst, n, match = 0, limit, 0
    while n > highest:
        at, steps = _walk(store, state, hashes, layout, slot, n, np.int64(0))
        store[at] = end
        worst = max(worst, steps)
        n -= 1
    while n >= min_n:
        at, steps = _seek(store, state, hashes, layout, slot, end, n)
        worst = max(worst, steps)
        match = store[at]
        if match:
            break
        store[at] = end
        n -= 1
    known[lengths + end] = n if match else 0
    state[slot, MATCH] = match
    return worst


@njit
def _insert_latest(
    store: Any, known: Any, state: Any, hashes: Any, layout: Any, slot: int, end: int
) -> int:
    """As `_insert_earliest`. Every entry moves to the newest place, and `PREVIOUS` keeps where it was before."""
    min_n = layout[MIN_N]
    limit = min(layout[MAX_N], end)
    _hash(store, state, hashes, layout, slot, end, limit)
    places = layout[LONGEST] + 1
    previous = slot * layout[WORDS] + layout[PREVIOUS] + end
    worst, longest, match = 0, 0, 0
    for n in range(min_n, limit + 1):
        at, steps = _seek(store, state, hashes, layout, slot, end, n)
        worst = max(worst, steps)
        before = store[at]
        store[previous + (n - min_n) * places] = before
        store[at] = end
        if before:
            longest, match = n, before
    known[slot * places + end] = longest
    state[slot, MATCH] = match
    return worst


@njit
def _clear(store: Any, state: Any, layout: Any, slot: int) -> None:
    used = np.int64(1) << state[slot, BITS]
    for n in range(layout[MIN_N], layout[MAX_N] + 1):
        table = _table(layout, slot, n)
        store[table : table + used] = 0


@njit
def _append(
    store: Any,
    known: Any,
    state: Any,
    hashes: Any,
    layout: Any,
    slot: int,
    tokens: Any,
    first: int,
    last: int,
) -> None:
    """Adds tokens[first:last]. Tables that are made anew are the same work from the first token on."""
    length = state[slot, LENGTH]
    end = length + 1
    row = slot * layout[WORDS] + layout[ROW]
    for i in range(first, last):
        store[row + length] = tokens[i]
        length += 1
    state[slot, LENGTH] = length
    while (np.int64(1) << state[slot, BITS]) < 2 * length:
        state[slot, BITS] += 1
        end = 0
    while end <= length:
        if end == 0:
            _clear(store, state, layout, slot)
            end = 1
        if layout[LATEST]:
            probes = _insert_latest(store, known, state, hashes, layout, slot, end)
        else:
            probes = _insert_earliest(store, known, state, hashes, layout, slot, end)
        end += 1
        if probes > PROBES and state[slot, RESEEDED] < RESEEDS:
            state[slot, RESEEDED] += 1
            state[slot, MULTIPLIER] = np.int64(
                (np.uint64(state[slot, MULTIPLIER]) + np.uint64(GOLDEN)) * np.uint64(MIX)
                | np.uint64(1)
            )
            end = 0


@njit
def _truncate(
    store: Any, known: Any, state: Any, hashes: Any, layout: Any, slot: int, length: int
) -> None:
    if length == 0:
        # A request that ended. Its successor starts with small tables again.
        state[slot, LENGTH] = 0
        state[slot, MATCH] = 0
        state[slot, RESEEDED] = 0
        state[slot, BITS] = LEAST_BITS
        _clear(store, state, layout, slot)
        return
    min_n, max_n, places = layout[MIN_N], layout[MAX_N], layout[LONGEST] + 1
    lengths = slot * places
    for end in range(state[slot, LENGTH], length, -1):
        limit = min(max_n, end)
        _hash(store, state, hashes, layout, slot, end, limit)
        if layout[LATEST]:
            previous = slot * layout[WORDS] + layout[PREVIOUS] + end
            for n in range(min_n, limit + 1):
                at, _ = _walk(store, state, hashes, layout, slot, n, end)
                store[at] = store[previous + (n - min_n) * places]
        else:
            for n in range(max(min_n, known[lengths + end] + 1), limit + 1):
                at, _ = _walk(store, state, hashes, layout, slot, n, end)
                store[at] = 0
    state[slot, LENGTH] = length
    n = np.int64(known[lengths + length])
    match = 0
    if n and layout[LATEST]:
        previous = slot * layout[WORDS] + layout[PREVIOUS]
        match = store[previous + (n - min_n) * places + length]
    elif n:
        _hash(store, state, hashes, layout, slot, length, n)
        at, _ = _seek(store, state, hashes, layout, slot, length, n)
        match = store[at]
    state[slot, MATCH] = match


@njit
def _draft(store: Any, state: Any, layout: Any, slot: int, k: int, out: Any) -> int:
    """Writes what followed the slot's match into its row of `out`; returns how many drafts these are."""
    length, match = state[slot, LENGTH], state[slot, MATCH]
    count = min(k, layout[LONGEST] - length, length - match)
    if match == 0 or count <= 0:
        return 0
    row = slot * layout[WORDS] + layout[ROW]
    for i in range(count):
        out[slot, i] = store[row + match + i]
    return count


@njit(nogil=True)
def advance(
    slots: Any,
    keep: Any,
    tokens: Any,
    starts: Any,
    k: int,
    store: Any,
    known: Any,
    state: Any,
    hashes: Any,
    layout: Any,
    drafts: Any,
    counts: Any,
) -> int:
    """Cuts each row's slot down to `keep` tokens, appends its new tokens, and drafts. Returns what `fault_of` does.

    slots [rows], keep [rows] or [0] to cut nothing, tokens [sum] of all rows one after another, starts [rows + 1]: all
    int32. drafts [slots, K] and counts [slots]: int32, written whole, -1 and 0 where nothing is proposed.
    """
    counts[:] = 0
    fault = _fault(state[:, LENGTH], layout[LONGEST], slots, keep, tokens, starts, counts)
    counts[:] = 0
    drafts[:] = -1
    if fault:
        return fault
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        if len(keep) and keep[i] < state[slot, LENGTH]:
            _truncate(store, known, state, hashes, layout, slot, np.int64(keep[i]))
        if starts[i + 1] > starts[i]:
            _append(store, known, state, hashes, layout, slot, tokens, starts[i], starts[i + 1])
            counts[slot] = _draft(store, state, layout, slot, k, drafts)
    return FINE


_IDS, _TABLE = types.int32[::1], types.int32[:, ::1]
SIGNATURE = types.int64(
    *(_IDS, _IDS, _IDS, _IDS, types.int64),
    *(_IDS, types.uint8[::1], types.int64[:, ::1], types.uint64[::1], types.int64[::1]),
    *(_TABLE, _IDS),
)
