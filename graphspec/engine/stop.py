"""Stop rules: where a request ends inside the tokens that one step accepted, and the text that may be shown by then."""

import enum
from collections.abc import Callable, Sequence

import attrs

from graphspec.engine.sampling import SamplingParams

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"
"""What a tokenizer shows for bytes that are not yet a whole character."""


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class TextSoFar:
    """The text of a request's output tokens, extended token by token.

    `tail` holds the last tokens, of which the first `read` are in `text`: a token's text depends on those before it. `sent`
    counts the characters that were given out.
    """

    text: str = ""
    tail: tuple[int, ...] = ()
    read: int = 0
    sent: int = 0

    def extended(self, token: int, decode: Decode, *, last: bool = False) -> "TextSoFar":
        """With one token more. Half a character waits for the rest of it, unless this is the `last` token."""
        tail = (*self.tail, token)
        known, whole = decode(tail[: self.read]), decode(tail)
        if whole.endswith(_INCOMPLETE) and not last:
            return attrs.evolve(self, tail=tail)
        return attrs.evolve(
            self,
            text=self.text + whole[len(known) :],
            tail=tail[self.read :],
            read=len(tail) - self.read,
        )

    def shown(self, stops: Sequence[str], *, ended: bool) -> tuple[str, "TextSoFar"]:
        """What can be given out now: all but an end that may be the beginning of a stop text."""
        until = len(self.text) if ended else len(self.text) - _begun(self.text, stops)
        until = max(until, self.sent)
        return self.text[self.sent : until], attrs.evolve(self, sent=until)


@attrs.frozen(kw_only=True)
class Ending:
    """What stays of a step's accepted tokens: the first `kept`, and why the request ends there, if it does."""

    kept: int
    reason: FinishReason | None
    text: TextSoFar


def apply_stops(
    accepted: Sequence[int],
    *,
    room: int,
    params: SamplingParams,
    end_of_text: frozenset[int],
    text: TextSoFar,
    decode: Decode | None,
) -> Ending:
    """Ends a request at the first accepted token that a rule names; tokens behind it were never said.

    `room` is how many tokens the request may still have, at least 1. The token that ends it is kept. A stop text is cut
    off together with what follows it. Without `decode` there is no text.
    """
    stops = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | end_of_text
    for kept, token in enumerate(accepted, start=1):
        reason = None
        if token in stops:
            reason = FinishReason.STOP
        elif kept >= room:
            reason = FinishReason.LENGTH
        if decode is not None:
            before = len(text.text)
            text = text.extended(token, decode, last=reason is not None)
            at = _first_stop(text.text, before, params.stop)
            if at >= 0:
                cut = attrs.evolve(text, text=text.text[:at])
                return Ending(kept=kept, reason=FinishReason.STOP, text=cut)
        if reason is not None:
            return Ending(kept=kept, reason=reason, text=text)
    return Ending(kept=len(accepted), reason=None, text=text)


def _first_stop(text: str, before: int, stops: Sequence[str]) -> int:
    """Where the earliest stop text begins that ends after the first `before` characters; -1 for none."""
    found = [text.find(stop, max(0, before - len(stop) + 1)) for stop in stops]
    return min((at for at in found if at >= 0), default=-1)


def _begun(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` that a stop text begins with."""
    return max(
        (
            size
            for stop in stops
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ),
        default=0,
    )
