"""Triton's interpreter in a process of its own: it is on or off for good from the first import of triton."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.set_num_threads(1)


@contextmanager
def interpreted() -> Iterator[Callable[..., Any]]:
    """A function that calls a function with arguments in that process, and gives what it returned."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_interpret) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
