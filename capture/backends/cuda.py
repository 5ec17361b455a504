"""CUDA graphs: one memory pool and one side stream for all of them."""

import contextlib
import gc
import threading
import weakref
from collections.abc import Sequence

import torch

from graphspec.capture.backends.base import Call, released_graph
from graphspec.errors import CaptureIllegalError, CaptureStateError, Problem


class CudaGraph:
    """A captured CUDA graph with its outputs, which live in the shared pool."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        outputs: Sequence[torch.Tensor],
        memory_bytes: int,
        device: int,
    ) -> None:
        self._graph = graph
        self._device = device
        self._outputs = outputs
        self._memory_bytes = memory_bytes
        self._released = False

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        return self._outputs

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    @property
    def released(self) -> bool:
        """True when nothing of the pool belongs to it any more."""
        return self._released

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._outputs, self._memory_bytes = (), 0
            # A replay of it may still be running, and reset does not wait.
            torch.cuda.synchronize(self._device)
            self._graph.reset()

    def replay(self) -> Sequence[torch.Tensor]:
        if self._released:
            raise released_graph("cuda")
        self._graph.replay()
        return self._outputs


class CudaBackend:
    """Captures into one pool on one stream.

    A stream per capture would make the allocator keep a pool per stream (SGLang issue 35275), and several streams
    may not share a pool.

    `generators` are those that captured calls may draw from, beside the device's default one, which torch registers
    itself: a replay then continues their sequence, where an unregistered one would be an error of the capture.
    `capture_error_mode` is the `cudaStreamCaptureMode`. ``thread_local`` lets other threads, a scheduler's or a
    logger's, use the device meanwhile; ``global`` finds who does; ``relaxed`` also allows what is unsafe in this thread.
    """

    name = "cuda"
    needs_warmup = True

    def __init__(
        self,
        device: int | None = None,
        *,
        generators: Sequence[torch.Generator] = (),
        capture_error_mode: str = "thread_local",
    ) -> None:
        self._device = torch.cuda.current_device() if device is None else device
        self._generators = tuple(generators)
        self._error_mode = capture_error_mode
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        # Weak, so that a graph that its owner drops without release frees its memory too.
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._capturing = threading.Lock()

    @property
    def pool_bytes(self) -> int:
        """Device memory that the pool holds: what all graphs share, without what the driver keeps for each."""
        segments = torch.cuda.memory_snapshot(self._pool, include_traces=False)
        return sum(int(segment["total_size"]) for segment in segments)

    def warm(self, call: Call) -> Sequence[torch.Tensor]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                outputs = call()
        finally:
            # Also after a failure: what ran until then used the static buffers.
            current.wait_stream(self._stream)
        for tensor in outputs:
            # The allocator must know that another stream than the one they were made on reads them.
            tensor.record_stream(current)
        return outputs

    def capture(self, call: Call) -> CudaGraph:
        # A capture in another thread would share the pool with this one, which the allocator does not allow.
        if torch.cuda.is_current_stream_capturing() or not self._capturing.acquire(blocking=False):
            raise CaptureStateError(
                Problem(
                    where="cuda",
                    found="a capture inside a capture",
                    wanted="one capture at a time on a device",
                    hint="capture the inner call on its own, or inline it",
                )
            )
        try:
            made = self._captured(call)
        finally:
            self._capturing.release()
        self._graphs.add(made)
        return made

    def give_back(self) -> None:
        # Outputs of a failed step may be held by a cycle through its traceback, and with them their blocks.
        gc.collect()
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()

    def _captured(self, call: Call) -> CudaGraph:
        if all(graph.released for graph in self._graphs):
            # A pool whose last graph is gone cannot be captured into again: the allocator asserts that it is in use.
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self._device)
        free_before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.no_grad(), torch.cuda.stream(self._stream):
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode=self._error_mode)
                outputs = call()
            except BaseException as error:
                self._abandon(graph)
                if isinstance(error, RuntimeError) and _CAPTURING in str(error):
                    raise _invalidated(error) from error
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._abandon(graph)
                raise _invalidated(error) from error
        torch.cuda.synchronize(self._device)
        # What all processes on the device took: only so does the driver's own memory for a graph show.
        free_after, _ = torch.cuda.mem_get_info(self._device)
        return CudaGraph(graph, outputs, max(0, free_before - free_after), self._device)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, so that the stream does not stay in capture mode, and lets go of its memory."""
        # An invalidated capture raises on end and an empty one warns; the first error is already on its way.
        with contextlib.suppress(Exception):
            graph.capture_end()
        with contextlib.suppress(Exception):
            graph.reset()


_CAPTURING = "captur"
"""In every message of CUDA and torch about what a capture does not allow: "when stream is capturing", "during capture"."""


def _invalidated(error: RuntimeError) -> CaptureIllegalError:
    return CaptureIllegalError(
        Problem(
            where="cuda graph",
            found=f"the capture was invalidated: {error}",
            wanted="a call without synchronisation, allocation outside the pool, or host reads",
            hint="run the same step on the tape backend: it names the operation that is not legal",
        )
    )
