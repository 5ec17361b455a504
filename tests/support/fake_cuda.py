"""A device that is not there: `torch.cuda` as far as the CUDA backend uses it, with the rules that field reports are about.

- Memory that a capture takes is reserved for its pool, and a pool is divided by stream: blocks that are free on one stream
  are not given to another. It goes back to the device by `empty_cache`, when no graph of the pool is left.
- A pool whose last graph is gone cannot be captured into again.
- A synchronisation, a copy to the host, a module load or unload invalidates a running capture: of the thread that does it,
  or of any thread in the capture mode `global`.

Nothing is computed: replays are counted.
"""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
import torch

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"

Place = tuple[int, int]
"""A pool and the stream that its memory was taken on. Pool 0 is the general one."""


class Block:
    """Memory on the device, free again when nobody refers to it. Stands for a tensor."""

    def record_stream(self, stream: "FakeStream") -> None:
        """Where the allocator would hear that another stream reads it."""


@attrs.frozen
class FakeStream:
    """A stream: a number."""

    number: int

    def wait_stream(self, other: "FakeStream") -> None:
        """Where a stream would wait."""


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, device: "FakeCuda") -> None:
        self._device = device
        self._pool: int | None = None
        self.replays = 0

    def register_generator_state(self, generator: Any) -> None:
        """Where a generator would be registered."""

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        self._device.begin(pool, capture_error_mode)
        self._pool = pool

    def capture_end(self) -> None:
        self._device.end()

    def replay(self) -> None:
        assert self._pool is not None, "a replay of a graph that was reset"
        self.replays += 1

    def reset(self) -> None:
        if self._pool is not None:
            self._device.let_go(self._pool)
            self._pool = None


class FakeCuda:
    """One device of `total` bytes. `begun` has pool, stream and mode of each capture, in order."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.begun: list[tuple[int, int, str]] = []
        self._free: dict[Place, list[int]] = {}
        self._reserved: dict[Place, int] = {}
        self._graphs_of: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._current = [FakeStream(0)]
        self._capturing: tuple[int, str, int] | None = None
        self._invalid = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts it in the place of torch's."""
        names = (
            "stream current_stream device synchronize mem_get_info is_current_stream_capturing "
            "empty_cache memory_snapshot"
        )
        for name in names.split():
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: FakeStream(self._number()))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self._number)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(self))

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds, used or not."""
        return sum(self._reserved.values())

    def allocate(self, size: int) -> Block:
        """Memory for as long as the block is referred to, from the capture's pool while one runs."""
        pool = self._capturing[0] if self._capturing is not None else 0
        place = (pool, self._current[-1].number)
        free = self._free.setdefault(place, [])
        fitting = sorted(held for held in free if held >= size)
        if fitting:
            size = fitting[0]
            free.remove(size)
        elif self.reserved + size > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        else:
            self._reserved[place] = self._reserved.get(place, 0) + size
        block = Block()
        weakref.finalize(block, free.append, size).atexit = False
        return block

    def forbidden(self) -> None:
        """What no capture allows: a synchronisation, a copy to the host, a module load or unload."""
        if self._capturing is None:
            return
        _, mode, thread = self._capturing
        if mode == "global" or thread == threading.get_ident():
            self._invalid = True
            raise RuntimeError(NOT_PERMITTED)

    def unloaded_with(self, kernel: object) -> None:
        """A module that is unloaded when nobody refers to `kernel` any more. A destructor raises nothing."""

        def unload() -> None:
            with contextlib.suppress(RuntimeError):
                self.forbidden()

        weakref.finalize(kernel, unload).atexit = False

    def begin(self, pool: int, mode: str) -> None:
        assert self._capturing is None, "a capture inside a capture"
        assert self._graphs_of.get(pool) != 0, "a capture into a pool whose last graph is gone"
        self._graphs_of[pool] = self._graphs_of.get(pool, 0) + 1
        self._capturing = (pool, mode, threading.get_ident())
        self._invalid = False
        self.begun.append((pool, self._current[-1].number, mode))

    def end(self) -> None:
        assert self._capturing is not None, "the end of no capture"
        self._capturing = None
        if self._invalid:
            raise RuntimeError(INVALIDATED)

    def let_go(self, pool: int) -> None:
        self._graphs_of[pool] -= 1

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def current_stream(self, device: int | None = None) -> FakeStream:
        return self._current[-1]

    @contextlib.contextmanager
    def device(self, number: int) -> Iterator[None]:
        yield

    def synchronize(self, device: int | None = None) -> None:
        self.forbidden()

    def mem_get_info(self, device: int | None = None) -> tuple[int, int]:
        return self.total - self.reserved, self.total

    def is_current_stream_capturing(self) -> bool:
        return self._capturing is not None

    def empty_cache(self) -> None:
        self.forbidden()
        for place, free in self._free.items():
            if not self._graphs_of.get(place[0]):
                self._reserved[place] = self._reserved.get(place, 0) - sum(free)
                free.clear()

    def memory_snapshot(
        self, pool: int, *, include_traces: bool = True
    ) -> Sequence[dict[str, int]]:
        return [{"total_size": size} for (p, _), size in self._reserved.items() if p == pool]

    def _number(self) -> int:
        return next(self._numbers)
