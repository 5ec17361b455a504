"""`CaptureKey`: which captured graph, by phase, draft depth and bucket."""

import enum

import attrs


class Phase(enum.Enum):
    """Part of a decode step that one graph covers."""

    TARGET_VERIFY = "target_verify"
    DRAFT = "draft"


@attrs.frozen(order=True)
class CaptureKey:
    """A captured graph: `bucket` requests of `1 + k` tokens each. Padding adds requests of the same k."""

    phase: Phase = attrs.field(order=lambda phase: phase.value)
    k: int
    bucket: int

    @property
    def tokens(self) -> int:
        """Tokens of a step that this graph runs."""
        return self.bucket * (1 + self.k)

    def __str__(self) -> str:
        return f"{self.phase.value} k={self.k} requests={self.bucket}"
