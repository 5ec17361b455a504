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
MIN_N, MAX_N, LONGEST, MAX_BITS, LATEST, TABLES, PREVIOUS, WORDS = range(8)

LEAST_BITS = 6
PROBES = 512
RESEEDS = 8
# 2**64 / golden ratio, and an odd constant of splitmix64 (Steele, Lea, Flood 2014): far-apart odd multipliers.
GOLDEN, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9

_fault = njit(fault_of)


# What runs for each token is inlined into its caller's loop: a call of compiled code passes seven words for each array,
# which took 100 of 130 ns a token.
@njit(inline="always")
def _hash(row: Any, hashes: Any, end: int, limit: int, multiplier: Any) -> None:
    """Writes the hashes of the n-grams that end at `end` into `hashes`, for n in 1..limit."""
    value = np.uint64(0)
    for n in range(limit):
        value = (value + np.uint64(row[end - 1 - n] + 1)) * multiplier
        hashes[n] = value


@njit(inline="always")
def _seek(row: Any, tables: Any, table: int, start: int, mask: int, end: int, n: int) -> int:
    """Where in its table the n-gram that ends at `end` is stored, or the free place where it would be."""
    at = start
    while True:
        other = tables[table + at]
        if other == 0:
            break
        same = 1
        while same <= n and row[other - same] == row[end - same]:
            same += 1
        if same > n:
            break
        at = (at + 1) & mask
    return at


@njit(inline="always")
def _walk(tables: Any, table: int, start: int, mask: int, wanted: int) -> int:
    """The first place from `start` on that holds the position `wanted`. Reads no text."""
    at = start
    while tables[table + at] != wanted:
        at = (at + 1) & mask
    return at


@njit
def _clear(tables: Any, state: Any, layout: Any) -> None:
    used = np.int64(1) << state[BITS]
    for level in range(layout[MAX_N] - layout[MIN_N] + 1):
        table = level << layout[MAX_BITS]
        tables[table : table + used] = 0


@njit
def _append(
    row: Any,
    tables: Any,
    previous: Any,
    known: Any,
    hashes: Any,
    state: Any,
    layout: Any,
    tokens: Any,
) -> None:
    """Adds tokens to a slot. Tables that are made anew are the same work from the first token on."""
    min_n, max_n, max_bits, latest = (
        layout[MIN_N],
        layout[MAX_N],
        layout[MAX_BITS],
        layout[LATEST],
    )
    end = state[LENGTH] + 1
    length = state[LENGTH] + len(tokens)
    row[state[LENGTH] : length] = tokens
    state[LENGTH] = length
    while (np.int64(1) << state[BITS]) < 2 * length:
        state[BITS] += 1
        end = 0
    match = np.int64(0)
    while end <= length:
        if end == 0:
            _clear(tables, state, layout)
            end = 1
        multiplier = np.uint64(state[MULTIPLIER])
        shift = np.uint64(64 - state[BITS])
        mask = (np.int64(1) << state[BITS]) - 1
        probes = np.int64(0)
        while end <= length and probes <= PROBES:
            limit = min(max_n, end)
            _hash(row, hashes, end, limit, multiplier)
            match, longest = np.int64(0), np.int64(0)
            if latest:
                # Every entry moves to the newest place, and `previous` keeps where it was.
                for n in range(min_n, limit + 1):
                    level = n - min_n
                    table = level << max_bits
                    start = np.int64(hashes[n - 1] >> shift)
                    at = _seek(row, tables, table, start, mask, end, n)
                    probes = max(probes, (at - start) & mask)
                    before = np.int64(tables[table + at])
                    previous[level * len(known) + end] = before
                    tables[table + at] = end
                    if before:
                        longest, match = n, before
            else:
                highest = min(limit, max(np.int64(known[end - 1]), min_n - 1) + 1)
                n = limit
                while n > highest:
                    table = (n - min_n) << max_bits
                    start = np.int64(hashes[n - 1] >> shift)
                    at = _walk(tables, table, start, mask, 0)
                    probes = max(probes, (at - start) & mask)
                    tables[table + at] = end
                    n -= 1
                while n >= min_n:
                    table = (n - min_n) << max_bits
                    start = np.int64(hashes[n - 1] >> shift)
                    at = _seek(row, tables, table, start, mask, end, n)
                    match = np.int64(tables[table + at])
                    if match:
                        longest = n
                        break
                    probes = max(probes, (at - start) & mask)
                    tables[table + at] = end
                    n -= 1
            known[end] = longest
            end += 1
        if probes > PROBES and state[RESEEDED] < RESEEDS:
            state[RESEEDED] += 1
            state[MULTIPLIER] = np.int64(
                (multiplier + np.uint64(GOLDEN)) * np.uint64(MIX) | np.uint64(1)
            )
            end = 0
    state[MATCH] = match


