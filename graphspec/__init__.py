"""From one declarative config of an LLM engine: a checked contract, a key, compiled code, captured graphs.

The names below load on first use, so that ``import graphspec`` loads none of torch, triton, numba,
cattrs, yaml, rich or click.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_here = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_here, "cache")):
    # A source checkout keeps cache/, capture/ and kernels/ beside this folder; an installed wheel keeps them in it.
    __path__.append(os.path.dirname(_here))

if TYPE_CHECKING:
    from graphspec.api import load, warmup
    from graphspec.config.engine import EngineConfig
    from graphspec.errors import GraphspecError, SpecError
    from graphspec.fields import Stage
    from graphspec.resolve.spec import EngineSpec

_HOME_OF = {
    "EngineConfig": "graphspec.config.engine",
    "EngineSpec": "graphspec.resolve.spec",
    "GraphspecError": "graphspec.errors",
    "SpecError": "graphspec.errors",
    "Stage": "graphspec.fields",
    "load": "graphspec.api",
    "warmup": "graphspec.api",
}

__all__ = [
    "EngineConfig",
    "EngineSpec",
    "GraphspecError",
    "SpecError",
    "Stage",
    "__version__",
    "load",
    "warmup",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'graphspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
