"""CUDA graphs: one memory pool and one side stream for all of them."""

import contextlib
from collections.abc import Sequence

import torch

from graphspec.capture.backends.base import Call
from graphspec.errors import CaptureIllegalError, CaptureStateError, Problem


class CudaGraph:
    """A captured CUDA graph with its outputs, which live in the shared pool."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, outputs: Sequence[torch.Tensor], memory_bytes: int
    ) -> None:
        self._graph = graph
        self._outputs = outputs
        self._memory_bytes = memory_bytes

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        return self._outputs

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def replay(self) -> Sequence[torch.Tensor]:
        self._graph.replay()
        return self._outputs


class CudaBackend:
    """Captures into one pool on one stream.

    A stream per capture would make the allocator keep a pool per stream (SGLang issue 35275), and several streams
    may not share a pool.
    """

    name = "cuda"
    needs_warmup = True

    def __init__(self, device: int | None = None) -> None:
        self._device = torch.cuda.current_device() if device is None else device
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, call: Call) -> Sequence[torch.Tensor]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.no_grad(), torch.cuda.stream(self._stream):
            outputs = call()
        current.wait_stream(self._stream)
        for tensor in outputs:
            # The allocator must know that another stream than the one they were made on reads them.
            tensor.record_stream(current)
        return outputs

    def capture(self, call: Call) -> CudaGraph:
        if torch.cuda.is_current_stream_capturing():
            raise CaptureStateError(
                Problem(
                    where="cuda",
                    found="a capture inside a capture",
                    wanted="one capture at a time on a device",
                    hint="capture the inner call on its own, or inline it",
                )
            )
        torch.cuda.synchronize(self._device)
        free_before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.stream(self._stream):
            # Thread-local mode lets other threads, a scheduler's or a logger's, use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = call()
            except BaseException:
                self._abandon(graph)
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                raise _invalidated(error) from error
        torch.cuda.synchronize(self._device)
        free_after, _ = torch.cuda.mem_get_info(self._device)
        return CudaGraph(graph, outputs, max(0, free_before - free_after))

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, so that the stream does not stay in capture mode."""
        # An invalidated capture raises on end and an empty one warns; the first error is already on its way.
        with contextlib.suppress(Exception):
            graph.capture_end()
        graph.reset()


def _invalidated(error: RuntimeError) -> CaptureIllegalError:
    return CaptureIllegalError(
        Problem(
            where="cuda graph",
            found=f"the capture was invalidated: {error}",
            wanted="a call without synchronisation, allocation outside the pool, or host reads",
            hint="run the same step on the tape backend: it names the operation that is not legal",
        )
    )
