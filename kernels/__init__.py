"""Drafting and verification kernels, one file each. The names below load on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphspec.kernels.ngram import propose_ngram
    from graphspec.kernels.ngram_index import NgramIndex
    from graphspec.kernels.ngram_warm import warm_ngram
    from graphspec.kernels.verify import verify_drafts, warm_verify
    from graphspec.kernels.verify_values import FlyRule, Sampling, Verdict

_HOME_OF = {
    "FlyRule": "graphspec.kernels.verify_values",
    "NgramIndex": "graphspec.kernels.ngram_index",
    "Sampling": "graphspec.kernels.verify_values",
    "Verdict": "graphspec.kernels.verify_values",
    "propose_ngram": "graphspec.kernels.ngram",
    "verify_drafts": "graphspec.kernels.verify",
    "warm_ngram": "graphspec.kernels.ngram_warm",
    "warm_verify": "graphspec.kernels.verify",
}

__all__ = [
    "FlyRule",
    "NgramIndex",
    "Sampling",
    "Verdict",
    "propose_ngram",
    "verify_drafts",
    "warm_ngram",
    "warm_verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
