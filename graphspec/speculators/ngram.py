"""n-gram drafting (prompt lookup): the continuation of an earlier occurrence of the last tokens."""

from typing import ClassVar

from graphspec.errors import Problem
from graphspec.fields import config_class, unkeyed
from graphspec.speculators.base import SpeculatorConfig
from graphspec.text import show

_HOST = "matching runs on the host; no graph contains it"


@config_class
class NgramSpeculatorConfig(SpeculatorConfig):
    """Looks the last `prompt_lookup_min`..`prompt_lookup_max` tokens up in the request's own tokens."""

    base_method: ClassVar[str | None] = "ngram"
    speculator_class: ClassVar[str | None] = "graphspec.engine.drafters.ngram.NgramSpeculator"
    prefer_dense_token_history: ClassVar[bool] = True

    prompt_lookup_min: int = unkeyed(
        minimum=1, doc="Shortest suffix that must match.", reason=_HOST
    )
    prompt_lookup_max: int = unkeyed(minimum=1, doc="Longest suffix looked up.", reason=_HOST)

    def problems(self) -> list[Problem]:
        """The window must not be empty."""
        if self.prompt_lookup_min <= self.prompt_lookup_max:
            return []
        return [
            Problem(
                where="prompt_lookup_min",
                found=show(self.prompt_lookup_min),
                wanted=f"at most prompt_lookup_max ({self.prompt_lookup_max})",
            )
        ]
