"""The n-gram index as compiled code: one function that advances request slots, over plain arrays.

For each n of the window a slot has a hash table from n-grams to the position behind their earliest occurrence (or the
latest, see `LATEST`). A table holds positions only, 4 bytes each, and a candidate is compared token by token before it
counts: two n-grams with one hash cost a probe and never a wrong draft.

What makes it cheap in both directions:

- Tokens leave in the reverse order of their coming. The entry that was stored last in an open-addressed table took the
  first free place of its probe and nothing was placed behind it since, so setting it to 0 is a complete deletion.
- A table is a function of tokens, capacity and multiplier. Growing clears it and enters all tokens again, in place.

Probes are bounded. An append that needed more than `PROBES` draws another multiplier for the slot and builds its tables
again, up to `RESEEDS` times in the life of a request; from then on long probes are taken as they come, and the worst
case of one append is a walk over the whole table.

The functions take the arrays of `CompiledRows` one by one, because compiled code has no objects with fields. A call passes
seven words for each array, which took 100 of 130 ns a token as long as the loop over tokens called functions.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from graphspec.kernels.ngram_faults import FINE, fault_of

# Columns of `state`, one row a slot.
LENGTH, MATCH, BITS, SEED, RESEEDED, NEXT, FIELDS = range(7)
# Entries of `layout`: the same for all slots.
MIN_N, MAX_N, LONGEST, MAX_BITS, LATEST, TABLES, PREVIOUS, WORDS = range(8)

LEAST_BITS = 6
PREFETCH = "llvm.prefetch.p0"
# Tokens are entered in blocks, and the table of a token that comes so many later is asked for ahead.
BLOCK, AHEAD = 512, 16
PROBES = 512
RESEEDS = 8
# 2**64 / golden ratio, and an odd constant of splitmix64 (Steele, Lea, Flood 2014): far-apart odd multipliers.
GOLDEN, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9

_fault = njit(fault_of)


def _asks(context: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of array[index] and does not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.bitcast(builder.gep(made.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        known = builder.module.globals.get(PREFETCH)
        function = known or ir.Function(builder.module, kind, PREFETCH)
        builder.call(function, [pointer, flag(1), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


_prefetch: Any = intrinsic(_asks)


@njit
def _clear(tables: Any, state: Any, layout: Any) -> None:
    used = np.int64(1) << state[BITS]
    for level in range(layout[MAX_N] - layout[MIN_N] + 1):
        table = level << layout[MAX_BITS]
        for at in range(table, table + used):
            tables[at] = 0


@njit(forceinline=True)
def _multiplier(state: Any) -> Any:
    return np.uint32(np.uint64(state[SEED]) >> np.uint64(32)) | np.uint32(1)


@njit(forceinline=True)
def _seek(row: Any, tables: Any, table: Any, start: Any, mask: Any, end: Any, n: Any) -> Any:
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


@njit
def _ask(row: Any, tables: Any, state: Any, layout: Any, text: Any) -> None:
    """Asks for the table places of a step's new n-grams, or with `text` for the tokens that these will be compared with."""
    multiplier, shift = _multiplier(state), np.uint32(32 - state[BITS])
    for end in range(state[NEXT], state[LENGTH] + 1):
        value = np.uint32(0)
        for n in range(1, min(layout[MAX_N], end) + 1):
            value = np.uint32((value + np.uint32(row[end - n]) + np.uint32(1)) * multiplier)
            if n >= layout[MIN_N]:
                at = ((n - layout[MIN_N]) << layout[MAX_BITS]) + np.int64(value >> shift)
                if not text:
                    _prefetch(tables, at)
                elif tables[at]:
                    _prefetch(row, tables[at] - 1)


@njit
def _write(row: Any, state: Any, layout: Any, tokens: Any) -> None:
    """Adds tokens to a slot's row and gives its tables room; `_enter` does the rest."""
    length = state[LENGTH]
    state[NEXT] = length + 1
    for i in range(len(tokens)):
        row[length] = tokens[i]
        length += 1
    state[LENGTH] = length
    while (np.int64(1) << state[BITS]) < 2 * length:
        state[BITS] += 1
        state[NEXT] = 0


