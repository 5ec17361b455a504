"""Makes the drafter that a contract names."""

import importlib
from typing import Any

from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.protocol import Speculator
from graphspec.errors import EnvironmentProblem, Problem


def make_drafter(context: DraftContext) -> Speculator:
    """The drafter of the contract's method, by the dotted name of its class and that class's ``make(context)``.

    Raises `EnvironmentProblem` where there is no such class.
    """
    s = context.speculative
    module, _, name = str(s.speculator.implementation).rpartition(".")
    try:
        cls: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvironmentProblem(
            Problem(
                where=f"speculative.method {s.custom_method or s.method}",
                found=f"no drafter {module}.{name}: {error}",
                wanted="a class that can be imported, with a class method make(context)",
                hint="ngram needs nothing; --no-speculation decodes without drafts",
            )
        ) from None
    drafter: Speculator = cls.make(context)
    return drafter
