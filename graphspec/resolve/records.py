"""`Step` and `Note`: what a step of resolution decided and why, and what a reader of the result must know."""

import attrs

from graphspec.fields import config_class, unkeyed

_TOLD = "explanation only"


@attrs.frozen(kw_only=True)
class Step:
    """One step of resolution, as ``graphspec show --trace`` prints it."""

    name: str
    decided: str
    why: str


@config_class
class Note:
    """Something that is valid and still worth knowing: a default taken, a limit lowered, an option without effect."""

    code: str = unkeyed(doc="Stable name of the note's kind.", reason=_TOLD)
    text: str = unkeyed(doc="What is so, and what to do about it.", reason=_TOLD)

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"
