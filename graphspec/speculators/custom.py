"""A drafter of the user's own, named by its import path in ``speculative.model``."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, keyed
from graphspec.frozen import JsonValue
from graphspec.speculators.base import DraftPhase, Setup, SpeculatorConfig
from graphspec.text import show

_SCHEMES = ("http://", "https://", "file://")


def is_import_path(text: str | None) -> bool:
    """True for a dotted name of at least two identifiers, and nothing like a URL or a path.

    >>> is_import_path("my.model"), is_import_path("Qwen2.5"), is_import_path("a/b.c")
    (True, False, False)
    """
    if text is None or text.startswith(_SCHEMES) or "/" in text:
        return False
    parts = text.split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)


@config_class
class CustomClassSpeculatorConfig(SpeculatorConfig):
    """The engine imports the class and trusts it; graphspec knows nothing of its needs."""

    base_method: ClassVar[str | None] = "custom_class"
    # What it runs is its own business: no graph is planned around it.
    usual_draft_phase: ClassVar[DraftPhase] = DraftPhase.NONE
    supported_options: ClassVar[frozenset[str]] = frozenset({"speculator_options"})
    runners: ClassVar[frozenset[str]] = frozenset({"v1"})

    class_name: str = keyed(Stage.COMPILE, doc="Import path of the drafter's class.")
    speculator_options: Mapping[str, JsonValue] | None = keyed(
        Stage.COMPILE, default=None, doc="The drafter's own options."
    )

    @property
    def implementation(self) -> str | None:
        """The user's class."""
        return self.class_name

    @classmethod
    def examples(cls) -> Sequence[tuple[str, Self]]:
        """Some class."""
        return [("", cls(class_name="package.module.ClassName"))]

    @classmethod
    def configure(cls, setup: Setup) -> Self:
        """The class from ``speculative.model``."""
        model = setup.section.model
        if model is None or not is_import_path(model):
            raise SpecError(
                Problem(
                    where="model",
                    found=show(model) if model else "nothing (null) for method custom_class",
                    wanted="the import path of a class, as in package.module.ClassName",
                )
            )
        return cls(class_name=model, speculator_options=setup.section.speculator_options)
