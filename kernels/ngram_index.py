"""`NgramIndex`: n-gram drafting that does not read the context again."""

from collections.abc import Sequence
from typing import Any, Protocol, get_args

import numpy as np

from graphspec.errors import EnvironmentProblem, KernelError, Problem
from graphspec.kernels.ngram import Backend, Tie
from graphspec.kernels.ngram_faults import error_of
from graphspec.kernels.ngram_warm import warm_ngram

_INT32 = np.dtype(np.int32)
LONGEST_N = 255
LARGEST = 2**31 - 1


class _Rows(Protocol):
    def length(self, slot: int) -> int: ...

    def lengths(self) -> Any: ...

    def draft(self, slot: int, k: int) -> list[int]: ...

    def advance(self, slots: Any, keep: Any, tokens: Any, starts: Any, k: int) -> int: ...


class NgramIndex:
    """Drafts for requests in numbered slots, equal to `propose_ngram` after every append and every truncation.

    Appending and cutting off cost O(max_n) a token, and an answer costs O(k), whatever the length of the context. An
    append that doubles a slot's table costs a build of the slot, which on average is O(max_n) a token again. Colliding
    hashes cost time and never a wrong draft: see `graphspec.kernels.ngram_compiled` for the bound.

    Memory: `bytes_per_token` for each token of a request, in address space that is reserved when the index is made.
    With numba (extra `ngram`) steps are compiled, ahead: see `warm_ngram`. Without it the index runs in plain Python, with
    equal results in O(max_n ** 2) a token; `backend` says which it is, and `backend_reason` why it is not numba. One
    thread at a time may use an index.

    >>> index = NgramIndex(min_n=2, max_n=3, k=4, max_model_len=100)
    >>> index.append([1, 2, 3, 4, 2, 3])
    >>> index.propose()
    [4, 2, 3]
    >>> index.truncate(5)
    >>> index.propose()
    []
    """

    def __init__(
        self,
        *,
        min_n: int,
        max_n: int,
        k: int,
        max_model_len: int,
        slots: int = 1,
        tie: Tie = "earliest",
        backend: Backend | None = None,
    ) -> None:
        """`k` is the largest depth that will be asked for. Raises `KernelError` for bounds that make no sense."""
        _check_bounds(min_n, max_n, k, max_model_len, slots, tie, backend)
        warmed = warm_ngram() if backend != "python" else None
        if backend == "numba" and warmed is not None and warmed.backend != "numba":
            raise EnvironmentProblem(
                Problem(
                    where="graphspec.kernels.NgramIndex",
                    found="no numba",
                    wanted="numba, since backend is 'numba'",
                    hint="pip install 'graphspec-engine[ngram]', or leave backend out",
                )
            )
        self.backend: Backend = warmed.backend if warmed else "python"
        self.backend_reason = warmed.reason if warmed else "backend='python' was asked for"
        self.k = k
        self._longest = max_model_len
        self._links = max_n - min_n + 1 if tie == "latest" else 0
        self.drafts = np.full((slots, k), -1, np.int32)
        self.counts = np.zeros(slots, np.int32)
        self._nothing = np.zeros(0, np.int32)
        arguments: dict[str, Any] = {
            "slots": slots,
            "min_n": min_n,
            "max_n": max_n,
            "max_model_len": max_model_len,
            "tie": tie,
            "drafts": self.drafts,
            "counts": self.counts,
        }
        self._rows: _Rows
        if self.backend == "numba":
            from graphspec.kernels.ngram_arrays import CompiledRows

            self._rows = CompiledRows(**arguments)
        else:
            from graphspec.kernels.ngram_python import PythonRows

            self._rows = PythonRows(**arguments)

    @property
    def bytes_per_token(self) -> int:
        """Most bytes that a token of a request takes in the compiled index, pages that are in part used aside.

        The token, one table entry at a load of a quarter to a half, and with `tie="latest"` for each n the latest place and
        the one before. Plain Python takes some 100 to 200 bytes for each n instead.
        """
        return 4 + 16 + 8 * self._links

    def length(self, slot: int = 0) -> int:
        """Tokens that the slot's request has."""
        return self._rows.length(self._slot(slot))

    def append(self, tokens: Sequence[int] | np.ndarray[Any, Any], slot: int = 0) -> None:
        """Adds tokens to the slot's request. Raises `KernelError`, and adds none, if they do not fit or are no ids."""
        ids = _ids(tokens, "tokens")
        self._change(slot, self._nothing, ids)

    def truncate(self, length: int, slot: int = 0) -> None:
        """Forgets all tokens of the slot's request but the first `length`: rejected drafts, or a rollback."""
        self._change(slot, _ids([length], "length"), self._nothing)

    def reset(self, slot: int = 0) -> None:
        """Empties the slot for another request."""
        self.truncate(0, slot)

    def propose(self, k: int | None = None, slot: int = 0) -> list[int]:
        """At most `k` drafts for the slot's request; `k` is at most the index's, and that if it is None."""
        return self._rows.draft(self._slot(slot), self.k if k is None else self._depth(k))

    def step(
        self,
        slots: np.ndarray[Any, Any],
        tokens: np.ndarray[Any, Any],
        starts: np.ndarray[Any, Any],
        k: int,
        keep: np.ndarray[Any, Any] | None = None,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """One step of a batch: cuts rows down, appends what they sampled, and drafts.

        Integers all: slots [rows]; tokens [sum], the new tokens of all rows one after another; starts [rows + 1], where
        each row's begin; keep [rows], how many tokens each row keeps before it appends. `k` is the depth of this step.

        Returns the index's own ``drafts`` [slots, K] int32 and ``counts`` [slots] int32, by slot and not by row. The next
        step overwrites both, whole: slots that are not in the step, or that sampled nothing, have count 0, and what lies
        past a count is -1. Raises `KernelError` before anything is changed.
        """
        if not 0 <= k <= self.k:
            self._depth(k)
        rows = _ids(slots, "slots")
        kept = self._nothing if keep is None else _ids(keep, "keep")
        if keep is not None and len(kept) != len(rows):
            raise KernelError(
                Problem(
                    where="n-gram index, keep",
                    found=f"{len(kept)} lengths",
                    wanted=f"one for each of {len(rows)} rows, or None to cut nothing",
                )
            )
        given = (rows, kept, _ids(tokens, "tokens"), _ids(starts, "starts"))
        fault = self._rows.advance(*given, k)
        if fault:
            raise error_of(fault, self._rows.lengths(), self._longest, *given)
        return self.drafts, self.counts

    def _change(self, slot: int, keep: Any, tokens: Any) -> None:
        given = (_ids([slot], "slot"), keep, tokens, _ids([0, len(tokens)], "starts"))
        # Appends outside of a step leave the step's results alone.
        fault = self._rows.advance(*given, -1)
        if fault:
            raise error_of(fault, self._rows.lengths(), self._longest, *given)

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < len(self.counts):
            raise KernelError(
                Problem(
                    where="n-gram index",
                    found=f"slot {slot}",
                    wanted=f"0 to {len(self.counts) - 1}",
                )
            )
        return slot

    def _depth(self, k: int) -> int:
        if not 0 <= k <= self.k:
            raise KernelError(
                Problem(
                    where="n-gram index, k",
                    found=str(k),
                    wanted=f"0 to {self.k}",
                    hint="make the index with the largest k of the schedule",
                )
            )
        return k


def _ids(values: Any, name: str) -> Any:
    """`values` as int32 [n] that compiled code takes. Nothing is rounded, wrapped or cut off."""
    usual = type(values) is np.ndarray and values.dtype is _INT32 and values.ndim == 1
    # Aligned, contiguous and writable: each other kind of array would be another variant of the compiled code.
    if usual and values.flags.carray:
        return values
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuO"):
        raise KernelError(
            Problem(
                where=f"n-gram index, {name}",
                found=f"{array.dtype} {list(array.shape)}",
                wanted="integers in one dimension",
            )
        )
    for at, value in enumerate(array.tolist()) if array.size and not _fits(array) else ():
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
            raise KernelError(
                Problem(
                    where=f"n-gram index, {name}[{at}]",
                    found=repr(value),
                    wanted=f"an integer of 32 bits, at most {LARGEST}",
                    hint="ids of a vocabulary always are; these may be hashes or positions",
                )
            )
    return np.array(array, np.int32)


def _fits(array: Any) -> bool:
    return array.dtype.kind != "O" and int(array.min()) >= -LARGEST and int(array.max()) <= LARGEST


def _check_bounds(
    min_n: int, max_n: int, k: int, max_model_len: int, slots: int, tie: str, backend: str | None
) -> None:
    # An entry of the compiled table has 32 bits for a place and an n.
    levels = min(max(max_n - min_n, 0), LONGEST_N)
    longest = (1 << min(30, 32 - levels.bit_length())) - 1
    rules = [
        ("min_n", min_n, min_n >= 1, "at least 1"),
        ("max_n", max_n, min_n <= max_n <= LONGEST_N, f"min_n ({min_n}) to {LONGEST_N}"),
        ("k", k, k >= 0, "0 or more"),
        ("max_model_len", max_model_len, 1 <= max_model_len <= longest, f"1 to {longest}"),
        ("slots", slots, slots >= 1, "at least 1"),
        ("tie", tie, tie in get_args(Tie), "earliest or latest"),
        (
            "backend",
            backend,
            backend is None or backend in get_args(Backend),
            "numba, python or None",
        ),
    ]
    problems = [
        Problem(where=f"NgramIndex({name})", found=repr(value), wanted=wanted)
        for name, value, good, wanted in rules
        if not good
    ]
    if problems:
        raise KernelError(problems)
