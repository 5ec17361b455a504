"""`BlockPool`: the blocks of the paged cache, who owns each, and which of them hold a prefix that others may read."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import TypeAlias

import attrs

SCRATCH_BLOCK = 0
"""Block that padding rows write to and read from. No request ever owns it."""

Parent: TypeAlias = int | str
"""What a block continues: the serial number of a published block, or for a first block the salt of its chain."""


@attrs.frozen(kw_only=True)
class PublishedBlock:
    """A full block that requests with the same prefix may share.

    `serial` names this content, and is never used again: a block whose parent was evicted cannot be found any more, even
    when the parent's digest comes back with other tokens behind it.
    """

    block: int
    serial: int
    parent: Parent
    digest: bytes
    covers: tuple[int, ...]


class BlockPool:
    """Blocks with reference counts. A free block that is published keeps its content until it is needed: the one that was
    free for the longest time goes first, after all that hold nothing of use."""

    def __init__(self, num_blocks: int) -> None:
        self._owners = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(
            block for block in range(num_blocks) if block != SCRATCH_BLOCK
        )
        self._published: dict[int, PublishedBlock] = {}
        self._by_digest: dict[bytes, PublishedBlock] = {}
        self._serials = count(1)

    @property
    def size(self) -> int:
        """Blocks that requests can own."""
        return len(self._owners) - 1

    @property
    def free(self) -> int:
        """Blocks without an owner; what some of them hold can still be shared."""
        return len(self._free)

    @property
    def published(self) -> int:
        """Blocks that can be shared."""
        return len(self._published)

    def owners(self, block: int) -> int:
        """How many requests own a block."""
        return self._owners[block]

    def take(self) -> int:
        """A free block for one owner, forgetting what it held. The caller has checked `free`."""
        assert self._free, "whoever takes a block checks for a free one first"
        block, _ = self._free.popitem(last=False)
        forgotten = self._published.pop(block, None)
        if forgotten is not None:
            del self._by_digest[forgotten.digest]
        self._owners[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner for a published block."""
        assert block in self._published, f"block {block} is not published, so it has one writer"
        self._free.pop(block, None)
        self._owners[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """One owner less for each of a request's blocks, which come in order of position.

        The end of a prefix is worth nothing without its beginning, so it becomes free first.
        """
        for block in reversed(list(blocks)):
            assert self._owners[block] > 0, f"block {block} is free already"
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._published)

    def find(self, digest: bytes, parent: Parent, covers: tuple[int, ...]) -> PublishedBlock | None:
        """The published block with this digest, if it also continues this parent and covers these tokens."""
        found = self._by_digest.get(digest)
        same = found is not None and found.parent == parent and found.covers == covers
        return found if same else None

    def publish(
        self, block: int, digest: bytes, parent: Parent, covers: tuple[int, ...]
    ) -> PublishedBlock | None:
        """Makes a full block one that others can share; gives the block that stands for its content.

        That is another block where the same content is published already, and None where another content has the
        digest: then nothing that continues this block can be published either.
        """
        if digest in self._by_digest:
            return self.find(digest, parent, covers)
        assert self._owners[block] > 0, "only an owner knows what its block holds"
        assert block not in self._published, f"block {block} holds another content"
        made = PublishedBlock(
            block=block, serial=next(self._serials), parent=parent, digest=digest, covers=covers
        )
        self._published[block] = self._by_digest[digest] = made
        return made
