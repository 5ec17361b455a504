"""What can be wrong with a step of the n-gram index: found by code that compiles, told in sentences."""

from typing import Any

from graphspec.errors import KernelError, Problem

FINE, BAD_SLOT, TWICE, BAD_TOKEN, TOO_LONG, BAD_KEEP, BAD_STARTS, FAULTS = range(8)


def fault_of(
    lengths: Any, longest: int, slots: Any, keep: Any, tokens: Any, starts: Any, counts: Any
) -> int:
    """The first fault of a step as ``row * FAULTS + fault``, or FINE. Run before anything of the step is done.

    `lengths` [slots] are the tokens that each slot has. `counts` [slots] holds zeros, and is used to mark slots as seen.
    """
    rows = len(slots)
    if len(starts) != rows + 1 or starts[0] != 0 or starts[rows] != len(tokens):
        return BAD_STARTS
    for i in range(rows):
        slot = slots[i]
        if slot < 0 or slot >= len(counts):
            return i * FAULTS + BAD_SLOT
        if counts[slot] < 0:
            return i * FAULTS + TWICE
        counts[slot] = -1
        if starts[i + 1] < starts[i] or starts[i + 1] > len(tokens):
            return i * FAULTS + BAD_STARTS
        length = int(lengths[slot])
        if len(keep):
            if keep[i] < 0 or keep[i] > length:
                return i * FAULTS + BAD_KEEP
            length = int(keep[i])
        if length + starts[i + 1] - starts[i] > longest:
            return i * FAULTS + TOO_LONG
        for j in range(starts[i], starts[i + 1]):
            if tokens[j] < 0:
                return i * FAULTS + BAD_TOKEN
    return FINE


def error_of(
    found: int, lengths: Any, longest: int, slots: Any, keep: Any, tokens: Any, starts: Any
) -> KernelError:
    """The fault as an error that names the row, its slot and the values."""
    row, fault = divmod(found, FAULTS)
    where = f"n-gram index, row {row} of {len(slots)}"
    if fault == BAD_STARTS:
        return KernelError(
            Problem(
                where="n-gram index, starts",
                found=f"{[int(s) for s in starts]} for {len(slots)} rows and {len(tokens)} tokens",
                wanted="rows + 1 positions from 0 to the number of tokens that never go down",
                hint="starts[i] is where row i's new tokens begin in tokens",
            )
        )
    slot = int(slots[row])
    if fault == BAD_SLOT:
        problem = Problem(
            where=where,
            found=f"slot {slot}",
            wanted=f"0 to {len(lengths) - 1}",
            hint="a row is named by the request's slot, not by its place in the batch",
        )
    elif fault == TWICE:
        problem = Problem(
            where=where, found=f"slot {slot} a second time", wanted="each slot once a step"
        )
    elif fault == BAD_TOKEN:
        new = [int(t) for t in tokens[starts[row] : starts[row + 1]]]
        at = next(i for i, token in enumerate(new) if token < 0)
        problem = Problem(
            where=f"{where}, new token {at}",
            found=str(new[at]),
            wanted="an id of 0 or more",
            hint="ids of -1 are padding or placeholders of drafts: leave them out",
        )
    else:
        has = f"slot {slot}, which has {int(lengths[slot])} tokens"
        if fault == BAD_KEEP:
            problem = Problem(
                where=where, found=f"keep {int(keep[row])} of {has}", wanted="0 to what it has"
            )
        else:
            problem = Problem(
                where=where,
                found=f"{int(starts[row + 1] - starts[row])} more for {has}",
                wanted=f"at most max_model_len ({longest}) in all",
                hint="reset the slot when a request ends, and truncate it when drafts are rejected",
            )
    return KernelError(problem)
