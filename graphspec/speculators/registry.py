"""Names of drafting methods and their classes. Classes are imported when a config asks for them."""

import importlib
from collections.abc import Mapping

from graphspec.errors import Problem, SpecError
from graphspec.speculators.base import SpeculatorConfig
from graphspec.text import did_you_mean, one_of, show

BUILT_IN: Mapping[str, str] = {
    "ngram": "graphspec.speculators.ngram:NgramSpeculatorConfig",
}
"""Built-in method name -> where its class is."""


def speculator_config_class(method: str) -> type[SpeculatorConfig]:
    """The class of a method. Raises `SpecError` with the nearest known name."""
    if method not in BUILT_IN:
        raise SpecError(
            Problem(
                where="speculative.method",
                found=show(method),
                wanted=one_of(sorted(BUILT_IN)),
                hint=did_you_mean(method, BUILT_IN),
            )
        )
    module, name = BUILT_IN[method].split(":")
    cls: type[SpeculatorConfig] = getattr(importlib.import_module(module), name)
    return cls
