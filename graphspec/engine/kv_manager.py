"""`KVManager`: which blocks of the paged cache hold which tokens of which request.

A block is published, that is open to requests with the same prefix, when it is full of settled tokens: computed by the
target, and by the drafter where that keeps keys and values of its own. A drafter of EAGLE's type reads tokens past the
position it writes, so the end of a published prefix proves less than the target's keys do. Either the digest covers the
tokens that are read too (`hash_lookahead`), or the unproven blocks at the end of a match are computed again
(`unproven_blocks`).
"""

from collections.abc import Callable, Sequence

import attrs

from graphspec.engine.block_hashes import block_digest, root_digest
from graphspec.engine.block_pool import BlockPool, Parent, PublishedBlock
from graphspec.fields import Stage
from graphspec.resolve.spec import EngineSpec

Digest = Callable[[bytes, Sequence[int]], bytes]


@attrs.frozen(kw_only=True)
class KVLimits:
    """What the contract says about blocks. `unsettled` counts computed tokens at the end that a drafter may compute again."""

    block_size: int
    num_blocks: int
    prefix_caching: bool = True
    hash_lookahead: int = 0
    unproven_blocks: int = 0
    unsettled: int = 0
    copy_on_write: bool = True
    identity: str = ""

    @classmethod
    def of(cls, spec: EngineSpec) -> "KVLimits":
        """The limits of a contract. Blocks of two contracts never match: `identity` is what units compile for."""
        kv, lookahead = spec.kv_cache, spec.num_prefill_lookahead_tokens
        dropped = spec.use_eagle_block_drop and spec.num_hash_lookahead_tokens == 0
        return cls(
            block_size=kv.block_size,
            num_blocks=kv.num_blocks,
            prefix_caching=kv.enable_prefix_caching,
            hash_lookahead=spec.num_hash_lookahead_tokens,
            unproven_blocks=-(-lookahead // kv.block_size) if dropped else 0,
            unsettled=max(0, lookahead - 1),
            # The copy is of the target's blocks alone.
            copy_on_write=not spec.uses_draft_kv_cache,
            identity=spec.compute_hash(Stage.COMPILE),
        )

    def blocks_for(self, slots: int) -> int:
        """Blocks that so many slots take."""
        return -(-slots // self.block_size)


@attrs.frozen(kw_only=True)
class Started:
    """What a request begins with: tokens that need not be computed, and a block to copy (from, to) before its first step."""

    cached: int
    copy: tuple[int, int] | None = None


@attrs.define(eq=False)
class _Table:
    """A request's blocks by position. `settled` of them are published, or stood for by a published one (`parent`)."""

    salt: str
    digest: bytes
    parent: Parent
    blocks: list[int] = attrs.field(factory=list)
    settled: int = 0
    publishes: bool = True


class KVManager:
    """Block tables of the requests that have begun. `digest` is for tests that want collisions."""

    def __init__(self, limits: KVLimits, digest: Digest = block_digest) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self._digest = digest
        self._tables: dict[int, _Table] = {}

    def start(self, request: int, tokens: Sequence[int], salt: str = "") -> Started:
        """Begins a request with the longest published prefix of its tokens; at least the last token is left to compute.

        Requests share blocks only where their `salt` is equal.
        """
        assert request not in self._tables, f"request {request} has begun already"
        limits, pool = self.limits, self.pool
        table = self._tables[request] = _Table(
            salt, root_digest(limits.identity, limits.block_size, salt), salt
        )
        if not limits.prefix_caching:
            return Started(cached=0)
        found = self._published_prefix(table, tokens)
        shared = found[: (len(tokens) - 1) // limits.block_size]
        for known in shared:
            pool.share(known.block)
            table.blocks.append(known.block)
            table.digest, table.parent = known.digest, known.serial
        table.settled = len(shared)
        if len(found) == len(shared) or not limits.copy_on_write or pool.free < 2:
            return Started(cached=len(shared) * limits.block_size)
        # Every token is there, but what follows the last one is known only when it is computed again: in a copy, since the
        # block has other readers. Shared first, so that it is not itself what is taken.
        last = found[len(shared)].block
        pool.share(last)
        table.blocks.append(pool.take())
        pool.give_back([last])
        return Started(cached=len(tokens) - 1, copy=(last, table.blocks[-1]))

    def reserve(self, request: int, slots: int) -> bool:
        """Gives a request blocks for exactly `slots` slots; False, and no change, where too few are free.

        Blocks past them are given back: they hold nothing but rejected drafts.
        """
        table, wanted = self._tables[request], self.limits.blocks_for(slots)
        if wanted - len(table.blocks) > self.pool.free:
            return False
        self.pool.give_back(table.blocks[wanted:])
        del table.blocks[wanted:]
        table.blocks.extend(self.pool.take() for _ in range(wanted - len(table.blocks)))
        return True

    def settle(self, request: int, tokens: Sequence[int], computed: int) -> None:
        """Publishes what is full of the first `computed` of a request's `tokens`. Drafts are never among these."""
        table, limits = self._tables[request], self.limits
        if not limits.prefix_caching:
            return
        size, ahead = limits.block_size, limits.hash_lookahead
        ready = min(computed - limits.unsettled, len(tokens) - ahead) // size
        while table.publishes and table.settled < ready:
            at = table.settled
            covers = tuple(tokens[at * size : (at + 1) * size + ahead])
            table.digest = self._digest(table.digest, covers)
            stands = self.pool.publish(table.blocks[at], table.digest, table.parent, covers)
            if stands is None:
                table.publishes = False
                return
            table.parent = stands.serial
            table.settled += 1

    def release(self, request: int) -> None:
        """Gives back all blocks of a request that finished, was aborted or is preempted."""
        self.pool.give_back(self._tables.pop(request).blocks)

    def blocks(self, request: int) -> tuple[int, ...]:
        """A request's blocks by position."""
        return tuple(self._tables[request].blocks)

    @property
    def started(self) -> frozenset[int]:
        """Requests that hold blocks."""
        return frozenset(self._tables)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests own, 0 to 1."""
        return 1 - self.pool.free / self.pool.size

    def _published_prefix(self, table: _Table, tokens: Sequence[int]) -> list[PublishedBlock]:
        """Published blocks that hold the beginning of `tokens`, as far as a drafter can use them too."""
        size, ahead = self.limits.block_size, self.limits.hash_lookahead
        digest, parent = table.digest, table.parent
        found: list[PublishedBlock] = []
        for end in range(size, len(tokens) - ahead + 1, size):
            covers = tuple(tokens[end - size : end + ahead])
            digest = self._digest(digest, covers)
            known = self.pool.find(digest, parent, covers)
            if known is None:
                break
            found.append(known)
            parent = known.serial
        return found[: max(0, len(found) - self.limits.unproven_blocks)]