@njit
def _truncate(
    row: Any,
    tables: Any,
    previous: Any,
    known: Any,
    hashes: Any,
    state: Any,
    layout: Any,
    length: int,
) -> None:
    if length == 0:
        # A request that ended. Its successor starts with small tables again.
        state[LENGTH], state[MATCH], state[RESEEDED], state[BITS] = 0, 0, 0, LEAST_BITS
        _clear(tables, state, layout)
        return
    min_n, latest = layout[MIN_N], layout[LATEST]
    multiplier = np.uint64(state[MULTIPLIER])
    shift = np.uint64(64 - state[BITS])
    mask = (np.int64(1) << state[BITS]) - 1
    for end in range(state[LENGTH], length, -1):
        limit = min(layout[MAX_N], end)
        _hash(row, hashes, end, limit, multiplier)
        lowest = min_n if latest else max(min_n, np.int64(known[end]) + 1)
        for n in range(lowest, limit + 1):
            table = (n - min_n) << layout[MAX_BITS]
            at = _walk(tables, table, np.int64(hashes[n - 1] >> shift), mask, end)
            tables[table + at] = previous[(n - min_n) * len(known) + end] if latest else 0
    state[LENGTH] = length
    n = np.int64(known[length])
    match = np.int64(0)
    if n and latest:
        match = np.int64(previous[(n - min_n) * len(known) + length])
    elif n:
        _hash(row, hashes, length, n, multiplier)
        table = (n - min_n) << layout[MAX_BITS]
        start = np.int64(hashes[n - 1] >> shift)
        match = np.int64(
            tables[table + _seek(row, tables, table, start, mask, length, n)]
        )
    state[MATCH] = match


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
    longest = layout[LONGEST]
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        words = store[slot * layout[WORDS] : (slot + 1) * layout[WORDS]]
        row = words[: layout[TABLES]]
        tables = words[layout[TABLES] : layout[PREVIOUS]]
        previous = words[layout[PREVIOUS] :]
        lengths = known[slot * (longest + 1) : (slot + 1) * (longest + 1)]
        scratch, own = hashes[slot * layout[MAX_N] :], state[slot]
        if len(keep) and keep[i] < own[LENGTH]:
            _truncate(
                row, tables, previous, lengths, scratch, own, layout, np.int64(keep[i])
            )
        if starts[i + 1] > starts[i]:
            new = tokens[starts[i] : starts[i + 1]]
            _append(row, tables, previous, lengths, scratch, own, layout, new)
            match = own[MATCH]
            count = min(k, longest - own[LENGTH], own[LENGTH] - match)
            if match and count > 0:
                drafts[slot, :count] = row[match : match + count]
                counts[slot] = count
    return FINE


_IDS, _TABLE = types.int32[::1], types.int32[:, ::1]
SIGNATURE = types.int64(
    *(_IDS, _IDS, _IDS, _IDS, types.int64),
    *(_IDS, types.uint8[::1], types.int64[:, ::1], types.uint64[::1], types.int64[::1]),
    *(_TABLE, _IDS),
)
