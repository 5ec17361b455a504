"""Weights of a draft head: by their public names from its folder, or made from a seed where it has none."""

import glob
import logging
import os
import zlib

import torch

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.weights import open_safetensors, wrong_shape
from graphspec.errors import EnvironmentProblem
from graphspec.resolve.checkpoint import locate_checkpoint

_log = logging.getLogger(__name__)


class HeadReader:
    """Reads tensors of the draft checkpoint, each checked against the shape that the contract gives it.

    A checkpoint without safetensors files gets seeded weights: matrices normal with variance 1 / inputs, vectors that scale
    are ones, biases zeros. Each depends on the seed, its name and its shape, and on nothing else. Such drafts are noise, but
    shapes, cost and text are those of a trained head.
    """

    def __init__(self, context: DraftContext) -> None:
        self._dtype, self._device, self._seed = context.dtype, context.device, context.seed
        self._path = locate_checkpoint(
            context.model.weights or context.model.source, "speculative.model"
        )
        self.seeded = not glob.glob(os.path.join(glob.escape(self._path), "*.safetensors"))
        if self.seeded:
            _log.warning(
                "no weights in %s: the draft head's are made from seed %d", self._path, self._seed
            )
            return
        self._open = open_safetensors(self._path)

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this name. Raises `EnvironmentProblem` when it is absent or of another shape."""
        tensor = self._made(name, shape) if self.seeded else self._open(name)
        if tuple(tensor.shape) != shape:
            raise wrong_shape(self._path, name, tuple(tensor.shape), shape)
        return tensor.to(device=self._device, dtype=self._dtype)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name; a seeded one holds none."""
        if self.seeded:
            return False
        try:
            self._open(name)
        except EnvironmentProblem:
            return False
        return True

    def integers(self, name: str, *shape: int) -> torch.Tensor:
        """A table of whole numbers, which no seed can make."""
        tensor = self._open(name)
        if tuple(tensor.shape) != shape:
            raise wrong_shape(self._path, name, tuple(tensor.shape), shape)
        return tensor.to(device=self._device, dtype=torch.int64)

    def _made(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        # The CPU generator takes only 32 bits of a seed, so seed and name are mixed into as many.
        mixed = zlib.crc32(f"{self._seed} {name}".encode())
        made = torch.Generator().manual_seed(mixed)
        values: torch.Tensor = torch.randn(shape, generator=made) * shape[-1] ** -0.5
        return values