@njit
def _enter(  # noqa: PLR0912 - a loop that calls nothing: see the head of the module
    row: Any, tables: Any, previous: Any, known: Any, values: Any, state: Any, layout: Any
) -> None:
    """Enters the n-grams of what `_write` added. Tables that are made anew are the same work from the first token on."""
    min_n, max_n, latest = layout[MIN_N], layout[MAX_N], layout[LATEST]
    length, end, places = state[LENGTH], state[NEXT], len(known)
    while end <= length:
        if end == 0:
            _clear(tables, state, layout)
            end = 1
        multiplier, shift = _multiplier(state), np.uint32(32 - state[BITS])
        mask = (np.int64(1) << state[BITS]) - 1
        count, probes = min(BLOCK, length - end + 1), np.int64(0)
        for i in range(count):
            values[i] = 0
            known[end + i] = 0
        # By n and then by token: hashing becomes vector code, and the tables are independent of each other.
        for n in range(1, max_n + 1):
            first = max(0, n - end)
            if first >= count:
                break
            hashed, text = values[first:count], row[end - n + first : end - n + count]
            for i in range(len(hashed)):
                hashed[i] = (hashed[i] + np.uint32(text[i]) + np.uint32(1)) * multiplier
            if n < min_n:
                continue
            table = tables[(n - min_n) << layout[MAX_BITS] :]
            for i in range(first, count):
                if i + AHEAD < count:
                    _prefetch(table, np.int64(values[i + AHEAD] >> shift))
                start = np.int64(values[i] >> shift)
                at = _seek(row, table, np.int64(0), start, mask, end + i, n)
                other = table[at]
                probes = max(probes, (at - start) & mask)
                if other:
                    known[end + i] = n
                if latest:
                    previous[(n - min_n) * places + end + i] = other
                if latest or other == 0:
                    table[at] = end + i
        end += count
        if probes > PROBES and state[RESEEDED] < RESEEDS:
            state[RESEEDED] += 1
            state[SEED] = np.int64((np.uint64(state[SEED]) + np.uint64(GOLDEN)) * np.uint64(MIX))
            end = 0
    _settle(row, tables, previous, known, state, layout)


@njit
def _settle(row: Any, tables: Any, previous: Any, known: Any, state: Any, layout: Any) -> None:
    """Notes the position behind the place that the slot's last tokens match."""
    length, min_n = state[LENGTH], layout[MIN_N]
    n = np.int64(known[length])
    match = np.int64(0)
    if n and layout[LATEST]:
        match = np.int64(previous[(n - min_n) * len(known) + length])
    elif n:
        value, multiplier = np.uint32(0), _multiplier(state)
        for i in range(1, n + 1):
            value = np.uint32((value + np.uint32(row[length - i]) + np.uint32(1)) * multiplier)
        start = np.int64(value >> np.uint32(32 - state[BITS]))
        mask = (np.int64(1) << state[BITS]) - 1
        table = (n - min_n) << layout[MAX_BITS]
        match = np.int64(tables[table + _seek(row, tables, table, start, mask, length, n)])
    state[MATCH] = match


@njit
def _truncate(
    row: Any, tables: Any, previous: Any, known: Any, state: Any, layout: Any, length: Any
) -> None:
    if length == 0:
        # A request that ended. Its successor starts with small tables again.
        state[LENGTH], state[MATCH], state[RESEEDED], state[BITS] = 0, 0, 0, LEAST_BITS
        _clear(tables, state, layout)
        return
    min_n, latest = layout[MIN_N], layout[LATEST]
    multiplier, shift = _multiplier(state), np.uint32(32 - state[BITS])
    mask = (np.int64(1) << state[BITS]) - 1
    for end in range(state[LENGTH], length, -1):
        value = np.uint32(0)
        for n in range(1, min(layout[MAX_N], end) + 1):
            value = np.uint32((value + np.uint32(row[end - n]) + np.uint32(1)) * multiplier)
            if n < min_n or (not latest and n <= known[end]):
                continue
            table, at = (n - min_n) << layout[MAX_BITS], np.int64(value >> shift)
            while tables[table + at] != end:
                at = (at + 1) & mask
            before = np.int64(0)
            if latest:
                before = np.int64(previous[(n - min_n) * len(known) + end])
            tables[table + at] = before
    state[LENGTH] = length
    _settle(row, tables, previous, known, state, layout)


