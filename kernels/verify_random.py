"""The random numbers of verification: a function of (seed, position, purpose), and of nothing else.

The generator is Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). It
has no state: key = the request's seed, counter = (position, purpose). So the numbers of a request depend neither on the
batch, nor on steps before, nor on how often a step is run again. Every implementation takes the same bits.
"""

ACCEPT, SAMPLE, DRAFT = 0, 1, 2
"""Purposes. ACCEPT: is the draft at this position kept. SAMPLE: the token that the target gives at this position.
DRAFT: for drafters that sample; verification never uses it."""

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words of Philox 4x32-10.

    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & _MASK,
            (left >> 32) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0, c1, c2, c3


def words(seed: int, position: int, purpose: int) -> tuple[int, int, int, int]:
    """The four words of one position and purpose. `seed` and `position` are taken modulo 2**64."""
    return philox(
        (position & _MASK, (position >> 32) & _MASK, purpose, 0),
        (seed & _MASK, (seed >> 32) & _MASK),
    )


def accept_uniform(seed: int, position: int) -> float:
    """One of 2**32 evenly spaced numbers in (0, 1), neither end included; exact in float64."""
    return (words(seed, position, ACCEPT)[0] + 0.5) * 2.0**-32


def sample_uniform(seed: int, position: int) -> float:
    """One of 2**52 evenly spaced numbers in (0, 1), neither end included; exact in float64.

    52 bits, because a token of a large vocabulary may be less likely than 2**-32.
    """
    high, low, _, _ = words(seed, position, SAMPLE)
    return (((high >> 6) << 26 | low >> 6) + 0.5) * 2.0**-52
