"""`warm_ngram`: compiles or loads the n-gram index before the first step, once, and forbids any later compile."""

import importlib.util
import threading
import time

import attrs

from graphspec.kernels.ngram import Backend

FEW_SLOTS, SHORT = 32, 32768

_lock = threading.Lock()
_done: "list[WarmedNgram]" = []


@attrs.frozen(kw_only=True)
class WarmedNgram:
    """What runs n-gram drafting in this process. `reason` says why it is not numba, and is empty if it is.

    `specialisations` counts compiled variants. No call adds one: arguments of other types are a TypeError.
    """

    backend: Backend
    reason: str
    seconds: float
    specialisations: int


def warm_ngram() -> WarmedNgram:
    """Compiles or loads everything that a step of `NgramIndex` can call. Later calls return what the first one did.

    Loaded where `keep_host_code` has named who keeps compiled code, as a warmup does. `NgramIndex` calls this when it is
    made, so an engine that forgot to warm up pays there and not in its first step.
    """
    with _lock:
        if not _done:
            _done.append(_warm())
        return _done[0]


def ngram_backend(slots: int, max_model_len: int) -> Backend | None:
    """What an engine of this size should ask `NgramIndex` for: plain Python if it is small, else the best there is.

    Compiling takes seconds of every start. Plain Python takes some ten microseconds a request and step and a microsecond
    for each n of a prompt's token, which up to 32 requests and prompts of 32k tokens is little beside a step of a model.
    """
    return "python" if slots <= FEW_SLOTS and max_model_len < SHORT else None


def _warm() -> WarmedNgram:
    if importlib.util.find_spec("numba") is None:
        return WarmedNgram(
            backend="python",
            reason="numba is not installed (pip install 'graphspec-engine[ngram]'): n-gram drafting runs in plain Python",
            seconds=0.0,
            specialisations=0,
        )
    began = time.perf_counter()
    from graphspec.kernels.ngram_compiled import CODE

    made = CODE.ready()
    return WarmedNgram(
        backend="numba",
        reason="",
        seconds=time.perf_counter() - began,
        specialisations=len(made),
    )
