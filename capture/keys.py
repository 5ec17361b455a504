"""`CaptureKey`: which captured graph, by phase, mode, draft depth, bucket and adapters."""

import enum
from typing import TypeAlias

import attrs


class Phase(enum.Enum):
    """Part of a decode step that one graph covers."""

    TARGET_VERIFY = "target_verify"
    DRAFT = "draft"


class GraphMode(enum.Enum):
    """What one graph holds: a whole uniform step, or the pieces between attention of a step of any shape."""

    FULL = "full"
    PIECEWISE = "piecewise"


GraphKind: TypeAlias = tuple[Phase, GraphMode]
"""What a source of steps can or cannot capture."""

FULL_VERIFY: frozenset[GraphKind] = frozenset({(Phase.TARGET_VERIFY, GraphMode.FULL)})
"""The kinds that a source captures unless it states others."""

EVERY_KIND: frozenset[GraphKind] = frozenset(
    {
        (Phase.TARGET_VERIFY, GraphMode.FULL),
        (Phase.TARGET_VERIFY, GraphMode.PIECEWISE),
        (Phase.DRAFT, GraphMode.FULL),
    }
)
"""The kinds that a plan can have."""


def _default_width(key: "CaptureKey") -> int:
    return 1 + key.k if key.kind == (Phase.TARGET_VERIFY, GraphMode.FULL) else 1


def _value(member: enum.Enum) -> str:
    text: str = member.value
    return text


@attrs.frozen(order=True, cache_hash=True)
class CaptureKey:
    """A captured graph.

    A full graph runs `bucket` requests of `width` tokens each, and padding adds requests of the same k. `width` is 1 + k
    for the target. For a draft phase it is the method's: 1 for a loop over one token, whose passes after the first are
    one graph, and the block for a parallel pass. A piecewise graph runs `bucket` tokens of any requests, and its k is 0.
    `lora` is the number of active adapters that it holds.
    """

    phase: Phase = attrs.field(order=_value)
    k: int
    bucket: int
    mode: GraphMode = attrs.field(default=GraphMode.FULL, order=_value, kw_only=True)
    lora: int = attrs.field(default=0, kw_only=True)
    width: int = attrs.field(default=attrs.Factory(_default_width, takes_self=True), kw_only=True)

    @property
    def kind(self) -> GraphKind:
        """Phase and mode: what a source of steps states that it can capture."""
        return self.phase, self.mode

    @property
    def tokens(self) -> int:
        """Tokens of one pass that this graph runs, padding included."""
        return self.bucket * self.width

    def __str__(self) -> str:
        what = (
            f"k={self.k} requests={self.bucket}"
            if self.mode is GraphMode.FULL
            else f"piecewise tokens={self.bucket}"
        )
        adapters = f" adapters={self.lora}" if self.lora else ""
        return f"{self.phase.value} {what}{adapters}"
