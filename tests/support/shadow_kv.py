"""A shadow of the paged cache: each slot remembers which prefix it was written for, and each read is checked."""

from collections.abc import Sequence

from graphspec.engine.block_pool import SCRATCH_BLOCK
from graphspec.engine.kv_manager import KVManager


class WrongRead(AssertionError):
    """A slot that a step reads does not hold what was to be there."""


class ShadowCache:
    """What the slots of one cache hold: the tokens that the content of each depends on.

    `reach` is how many tokens past a position its content depends on: 0 for the target, the prefill lookahead for a
    drafter of EAGLE's type.
    """

    def __init__(self, block_size: int, num_blocks: int, reach: int = 0) -> None:
        self._block_size = block_size
        self._reach = reach
        self._slots: list[int] = [0] * (block_size * num_blocks)
        self._names: dict[tuple[object, object], int] = {}

    def slot(self, blocks: Sequence[int], position: int) -> int:
        block = blocks[position // self._block_size]
        assert block != SCRATCH_BLOCK, "no request owns the scratch block"
        return block * self._block_size + position % self._block_size

    def write(self, salt: str, tokens: Sequence[int], blocks: Sequence[int], positions) -> None:
        contents = self._contents(salt, tokens)
        for position in positions:
            self._slots[self.slot(blocks, position)] = self._of(contents, position)

    def read(self, salt: str, tokens: Sequence[int], blocks: Sequence[int], until: int) -> None:
        """Checks every position below `until`, as attention of the row at `until` - 1 reads them."""
        contents = self._contents(salt, tokens)
        for position in range(until):
            if self._slots[self.slot(blocks, position)] != self._of(contents, position):
                raise WrongRead(f"position {position} of {salt!r} {list(tokens)}")

    def write_as(self, salt: str, tokens: Sequence[int], blocks: Sequence[int], place: int) -> None:
        """Writes the last of `tokens` at the slot of another position: where a row of a tree lies."""
        self._slots[self.slot(blocks, place)] = self._of(
            self._contents(salt, tokens), len(tokens) - 1
        )

    def move(self, blocks: Sequence[int], source: int, target: int) -> None:
        """Copies the slot of one position to that of another."""
        self._slots[self.slot(blocks, target)] = self._slots[self.slot(blocks, source)]

    def copy(self, source: int, target: int) -> None:
        size = self._block_size
        self._slots[target * size : (target + 1) * size] = self._slots[
            source * size : (source + 1) * size
        ]

    def _contents(self, salt: str, tokens: Sequence[int]) -> list[int]:
        """A number for each prefix of the tokens, equal for equal prefixes and no others."""
        names = self._names
        known = [names.setdefault((salt, None), len(names) + 1)]
        for token in tokens:
            known.append(names.setdefault((known[-1], token), len(names) + 1))
        return known

    def _of(self, contents: list[int], position: int) -> int:
        return contents[min(position + 1 + self._reach, len(contents) - 1)]


def check_ownership(kv: KVManager) -> None:
    """Each block has as many owners as tables that hold it; what no table holds is free; nothing is lost."""
    pool, held = kv.pool, {}
    for request in kv.started:
        blocks = kv.blocks(request)
        assert len(set(blocks)) == len(blocks), "a request holds a block twice"
        for block in blocks:
            held[block] = held.get(block, 0) + 1
    assert SCRATCH_BLOCK not in held
    assert {b: pool.owners(b) for b in held} == held
    assert pool.free == pool.size - len(held)