@njit(nogil=True)
def advance(  # noqa: PLR0912 - five passes over one list of arguments
    slots: Any,
    keep: Any,
    tokens: Any,
    starts: Any,
    k: Any,
    store: Any,
    known: Any,
    state: Any,
    values: Any,
    layout: Any,
    drafts: Any,
    counts: Any,
) -> Any:
    """Cuts each row's slot down to `keep` tokens, appends its new tokens, and drafts. Returns what `fault_of` does.

    slots [rows], keep [rows] or [0] to cut nothing, tokens [sum] of all rows one after another, starts [rows + 1]: all
    int32. drafts [slots, K] and counts [slots]: int32, written whole, -1 and 0 where nothing is proposed.
    """
    counts[:] = 0
    fault = _fault(state[:, LENGTH], layout[LONGEST], slots, keep, tokens, starts, counts)
    for each in range(len(counts)):
        counts[each] = 0
        for at in range(drafts.shape[1]):
            drafts[each, at] = -1
    if fault:
        return fault
    longest, words, rows = layout[LONGEST], layout[WORDS], len(slots)
    # Slots lie far apart and each of them misses the cache a few times, so the batch goes through them in passes: what a
    # pass asked for has arrived when the next one comes to it.
    for i in range(rows):
        slot = np.int64(slots[i])
        _prefetch(store, slot * words + state[slot, LENGTH] - 1)
        _prefetch(known, slot * (longest + 1) + state[slot, LENGTH])
    for i in range(rows):
        slot = np.int64(slots[i])
        own, first = state[slot], slot * words
        row = store[first : first + layout[TABLES]]
        tables = store[first + layout[TABLES] : first + layout[PREVIOUS]]
        if len(keep) and keep[i] < own[LENGTH]:
            previous = store[first + layout[PREVIOUS] : first + words]
            lengths = known[slot * (longest + 1) : (slot + 1) * (longest + 1)]
            _truncate(row, tables, previous, lengths, own, layout, np.int64(keep[i]))
        if starts[i + 1] > starts[i]:
            _write(row, own, layout, tokens[starts[i] : starts[i + 1]])
            if own[NEXT] and own[LENGTH] - own[NEXT] < AHEAD:
                _ask(row, tables, own, layout, np.int64(0))
    for i in range(rows):
        slot = np.int64(slots[i])
        own, first = state[slot], slot * words
        if starts[i + 1] > starts[i] and own[NEXT] and own[LENGTH] - own[NEXT] < AHEAD:
            row = store[first : first + layout[TABLES]]
            tables = store[first + layout[TABLES] : first + layout[PREVIOUS]]
            _ask(row, tables, own, layout, np.int64(1))
    for i in range(rows):
        slot = np.int64(slots[i])
        own, first = state[slot], slot * words
        if starts[i + 1] > starts[i]:
            row = store[first : first + layout[TABLES]]
            tables = store[first + layout[TABLES] : first + layout[PREVIOUS]]
            previous = store[first + layout[PREVIOUS] : first + words]
            lengths = known[slot * (longest + 1) : (slot + 1) * (longest + 1)]
            _enter(row, tables, previous, lengths, values, own, layout)
            _prefetch(store, first + own[MATCH])
    for i in range(rows):
        slot = np.int64(slots[i])
        length, match = state[slot, LENGTH], state[slot, MATCH]
        if starts[i + 1] > starts[i] and match:
            counts[slot] = max(0, min(k, longest - length, length - match))
            for at in range(counts[slot]):
                drafts[slot, at] = store[slot * words + match + at]
    return FINE


_IDS, _TABLE = types.int32[::1], types.int32[:, ::1]
SIGNATURE = types.int64(
    *(_IDS, _IDS, _IDS, _IDS, types.int64),
    *(_IDS, types.uint8[::1], types.int64[:, ::1], types.uint32[::1], types.int64[::1]),
    *(_TABLE, _IDS),
)
