"""Blocks of keys and values: what is shared, what is never shared, who is evicted first, and that nothing leaks."""

import attrs
import pytest

from graphspec.config.engine import EngineConfig
from graphspec.engine.block_hashes import block_digest, root_digest
from graphspec.engine.block_pool import SCRATCH_BLOCK, BlockPool
from graphspec.engine.kv_manager import KVLimits, KVManager
from support.shadow_kv import check_ownership

LIMITS = KVLimits(block_size=4, num_blocks=9)
PROMPT = list(range(10, 22))


def served(kv, request, tokens, salt=""):
    """A request that is computed whole; gives what it began with, and leaves it holding its blocks."""
    started = kv.start(request, tokens, salt)
    assert kv.reserve(request, len(tokens))
    kv.settle(request, tokens, len(tokens))
    check_ownership(kv)
    return started


def cached(kv, tokens, salt=""):
    """How many tokens a request of these would begin with."""
    started = kv.start(99, tokens, salt)
    kv.release(99)
    check_ownership(kv)
    return started.cached


def test_the_scratch_block_is_never_given_out():
    """A pool gives each of its blocks once, and block 0 never."""
    pool = BlockPool(5)
    assert sorted(pool.take() for _ in range(pool.size)) == [1, 2, 3, 4]
    assert pool.free == 0
    assert SCRATCH_BLOCK == 0


def test_a_block_given_back_twice_is_refused():
    """A second return would give one block to two requests."""
    pool = BlockPool(3)
    block = pool.take()
    pool.give_back([block])
    with pytest.raises(AssertionError, match="free already"):
        pool.give_back([block])


def test_full_blocks_of_a_prefix_are_shared():
    """A second request begins behind the full blocks of the first, in the very same blocks; both must let go of them."""
    kv = KVManager(LIMITS)
    served(kv, 1, PROMPT)
    assert kv.start(2, [*PROMPT[:8], 1, 2]).cached == 8
    assert kv.blocks(2) == kv.blocks(1)[:2]
    check_ownership(kv)
    kv.release(1)
    assert [kv.pool.owners(b) for b in kv.blocks(2)] == [1, 1]
    kv.release(2)
    assert kv.pool.free == kv.pool.size


def test_a_block_that_is_not_full_is_not_shared():
    """The tokens behind the last full block belong to one request."""
    kv = KVManager(LIMITS)
    served(kv, 1, PROMPT[:11])
    assert cached(kv, [*PROMPT, 1]) == 8


def test_another_token_ends_the_shared_prefix():
    """Blocks behind a difference are not found, though their own tokens are the same."""
    kv = KVManager(LIMITS)
    served(kv, 1, PROMPT)
    other = [*PROMPT[:5], 0, *PROMPT[6:], 1]
    assert cached(kv, other) == 4


def test_another_salt_shares_nothing():
    """What else changes keys and values keeps chains apart from their root on."""
    kv = KVManager(LIMITS)
    served(kv, 1, PROMPT, "one tenant")
    assert cached(kv, [*PROMPT, 1], "another") == 0
    assert cached(kv, [*PROMPT, 1], "one tenant") == 12


def test_without_prefix_caching_nothing_is_published():
    """The switch is read: no block is kept, none is found."""
    kv = KVManager(attrs.evolve(LIMITS, prefix_caching=False))
    served(kv, 1, PROMPT)
    assert kv.pool.published == 0
    assert cached(kv, [*PROMPT, 1]) == 0


def test_a_prompt_that_is_cached_whole_computes_one_token_in_a_copy():
    """The last token is computed for what follows it, in a block of the request's own: the shared one keeps its readers."""
    kv = KVManager(LIMITS)
    served(kv, 1, PROMPT)
    started = kv.start(2, PROMPT)
    assert started.cached == len(PROMPT) - 1
    assert started.copy == (kv.blocks(1)[2], kv.blocks(2)[2])
    assert kv.blocks(2)[:2] == kv.blocks(1)[:2]
    assert kv.blocks(2)[2] != kv.blocks(1)[2]
    check_ownership(kv)


