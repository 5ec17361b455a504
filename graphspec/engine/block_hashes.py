"""Identities of full blocks: a chain of digests over tokens, whose root holds whatever else changes keys and values."""

import struct
from collections.abc import Sequence

import xxhash

from graphspec.keys.encoding import encode


def root_digest(*facts: object) -> bytes:
    """The digest that the first block of a chain is linked to.

    `facts` is all beside the tokens that keys and values depend on: the model, the block size, the adapter, the tenant.
    """
    return xxhash.xxh3_128_digest(encode(("blocks of keys and values", *facts)))


def block_digest(parent: bytes, covers: Sequence[int]) -> bytes:
    """xxh3-128 of a block: its parent's digest, and the tokens that it covers.

    Equal digests are no proof of equal tokens, as xxh3 resists nobody who looks for a collision: whoever shares a block
    compares the tokens too.
    """
    # Little-endian on every machine: engines that share blocks must agree.
    return xxhash.xxh3_128_digest(parent + struct.pack(f"<{len(covers)}q", *covers))
