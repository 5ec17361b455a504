"""The n-gram index as compiled code: one function that advances request slots, over plain memory.

A slot has one hash table for all n of the window, and a token enters at most one n-gram into it, whatever the window is.
Let f be the place where an n-gram occurs first. If the (n-1)-gram that ends with it occurs first at the same place, the
table need not say so: whoever finds the shorter one there finds the longer one by comparing tokens. So of all n-grams that
a token ends for the first time only the shortest is entered. A search begins at min_n and goes on where comparing ended:

    look up the min_n-gram -> a place; as many tokens as are equal there, say 3, are a match of 3;
    look up the 4-gram -> nothing (3 is the longest), or a later place: compare there, and so on.

Nearly always that is one look, and one comparison for text that comes back. An entry is four bytes: the place behind the
n-gram, n, and in the bits that are left some of the n-gram's hash, so that an entry of another n-gram rarely costs a look
at its tokens. Tokens are compared before a place counts: equal hashes cost time and never a wrong draft.

What makes it cheap in both directions:

- Tokens leave in the reverse order of their coming. The entry that was stored last in an open-addressed table took the
  first free place of its probe and nothing was placed behind it since, so setting it to 0 is a complete deletion. A search
  for the last token's n-grams ends at its own entry.
- A table is a function of tokens, capacity and multiplier. Growing clears it and enters all tokens again, in place.

The latest place instead of the earliest: `last` has, for each n-gram that occurs first at a place, where it occurred last,
by place and n. Each token writes itself there for all that it matches, and keeps what was there in `previous`.

Probes are bounded. An append that needed more than `PROBES` draws another multiplier for the slot and builds its table
again, up to `RESEEDS` times in the life of a request; from then on long probes are taken as they come, and the worst
case of one append is a walk over the whole table.

Memory is reached through pointers, which lie in `layout`: each array that Python passes costs a call some 70 ns, and one
request's step is little more than its call; and each that one function passes to another is counted as in use and back,
which took four fifths of an append.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from graphspec.kernels.host_code import HostCode, part
from graphspec.kernels.ngram_faults import FINE, fault_of

# What numba's own types do not know of.
_numba: Any = numba
types, carray = _numba.types, _numba.carray

CODE = HostCode(
    "ngram",
    "graphspec.kernels.ngram_compiled",
    "graphspec.kernels.ngram_faults",
    "graphspec.kernels.host_code",
)

# Columns of `state`, one row a slot. `DIRTY` is how much of the table may hold entries of an earlier request.
LENGTH, MATCH, BITS, SEED, RESEEDED, NEXT, DIRTY, FIELDS = range(8)
# Entries of `layout`, the same for all slots: numbers, where a slot's parts begin in words, and addresses.
MIN_N, MAX_N, LONGEST, LATEST, SLOTS, DEPTH, PLACE_BITS, LEVEL_BITS = range(8)
TABLE, LAST, PREVIOUS, WORDS = range(8, 12)
STORE, STATE, VALUES, SEEN, DRAFTS, COUNTS, LAYOUT = range(12, 19)

LEAST_BITS = 6
PREFETCH = "llvm.prefetch.p0"
# Tokens are entered in blocks, and the table of a token that comes so many later is asked for ahead.
BLOCK, AHEAD = 512, 16
PROBES = 512
RESEEDS = 8
# What a search does at its end: enters the token, takes it out, or only looks.
ENTER, LEAVE, LOOK = range(3)
# 2**64 / golden ratio, and an odd constant of splitmix64 (Steele, Lea, Flood 2014): far-apart odd multipliers.
GOLDEN, MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9

_fault = part()(fault_of)


def _asks(context: Any, pointer: Any, index: Any) -> Any:
    """Asks for the cache line of pointer[index] and does not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        known = builder.module.globals.get(PREFETCH)
        function = known or ir.Function(builder.module, kind, PREFETCH)
        builder.call(function, [place, flag(1), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(pointer, index), generate


_prefetch: Any = intrinsic(_asks)


def _pointer_to(kind: Any) -> Any:
    """Compiled code that takes an address for a pointer to numbers of this kind."""

    def points(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(points)


_int32_at, _uint32_at, _int64_at = map(_pointer_to, (types.int32, types.uint32, types.int64))


@part(forceinline=True)
def _row_of(layout: Any, slot: Any) -> Any:
    """The slot's tokens."""
    return _int32_at(layout[STORE] + 4 * slot * layout[WORDS])


@part(forceinline=True)
def _table_of(layout: Any, slot: Any) -> Any:
    """The slot's hash table."""
    return _uint32_at(layout[STORE] + 4 * (slot * layout[WORDS] + layout[TABLE]))


@part(forceinline=True)
def _links_of(layout: Any, slot: Any) -> Any:
    """The slot's `last` and `previous`, by place and n; they are not there where the earliest place is asked for."""
    address = layout[STORE] + 4 * slot * layout[WORDS]
    return _int32_at(address + 4 * layout[LAST]), _int32_at(address + 4 * layout[PREVIOUS])


@part(forceinline=True)
def _state_of(layout: Any, slot: Any) -> Any:
    return _int64_at(layout[STATE] + 8 * FIELDS * slot)


@part(forceinline=True)
def _multiplier(state: Any) -> Any:
    return np.uint32(np.uint64(state[SEED]) >> np.uint64(32)) | np.uint32(1)


@part(forceinline=True)
def _hash(row: Any, end: Any, n: Any, multiplier: Any) -> Any:
    """Of the n-gram that ends behind `end` tokens: from its last token to its first, so that a longer one goes on from it."""
    value = np.uint32(0)
    for i in range(n):
        value = np.uint32((value + np.uint32(row[end - 1 - i]) + np.uint32(1)) * multiplier)
    return value


@part()
def _clear(table: Any, state: Any) -> None:
    used = np.int64(1) << state[BITS]
    for at in range(min(used, state[DIRTY])):
        table[at] = np.uint32(0)
    state[DIRTY] = max(state[DIRTY], used)


@part(forceinline=True)
def _rule_of(layout: Any) -> Any:
    """What a search needs of the layout: read once, because memory that is written between may be anything to the compiler."""
    return layout[MIN_N], layout[MAX_N], layout[LATEST], layout[PLACE_BITS], layout[LEVEL_BITS]


@part(forceinline=True)
def _search(  # noqa: PLR0912 - a loop that calls nothing: see the head of the module
    row: Any,
    table: Any,
    last: Any,
    previous: Any,
    rule: Any,
    bits: Any,
    multiplier: Any,
    end: Any,
    value: Any,
    act: Any,
) -> Any:
    """The first place of the longest match of the tokens before `end`, its length, and the longest probe.

    `value` is the hash of the min_n-gram there. `act` says what becomes of the token's own entry and of its links.
    """
    min_n, max_n, latest, place_bits, level_bits = rule
    places, mask = (np.int64(1) << place_bits) - 1, (np.int64(1) << bits) - 1
    levels, wanted = max_n - min_n + 1, min_n
    found, length, probes = np.int64(0), np.int64(0), np.int64(0)
    while True:
        # The upper bits of the hash say where to begin, those below them are kept in the entry.
        start = np.int64(value >> np.uint32(32 - bits))
        tag = np.int64(np.uint32(value << np.uint32(bits))) >> (place_bits + level_bits)
        key = (tag << level_bits) | (wanted - min_n)
        at, other, same = start, np.int64(0), np.int64(0)
        while True:
            entry = np.int64(table[at])
            if entry == 0:
                other = np.int64(0)
                break
            if entry >> place_bits == key:
                other = entry & places
                if other == end:
                    break
                same, most = np.int64(0), min(max_n, other)
                while same < most and row[other - 1 - same] == row[end - 1 - same]:
                    same += 1
                if same >= wanted:
                    break
            at = (at + 1) & mask
        probes = max(probes, (at - start) & mask)
        if other == 0 or other == end:  # noqa: PLR1714 - compiled: no tuple
            if act == ENTER:
                table[at] = np.uint32((key << place_bits) | end)
            elif act == LEAVE:
                table[at] = np.uint32(0)
            break
        if latest and act != LOOK:
            # All these n-grams occur first at this place: the shorter ones that are left out did so at the place before.
            for n in range(wanted, same + 1):
                mine, its = end * levels + n - min_n, other * levels + n - min_n
                if act == ENTER:
                    previous[mine] = np.int32(last[its] if last[its] else other)
                    last[its] = np.int32(end)
                else:
                    last[its] = previous[mine]
        found, length = other, same
        if same == max_n:
            break
        for i in range(wanted, same + 1):
            value = np.uint32((value + np.uint32(row[end - 1 - i]) + np.uint32(1)) * multiplier)
        wanted = same + 1
    return found, length, probes


@part()
def _search_on(
    row: Any,
    table: Any,
    last: Any,
    previous: Any,
    rule: Any,
    bits: Any,
    multiplier: Any,
    end: Any,
    value: Any,
) -> Any:
    """`_search` as a call, for where it is rare."""
    _, _, probes = _search(row, table, last, previous, rule, bits, multiplier, end, value, ENTER)
    return probes


@part()
def _enter_block(
    row: Any,
    table: Any,
    last: Any,
    previous: Any,
    values: Any,
    rule: Any,
    bits: Any,
    multiplier: Any,
    end: Any,
    first: Any,
    count: Any,
) -> Any:
    """Enters tokens `first` to `count` of a block whose hashes are `values`, and returns the longest probe.

    Nearly all of them end an n-gram that is new and whose first place is free, or one that is known with all of the window.
    These need few registers and no call; for the others there is `_search`.
    """
    _, max_n, _, place_bits, level_bits = rule
    places, shift, probes = (np.int64(1) << place_bits) - 1, np.uint32(32 - bits), np.int64(0)
    for i in range(first, count):
        value, here = np.uint32(values[i]), end + i
        if i + AHEAD < count:
            _prefetch(table, np.int64(values[i + AHEAD] >> shift))
            # Without asking whether there is an entry: that is a branch which nobody can predict.
            _prefetch(row, np.int64(table[np.int64(values[i + AHEAD // 2] >> shift)]) & places)
        at = np.int64(value >> shift)
        entry = np.int64(table[at])
        tag = np.int64(np.uint32(value << np.uint32(bits))) >> (place_bits + level_bits)
        key = tag << level_bits
        if entry == 0:
            table[at] = np.uint32((key << place_bits) | here)
            continue
        if entry >> place_bits == key:
            other, same = entry & places, np.int64(0)
            most = min(max_n, other)
            while same < most and row[other - 1 - same] == row[here - 1 - same]:
                same += 1
            if same == max_n:
                continue
        tried = _search_on(row, table, last, previous, rule, bits, multiplier, here, value)
        probes = max(probes, tried)
    return probes


@part(forceinline=True)
def _match(found: Any, length: Any, previous: Any, rule: Any, end: Any) -> Any:
    """The position behind the place that is asked for: the first of the longest match, or the latest."""
    min_n, max_n, latest, _, _ = rule
    if found and latest:
        return np.int64(previous[end * (max_n - min_n + 1) + length - min_n])
    return found


@part(forceinline=True)
def _give_room(state: Any, length: Any) -> None:
    """Notes that a slot has `length` tokens now, and gives its table room for them; `_enter` does the rest."""
    state[NEXT] = state[LENGTH] + 1
    state[LENGTH] = length
    while (np.int64(1) << state[BITS]) < 2 * length:
        state[BITS] += 1
        state[NEXT] = 0


@part()
def _enter(
    row: Any, table: Any, last: Any, previous: Any, values: Any, state: Any, layout: Any
) -> None:
    """Enters the n-grams of the tokens that were added. A table that is made anew is the same work from the first token on."""
    rule = _rule_of(layout)
    min_n, max_n, latest, _, _ = rule
    levels = max_n - min_n + 1
    length, end = state[LENGTH], state[NEXT]
    state[MATCH] = 0
    while end <= length:
        if end == 0:
            _clear(table, state)
            end = 1
        bits, multiplier = state[BITS], _multiplier(state)
        count, probes = min(BLOCK, length - end + 1), np.int64(0)
        first = max(0, min_n - end)
        many = count > AHEAD
        if many:
            # By n and then by token: hashing becomes vector code.
            for i in range(count):
                values[i] = np.uint32(0)
            for n in range(1, min_n + 1):
                for i in range(first, count):
                    token = np.uint32(row[end - n + i])
                    values[i] = np.uint32((values[i] + token + np.uint32(1)) * multiplier)
        if many and not latest:
            # The last token is left for below, which notes its match.
            most = min(count, length - end)
            probes = _enter_block(
                row, table, last, previous, values, rule, bits, multiplier, end, first, most
            )
            first = max(first, most)
        for i in range(first, count):
            value = np.uint32(values[i]) if many else _hash(row, end + i, min_n, multiplier)
            if latest:
                for at in range((end + i) * levels, (end + i + 1) * levels):
                    last[at] = np.int32(0)
            found, matched, tried = _search(
                row, table, last, previous, rule, bits, multiplier, end + i, value, ENTER
            )
            probes = max(probes, tried)
            if end + i == length:
                state[MATCH] = _match(found, matched, previous, rule, length)
        end += count
        if probes > PROBES and state[RESEEDED] < RESEEDS:
            state[RESEEDED] += 1
            state[SEED] = np.int64((np.uint64(state[SEED]) + np.uint64(GOLDEN)) * np.uint64(MIX))
            end = 0


@part()
def _truncate(
    row: Any, table: Any, last: Any, previous: Any, state: Any, layout: Any, length: Any
) -> None:
    state[MATCH] = 0
    if length == 0:
        # A request that ended. Its successor starts with a small table again.
        state[LENGTH], state[RESEEDED], state[BITS] = 0, 0, LEAST_BITS
        _clear(table, state)
        return
    bits, multiplier, min_n = state[BITS], _multiplier(state), layout[MIN_N]
    rule = _rule_of(layout)
    for end in range(state[LENGTH], length - 1, -1):
        if end < min_n:
            break
        act = LEAVE if end > length else LOOK
        value = _hash(row, end, min_n, multiplier)
        found, matched, _ = _search(
            row, table, last, previous, rule, bits, multiplier, end, value, act
        )
        if end == length:
            state[MATCH] = _match(found, matched, previous, rule, end)
    state[LENGTH] = length


@part()
def _ask(row: Any, table: Any, state: Any, layout: Any, k: Any, text: Any) -> None:
    """Asks for the table places of a step's new n-grams, or with `text` for the tokens that these will be compared with."""
    multiplier, shift = _multiplier(state), np.uint32(32 - state[BITS])
    min_n, places = layout[MIN_N], (np.int64(1) << layout[PLACE_BITS]) - 1
    for end in range(max(state[NEXT], min_n), state[LENGTH] + 1):
        at = np.int64(_hash(row, end, min_n, multiplier) >> shift)
        if not text:
            _prefetch(table, at)
        elif table[at]:
            # Both ends: what is compared, and the drafts behind it.
            place = np.int64(table[at]) & places
            _prefetch(row, max(0, place - layout[MAX_N]))
            _prefetch(row, min(place + k, state[LENGTH]) - 1)


@part(forceinline=True)
def _is_step(state: Any) -> Any:
    """Whether a slot's new tokens are few, and enter the table that is there."""
    return state[NEXT] > 0 and state[LENGTH] - state[NEXT] < AHEAD


@CODE.entry(
    types.int64(*(types.int32[::1],) * 4, types.int64, types.int64),
)
def advance(  # noqa: PLR0912 - five passes over one list of arguments
    slots: Any, keep: Any, tokens: Any, starts: Any, k: Any, address: Any
) -> Any:
    """Cuts each row's slot down to `keep` tokens, appends its new tokens, and drafts. Returns what `fault_of` does.

    slots [rows], keep [rows] or [0] to cut nothing, tokens [sum] of all rows one after another, starts [rows + 1]: all
    int32. At `address` lies the layout, and at its addresses drafts [slots, K] and counts [slots], int32, which are written whole, -1 and 0
    where nothing is proposed. With a `k` below 0 they are left alone.
    """
    layout = _int64_at(address)
    count, depth, rows = layout[SLOTS], layout[DEPTH], len(slots)
    state = carray(_int64_at(layout[STATE]), (count, FIELDS))
    seen = carray(_int32_at(layout[SEEN]), (count,))
    fault = _fault(state[:, LENGTH], layout[LONGEST], slots, keep, tokens, starts, seen)
    for each in range(count):
        seen[each] = 0
    counts, drafts = _int32_at(layout[COUNTS]), _int32_at(layout[DRAFTS])
    if k >= 0:
        for each in range(count):
            counts[each] = np.int32(0)
        for each in range(count * depth):
            drafts[each] = np.int32(-1)
    if fault:
        return fault
    values = _uint32_at(layout[VALUES])
    # Slots lie far apart and each of them misses the cache a few times, so the batch goes through them in passes: what a
    # pass asked for has arrived when the next one comes to it.
    for i in range(rows):
        row, length = _row_of(layout, np.int64(slots[i])), state[slots[i], LENGTH]
        _prefetch(row, max(0, length - layout[MAX_N]))
        _prefetch(row, length)
    for i in range(rows):
        slot = np.int64(slots[i])
        row, table, own = _row_of(layout, slot), _table_of(layout, slot), _state_of(layout, slot)
        if len(keep) and keep[i] < own[LENGTH]:
            last, previous = _links_of(layout, slot)
            _truncate(row, table, last, previous, own, layout, np.int64(keep[i]))
        if starts[i + 1] > starts[i]:
            length = own[LENGTH]
            for at in range(starts[i], starts[i + 1]):
                row[length] = tokens[at]
                length += 1
            _give_room(own, length)
            if _is_step(own):
                _ask(row, table, own, layout, k, False)
    for i in range(rows):
        slot = np.int64(slots[i])
        own = _state_of(layout, slot)
        if starts[i + 1] > starts[i] and _is_step(own):
            _ask(_row_of(layout, slot), _table_of(layout, slot), own, layout, k, True)
    for i in range(rows):
        slot = np.int64(slots[i])
        if starts[i + 1] > starts[i]:
            row, own = _row_of(layout, slot), _state_of(layout, slot)
            last, previous = _links_of(layout, slot)
            _enter(row, _table_of(layout, slot), last, previous, values, own, layout)
            _prefetch(row, own[MATCH])
    if k < 0:
        return FINE
    for i in range(rows):
        slot = np.int64(slots[i])
        length, match = state[slot, LENGTH], state[slot, MATCH]
        if starts[i + 1] > starts[i] and match:
            row = _row_of(layout, slot)
            most = max(0, min(k, layout[LONGEST] - length, length - match))
            counts[slot] = np.int32(most)
            for at in range(most):
                drafts[slot * depth + at] = row[match + at]
    return FINE
