"""`Ranks`: what the processes of one engine tell each other, so that all of them run the same graphs."""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist


class Ranks(Protocol):
    """The processes that run each step together. Every call is made by all of them, in the same order."""

    rank: int
    """This process, from 0."""
    size: int

    def gather(self, data: bytes) -> list[bytes]:
        """What each rank gave, by rank. Lengths may differ."""
        ...

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """What each rank gave, by rank: as many numbers of 64 bits from each. For every step, so it is one collective."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 gave. What the others give is not looked at."""
        ...


class OneRank:
    """An engine of one process: what it gives is what all gave."""

    rank = 0
    size = 1

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(values)]

    def broadcast(self, data: bytes) -> bytes:
        return data


class TorchRanks:
    """Ranks of a `torch.distributed` process group that the engine has set up.

    Nothing is pickled: bytes travel as uint8 tensors. `device` is where the group's backend wants its tensors: ``cpu``
    for gloo, ``cuda`` for NCCL. A rank that dies is an error of the collective after the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, device: str = "cpu") -> None:
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def gather(self, data: bytes) -> list[bytes]:
        lengths = [length for (length,) in self.gather_ints([len(data)])]
        longest = max(lengths)
        if longest == 0:
            return [b""] * self.size
        padded = bytearray(data.ljust(longest, b"\0"))
        all_data = self._all(torch.frombuffer(padded, dtype=torch.uint8).to(self._device))
        return [
            bytes(given[:length].tolist()) for given, length in zip(all_data, lengths, strict=True)
        ]

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        mine = torch.tensor(values, dtype=torch.int64, device=self._device)
        return [tuple(given.tolist()) for given in self._all(mine)]

    def broadcast(self, data: bytes) -> bytes:
        length = torch.tensor([len(data)], dtype=torch.int64, device=self._device)
        dist.broadcast(length, group=self._group, group_src=0)
        if not (size := int(length.item())):
            return b""
        # A copy: a tensor over bytes, which nobody may write to, would be a warning, and the others' is written to.
        buffer = bytearray(data if self.rank == 0 else size)
        sent = torch.frombuffer(buffer, dtype=torch.uint8).to(self._device)
        dist.broadcast(sent, group=self._group, group_src=0)
        return data if self.rank == 0 else sent.cpu().numpy().tobytes()

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        given = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(given, mine, group=self._group)
        return given
