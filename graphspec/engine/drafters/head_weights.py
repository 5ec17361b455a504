"""Weights of a draft head: by their public names from its folder, or made from a seed where it has none."""

import glob
import logging
import os
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch

from graphspec.engine.drafters.context import DraftContext
from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.checkpoint import locate_checkpoint
from graphspec.text import one_of

_log = logging.getLogger(__name__)

_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = ("I64", "I32", "I16", "I8", "U8")
_PICKLES = ("*.bin", "*.pt", "*.pth")
_FIELD = "speculative.model"


class HeadReader:
    """Reads tensors of the draft checkpoint, each checked against the shape that the contract gives it, and its kind.

    A checkpoint without weights gets seeded ones: matrices normal with variance 1 / inputs, vectors that scale are ones,
    biases zeros. Each depends on the seed, its name and its shape, and on nothing else. Such drafts are noise, but shapes,
    cost and text are those of a trained head. Raises `EnvironmentProblem` for weights in files that are not safetensors,
    since a head of noise in their place would look like a bad head.

    As a context manager it raises once, at its end, with every tensor that is absent or another; until then zeros stand for
    these. Outside of one the first raises at once.
    """

    def __init__(self, context: DraftContext) -> None:
        self._dtype, self._device, self._seed = context.dtype, context.device, context.seed
        self._path = locate_checkpoint(context.model.weights or context.model.source, _FIELD)
        self._problems: list[Problem] | None = None
        files = _safetensors_of(self._path)
        self.seeded = not files
        self._where = _opened(files)
        if self.seeded:
            _log.warning(
                "no weights in %s: the draft head's are made from seed %d", self._path, self._seed
            )

    def __enter__(self) -> "HeadReader":
        self._problems = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        found, self._problems = self._problems, None
        if found and error is None:
            raise EnvironmentProblem(found)

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this name, in the draft's type. Raises `EnvironmentProblem` when it is absent or another."""
        if self.seeded:
            return self._made(name, shape).to(device=self._device, dtype=self._dtype)
        return self._read(name, shape, _FLOATS).to(device=self._device, dtype=self._dtype)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name; a seeded one holds none."""
        return name in self._where

    def integers(self, name: str, *shape: int) -> torch.Tensor:
        """A table of whole numbers, which no seed can make."""
        return self._read(name, shape, _INTEGERS).to(device=self._device, dtype=torch.int64)

    def _read(self, name: str, shape: tuple[int, ...], kinds: tuple[str, ...]) -> torch.Tensor:
        problem = self._problem(name, shape, kinds)
        if problem is None:
            tensor: torch.Tensor = self._where[name].get_tensor(name)
            return tensor
        if self._problems is None:
            raise EnvironmentProblem(problem)
        self._problems.append(problem)
        return torch.zeros(shape)

    def _problem(self, name: str, shape: tuple[int, ...], kinds: tuple[str, ...]) -> Problem | None:
        if name not in self._where:
            return Problem(
                where=self._path,
                found=f"no tensor {name}",
                wanted=f"one of shape {shape}",
                hint=self._hint(name),
            )
        # Shape and kind stand in the file's header: nothing is read of a tensor that is refused.
        header = self._where[name].get_slice(name)
        found, kind = tuple(header.get_shape()), str(header.get_dtype())
        where = f"{self._path}: tensor {name}"
        if found != shape:
            return Problem(
                where=where,
                found=f"shape {found}",
                wanted=f"shape {shape}, as the model facts say",
                hint="the head's config.json must describe its weights; or it was trained on another target",
            )
        if kind not in kinds:
            return Problem(
                where=where,
                found=f"type {kind}",
                wanted=one_of(kinds),
                hint="quantised heads are not read: store the weights as they are meant",
            )
        return None

    def _hint(self, name: str) -> str:
        """Checkpoints often have the same names below another prefix."""
        ends = (n for n in self._where if n.endswith(f".{name}") or name.endswith(f".{n}"))
        other = next(ends, None)
        if other is None:
            return f"name a checkpoint of this method's layout in {_FIELD}"
        return f"there is {other}: rename the tensors to the names of this method's layout"

    def _made(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        # The CPU generator takes only 32 bits of a seed, so seed and name are mixed into as many.
        mixed = zlib.crc32(f"{self._seed} {name}".encode())
        made = torch.Generator().manual_seed(mixed)
        values: torch.Tensor = torch.randn(shape, generator=made) * shape[-1] ** -0.5
        return values


def _safetensors_of(path: str) -> list[str]:
    """The files with weights; none for a folder that has a config alone."""
    wanted = "a folder with the head's config.json and *.safetensors"
    if not os.path.isdir(path):
        raise EnvironmentProblem(
            Problem(where=f"{_FIELD} {path}", found="a file, not a folder", wanted=wanted)
        )
    folder = glob.escape(path)
    files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    pickles = [f for p in _PICKLES for f in sorted(glob.glob(os.path.join(folder, p)))]
    if pickles and not files:
        raise EnvironmentProblem(
            Problem(
                where=f"{_FIELD} {path}",
                found=f"weights in {os.path.basename(pickles[0])}, a pickle, which can run code when read",
                wanted=wanted,
                hint="convert it: safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')",
            )
        )
    return files


def _opened(files: list[str]) -> Mapping[str, Any]:
    """The open file of each tensor, by the tensor's name."""
    if not files:
        return {}
    from safetensors import SafetensorError, safe_open

    where: dict[str, Any] = {}
    for file in files:
        try:
            opened = safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise EnvironmentProblem(
                Problem(
                    where=file,
                    found=f"no readable safetensors file: {error}",
                    wanted="the head's weights in full",
                    hint="fetch the checkpoint again",
                )
            ) from None
        # file.keys() is not a dict's: safetensors' handle has no iteration of its own.
        where.update((name, opened) for name in list(opened.keys()))
    return where
