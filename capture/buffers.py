"""`StaticBuffer`: one static input of captured steps, written in place by operations that have names."""

from collections.abc import Sequence

import attrs
import torch

from graphspec.errors import CaptureError, Problem


@attrs.frozen(kw_only=True)
class Padding:
    """What the rows of a static buffer hold that no request owns.

    A step computes padding rows as it does any other, so `harmless` and `poison` are both legal. Results of real rows
    may depend on neither; `poison` is unlike anything that real rows have, so that a dependence shows. `unread` need not
    be legal: it lies behind the graph's rows, where a step that reads it is wrong.
    """

    harmless: float = 0
    poison: float
    unread: float


@attrs.frozen(eq=False)
class StaticBuffer:
    """A tensor at a fixed address whose first dimension is rows. It is written in place and never replaced.

    With `debug`, padding is poisoned, and rows behind a graph are made unusable.
    """

    name: str
    tensor: torch.Tensor
    padding: Padding
    debug: bool = attrs.field(default=False, kw_only=True)

    @property
    def fill(self) -> float:
        """What a padding row holds."""
        return self.padding.poison if self.debug else self.padding.harmless

    def copy_in(self, values: Sequence[object] | torch.Tensor, at: int = 0) -> None:
        """Writes rows from row `at` on. Raises `CaptureError` for more than the buffer has, or rows of another shape."""
        try:
            given = torch.as_tensor(values, dtype=self.tensor.dtype)
        except ValueError as error:
            raise self._wrong_rows("rows of unequal lengths") from error
        self._check(at, at + len(given))
        if given.shape[1:] != self.tensor.shape[1:]:
            # copy_ would broadcast a row that is too short over all of them.
            raise self._wrong_rows(f"rows of shape {list(given.shape[1:])}")
        self.tensor[at : at + len(given)].copy_(given)

    def pad(self, first: int, end: int) -> None:
        """Makes the rows from `first` up to and without `end` padding."""
        self._check(first, end)
        self.tensor[first:end].fill_(self.fill)

    def leave(self, first: int) -> None:
        """Says that a step reads no row from `first` on. What they hold stays, unless in debug."""
        self._check(first, first)
        if self.debug:
            self.tensor[first:].fill_(self.padding.unread)

    def _wrong_rows(self, found: str) -> CaptureError:
        return CaptureError(
            Problem(
                where=f"static buffer {self.name}",
                found=found,
                wanted=f"rows of shape {list(self.tensor.shape[1:])}",
            )
        )

    def _check(self, first: int, end: int) -> None:
        rows = self.tensor.shape[0]
        if not 0 <= first <= end <= rows:
            raise CaptureError(
                Problem(
                    where=f"static buffer {self.name}",
                    found=f"rows {first} to {end}",
                    wanted=f"rows within its {rows}",
                    hint="a step is at most as wide as the buffers that were allocated for it",
                )
            )
