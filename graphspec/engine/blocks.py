"""Block manager: which blocks of the paged cache belong to which request."""

from collections.abc import Sequence

from graphspec.engine.buffers import SCRATCH_BLOCK


class BlockPool:
    """Free blocks of a cache of `num_blocks` blocks; the scratch block is never given out."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._free = [b for b in range(num_blocks - 1, -1, -1) if b != SCRATCH_BLOCK]
        self._block_size = block_size

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens take."""
        return -(-tokens // self._block_size)

    def take(self, count: int) -> list[int]:
        """`count` free blocks. The caller has checked `free`."""
        assert count <= len(self._free), "admission checks free blocks first"
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        """Returns a finished request's blocks."""
        self._free.extend(reversed(blocks))