def test_without_copies_the_last_block_is_computed_again():
    """Where a drafter has keys and values of its own, nobody copies those: the block is made anew."""
    kv = KVManager(attrs.evolve(LIMITS, copy_on_write=False))
    served(kv, 1, PROMPT)
    started = kv.start(2, PROMPT)
    assert (started.cached, started.copy) == (8, None)


def test_with_no_block_left_for_a_copy_the_last_block_is_computed_again():
    """A full hit in a full cache gives up one block of the hit."""
    kv = KVManager(attrs.evolve(LIMITS, num_blocks=4))
    served(kv, 1, PROMPT)
    started = kv.start(2, PROMPT)
    assert (started.cached, started.copy) == (8, None)
    check_ownership(kv)


def test_what_was_free_longest_is_evicted_first_and_an_end_before_its_beginning():
    """Blocks without content go first, then those of the request that ended first, from its last block on."""
    kv = KVManager(attrs.evolve(LIMITS, num_blocks=8))
    first, second = PROMPT[:8], list(range(30, 38))
    for request, tokens in ((1, first), (2, second)):
        served(kv, request, tokens)
    for request in (1, 2):
        kv.release(request)
    kv.start(3, [7])
    assert kv.reserve(3, 12)  # 3 without content
    assert (cached(kv, [*second, 1]), cached(kv, [*first, 1])) == (8, 8)
    assert kv.reserve(3, 16)
    # `first` was asked for last.
    assert (cached(kv, [*first, 1]), cached(kv, [*second, 1])) == (8, 4)
    assert kv.reserve(3, 24)
    assert (cached(kv, [*first, 1]), cached(kv, [*second, 1])) == (0, 4)


def test_slots_past_what_is_reserved_are_given_back():
    """After drafts were rejected a request holds the blocks of its next step and no more."""
    kv = KVManager(LIMITS)
    kv.start(1, PROMPT)
    assert kv.reserve(1, 21)
    assert len(kv.blocks(1)) == 6
    assert kv.reserve(1, 13)
    assert len(kv.blocks(1)) == 4
    assert kv.pool.free == kv.pool.size - 4


def test_a_reservation_that_fails_changes_nothing():
    """Too few free blocks: the request keeps what it had."""
    kv = KVManager(LIMITS)
    kv.start(1, PROMPT)
    assert kv.reserve(1, 8)
    before = kv.blocks(1)
    assert not kv.reserve(1, 100)
    assert kv.blocks(1) == before
    check_ownership(kv)


def test_rejected_drafts_are_never_published():
    """A block that is full of computed slots is open to others only as far as its tokens were accepted."""
    kv = KVManager(LIMITS)
    kv.start(1, PROMPT[:6])
    assert kv.reserve(1, 6 + 4)
    # Six tokens and four drafts were computed, and none of the drafts was right.
    kv.settle(1, [*PROMPT[:6], 77], 6)
    assert kv.pool.published == 1
    assert cached(kv, [*PROMPT, 1]) == 4


def test_two_requests_that_computed_the_same_publish_it_once():
    """The later block stays its request's own; what continues it is still published."""
    kv = KVManager(LIMITS)
    for request in (1, 2):
        kv.start(request, PROMPT)
        assert kv.reserve(request, 12)
    for request in (1, 2):
        kv.settle(request, PROMPT, 8)
    kv.settle(2, PROMPT, 12)
    assert kv.pool.published == 3
    kv.release(1)
    kv.release(2)
    assert cached(kv, [*PROMPT, 1]) == 12


def collide(parent, covers):
    """A digest of one bit: nearly everything collides."""
    return bytes([sum(covers) % 2])


def test_equal_digests_of_other_tokens_are_no_hit():
    """xxh3 resists no attacker: tokens are compared, and a chain that met a stranger publishes no more."""
    kv = KVManager(LIMITS, digest=collide)
    served(kv, 1, [2, 2, 2, 2, 5, 5, 5, 5])
    assert cached(kv, [4, 4, 4, 4, 1]) == 0
    published = kv.pool.published
    served(kv, 2, [4, 4, 4, 4, 8, 8, 8, 8])
    kv.settle(2, [4, 4, 4, 4, 8, 8, 8, 8], 8)
    assert kv.pool.published == published
    assert cached(kv, [4, 4, 4, 4, 8, 8, 8, 8, 1]) == 0
    assert cached(kv, [2, 2, 2, 2, 1]) == 4
    # Nor does a chain go on behind the stranger that has its digest.
    served(kv, 3, [4, 4, 4, 4, 8, 8, 8, 9])
    assert cached(kv, [2, 2, 2, 2, 8, 8, 8, 9, 1]) == 4


