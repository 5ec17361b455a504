"""Random requests for the kernel that makes the rows of a step."""

import random

import torch

from graphspec.kernels.batch import Requests


def int64(values):
    return torch.tensor(values, dtype=torch.int64)


def random_requests(rng: random.Random, *, longest: int = 6) -> Requests:
    """Up to five requests, some of them empty, with up to four rows of padding each."""
    count, block_size, width = rng.randint(0, 5), rng.choice([1, 3, 16]), rng.randint(8, 20)
    tokens = [rng.randint(0, min(longest, block_size * width)) for _ in range(count)]
    padding = [rng.randint(0, 4) for _ in range(count)]
    starts = [sum(tokens[:i]) for i in range(count + 1)]
    return Requests(
        tokens=int64([rng.randint(0, 999) for _ in range(starts[-1])]),
        cu_tokens=int64(starts),
        firsts=int64([rng.randint(0, block_size * width - t) for t in tokens]),
        padding=int64(padding),
        blocks=int64([[rng.randint(0, 99) for _ in range(width)] for _ in range(count)]).reshape(
            count, width
        ),
        rows=starts[-1] + sum(padding),
        block_size=block_size,
        fill_token=7,
        fill_position=8,
        fill_slot=9,
    )
