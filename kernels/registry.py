"""Kernels by name: for each its implementations, which one a device gets, and why not the others."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from graphspec.errors import KernelError, Problem
from graphspec.text import nearest_hint

HOST = ("cpu",)
GPUS = ("cuda", "hip")

_LOGITS = ("float32", "bfloat16", "float16")


@attrs.frozen(kw_only=True)
class Implementation:
    """One way to run a kernel.

    `home` is ``module:function``, loaded when it is chosen. `devices` are the kinds that it runs on, `packages` what has to
    be installed, `extra` what installs it, `dtypes` the types of logits that it takes (empty: it reads none, or any).
    `note` says in a few words what it is.
    """

    kernel: str
    name: str
    home: str
    devices: tuple[str, ...]
    packages: tuple[str, ...] = ()
    extra: str = ""
    dtypes: tuple[str, ...] = ()
    note: str = ""

    def why_not(self, device: str, dtype: str | None) -> str:
        """Why it cannot run there, in a few words; empty where it can."""
        if device not in self.devices:
            return f"runs on {' or '.join(self.devices)}, not on {device}"
        lacking = [p for p in self.packages if importlib.util.find_spec(p) is None]
        if lacking:
            how = f" (pip install 'graphspec-engine[{self.extra}]')" if self.extra else ""
            return f"{', '.join(lacking)} is not installed{how}"
        if dtype is not None and self.dtypes and dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}, not {dtype}"
        module = self.home.partition(":")[0]
        if _is_missing(module):
            return f"there is no module {module}"
        return ""

    def load(self) -> Callable[..., Any]:
        """The function. Imports what it needs."""
        module, _, name = self.home.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ImportError:
        return True


@attrs.frozen(kw_only=True)
class Choice:
    """Which implementation a device gets. `rejected` has the reason by name for those that were preferred and cannot run,
    `behind` the names of those that could and were not needed."""

    kernel: str
    device: str
    taken: Implementation | None
    rejected: Mapping[str, str]
    behind: tuple[str, ...]

    @property
    def implementation(self) -> Implementation:
        """The one taken. Raises `KernelError` where nothing can run."""
        if self.taken is None:
            raise KernelError(
                Problem(
                    where=f"kernel {self.kernel}",
                    found=self.explain(),
                    wanted=f"an implementation for {self.device}",
                )
            )
        return self.taken

    def explain(self) -> str:
        """The choice in lines of text."""
        taken = self.taken
        head = f"{self.kernel} on {self.device}: {taken.name if taken else 'nothing'}"
        lines = [f"{head} ({taken.note})" if taken and taken.note else head]
        lines += [f"  not {name}: {why}" for name, why in self.rejected.items()]
        lines += [f"  not {name}: {taken.name} comes first" for name in self.behind if taken]
        return "\n".join(lines)

    def as_dict(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            "kernel": self.kernel,
            "taken": self.taken.name if self.taken else None,
            "rejected": dict(self.rejected),
            "behind": list(self.behind),
        }


_K = "graphspec.kernels"

BUILT_IN: Sequence[Implementation] = (
    Implementation(
        kernel="ngram",
        name="triton",
        home=f"{_K}.ngram_gpu:propose_ngram_gpu",
        devices=GPUS,
        packages=("torch", "triton"),
        extra="kernels",
        note="the whole context, on the device",
    ),
    Implementation(
        kernel="ngram",
        name="index",
        home=f"{_K}.ngram_index:NgramIndex",
        devices=HOST,
        packages=("numba", "numpy"),
        extra="ngram",
        note="an index that takes tokens as they come, compiled by numba",
    ),
    Implementation(
        kernel="ngram",
        name="scan",
        home=f"{_K}.ngram:propose_ngram",
        devices=HOST,
        note="the reference: reads the whole context, in plain Python",
    ),
    Implementation(
        kernel="verify",
        name="triton",
        home=f"{_K}.verify_triton:verify",
        devices=GPUS,
        packages=("torch", "triton"),
        extra="kernels",
        dtypes=_LOGITS,
        note="in tiles of the vocabulary",
    ),
    Implementation(
        kernel="verify",
        name="cpu",
        home=f"{_K}.verify_cpu:verify",
        devices=HOST,
        packages=("torch", "numba"),
        extra="ngram",
        dtypes=_LOGITS,
        note="compiled by numba",
    ),
    Implementation(
        kernel="verify",
        name="reference",
        home=f"{_K}.verify_reference:verify",
        devices=HOST,
        packages=("torch",),
        extra="torch",
        note="the reference: plain torch in float64",
    ),
    Implementation(
        kernel="batch",
        name="triton",
        home=f"{_K}.batch_triton:prepare",
        devices=GPUS,
        packages=("torch", "triton"),
        extra="kernels",
        note="one program a request",
    ),
    Implementation(
        kernel="batch",
        name="cpu",
        home=f"{_K}.batch_cpu:prepare",
        devices=HOST,
        packages=("torch",),
        extra="torch",
        note="whole columns at once",
    ),
    Implementation(
        kernel="batch",
        name="reference",
        home=f"{_K}.batch:prepare",
        devices=(*HOST, *GPUS),
        packages=("torch",),
        extra="torch",
        note="the reference: row by row",
    ),
)
"""Implementations that come with graphspec; of two that can run, the first is taken."""

_registered: list[Implementation] = []


def register_kernel(implementation: Implementation) -> None:
    """Adds an implementation, which is preferred to those that come with graphspec; the last one that was added first.

    Repeating a registration does nothing. Raises `KernelError` for a name that the kernel has already, and for a `home`
    that is not ``module:function``.
    """
    if implementation in _registered:
        return
    problems = []
    module, _, function = implementation.home.partition(":")
    where = f"kernel {implementation.kernel}, implementation {implementation.name}"
    if not module or not function.isidentifier():
        problems.append(Problem(where=where, found=implementation.home, wanted="module:function"))
    if any(
        i.kernel == implementation.kernel and i.name == implementation.name for i in _candidates()
    ):
        problems.append(Problem(where=where, found="a name that is taken", wanted="a new one"))
    if problems:
        raise KernelError(problems)
    _registered.append(implementation)


def _candidates() -> Sequence[Implementation]:
    return (*reversed(_registered), *BUILT_IN)


def kernel_names() -> Sequence[str]:
    """Names of all kernels, sorted."""
    return sorted({i.kernel for i in _candidates()})


def choose(kernel: str, *, device: str = "cpu", dtype: str | None = None) -> Choice:
    """Which implementation of `kernel` a kind of device gets (``cpu``, ``cuda``, ``hip``), and why not each other one.

    `dtype` is that of the logits. Imports neither torch nor an implementation. Raises `KernelError` for a kernel that there
    is none of; that no implementation can run is part of the answer.

    >>> choose("ngram", device="tpu").rejected["index"]
    'runs on cpu, not on tpu'
    """
    candidates = [i for i in _candidates() if i.kernel == kernel]
    if not candidates:
        raise KernelError(
            Problem(
                where="kernel",
                found=repr(kernel),
                wanted=f"one of {', '.join(kernel_names())}",
                hint=nearest_hint(kernel, kernel_names()),
            )
        )
    reasons = {i.name: i.why_not(device, dtype) for i in candidates}
    able = [i for i in candidates if not reasons[i.name]]
    return Choice(
        kernel=kernel,
        device=device,
        taken=able[0] if able else None,
        rejected={name: why for name, why in reasons.items() if why},
        behind=tuple(i.name for i in able[1:]),
    )