def lookahead(**changes):
    return attrs.evolve(LIMITS, copy_on_write=False, **changes)


def test_the_last_full_block_has_no_digest_before_the_token_behind_it():
    """7.4: with lookahead hashes an exactly full block is published once the following token is known."""
    kv = KVManager(lookahead(hash_lookahead=1))
    kv.start(1, PROMPT[:8])
    assert kv.reserve(1, 9)
    kv.settle(1, PROMPT[:8], 8)
    assert kv.pool.published == 1
    kv.settle(1, PROMPT[:9], 8)
    assert kv.pool.published == 2


def test_another_following_token_falls_back_to_the_boundary_before():
    """7.4: the drafter's keys at the end of a block hold the token behind it, so a different one is no hit."""
    kv = KVManager(lookahead(hash_lookahead=1))
    served(kv, 1, PROMPT)
    assert cached(kv, [*PROMPT[:8], 1]) == 4
    assert cached(kv, [*PROMPT[:9], 1]) == 8
    assert cached(kv, PROMPT[:8]) == 4


def test_without_lookahead_hashes_the_unproven_block_is_dropped():
    """7.3: the last block of a match is computed again; a longer match proves the one before it."""
    kv = KVManager(lookahead(unproven_blocks=1))
    served(kv, 1, PROMPT)
    assert cached(kv, [*PROMPT[:8], 1]) == 4
    assert cached(kv, [*PROMPT, 1]) == 8
    assert cached(kv, [*PROMPT[:4], 1]) == 0


def test_tokens_that_the_drafter_computes_again_are_not_final():
    """7.2: of a drafter that reads three tokens ahead, the last two computed ones are not yet published."""
    kv = KVManager(lookahead(unsettled=2))
    kv.start(1, PROMPT)
    assert kv.reserve(1, 12)
    kv.settle(1, PROMPT, 9)
    assert kv.pool.published == 1
    kv.settle(1, PROMPT, 10)
    assert kv.pool.published == 2


def test_digests_depend_on_every_token_on_their_parent_and_on_the_root():
    """A changed token, an exchange of blocks or another root gives another digest."""
    root = root_digest("model", 4, "")
    chain = block_digest(block_digest(root, [1, 2]), [3, 4])
    others = [
        block_digest(block_digest(root, [1, 2]), [3, 5]),
        block_digest(block_digest(root, [3, 4]), [1, 2]),
        block_digest(block_digest(root_digest("model", 4, "x"), [1, 2]), [3, 4]),
        block_digest(block_digest(root_digest("model", 8, ""), [1, 2]), [3, 4]),
    ]
    assert len({chain, *others}) == 5
    assert len(chain) == 16


def drafting(make, method, **more):
    folder = make()["model"]["source"]
    return EngineConfig.from_dict(
        make(speculative={"method": method, "model": folder, "num_speculative_tokens": 2, **more})
    ).resolve()


def test_limits_are_those_of_the_contract(tiny_config):
    """Each number is the one that the spec derives: n-gram needs nothing, EAGLE hashes one token ahead or drops."""
    plain = KVLimits.of(EngineConfig.from_dict(tiny_config()).resolve())
    assert (plain.hash_lookahead, plain.unproven_blocks, plain.unsettled) == (0, 0, 0)
    assert plain.copy_on_write
    eagle = KVLimits.of(drafting(tiny_config, "eagle"))
    assert (eagle.hash_lookahead, eagle.unproven_blocks, eagle.unsettled) == (1, 0, 0)
    assert not eagle.copy_on_write
    dropping = KVLimits.of(drafting(tiny_config, "eagle", disable_lookahead_block_hashes=True))
    assert (dropping.hash_lookahead, dropping.unproven_blocks) == (0, 1)
    assert eagle.identity != plain.identity
