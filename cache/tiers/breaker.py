"""`Breaker`: switches a failing tier off for a while, so that a dead one costs one timeout and not one a unit."""

import contextlib
import enum
import time
from collections.abc import Callable, Iterator

import attrs

from graphspec.cache.forks import ForkLock


class TierError(Exception):
    """A tier did not do what it was asked to. The text is a reason without any secret.

    `counts` is False where the reason is one object and not the tier: such a call is no failure of the tier.
    """

    def __init__(self, reason: str, *, counts: bool = True) -> None:
        super().__init__(reason)
        self.counts = counts


class TierState(enum.Enum):
    """What a breaker does with the next call."""

    ON = "on"
    OFF = "off"
    PROBING = "probing"
    GIVEN_UP = "given_up"


@attrs.frozen
class _Call:
    began: float
    is_probe: bool


class Breaker:
    """Lets calls to a tier through until they fail, and then only a probe at a time.

    The tier is switched off after `failures` failed calls in a row, or sooner, when calls that failed in a row took
    `patience_s` seconds together: one timeout is enough. After `pause_s` seconds one call is let through as a probe. Each
    probe that fails doubles the pause. After `probes` failed ones the tier stays off as long as the process lives. One
    success switches it on again, and all counts begin anew.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        patience_s: float = 2.0,
        pause_s: float = 30.0,
        probes: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._probes = probes
        self._clock = clock
        self._lock = ForkLock(in_child=self._begin_in_child)
        self._state = TierState.ON
        self._last = ""
        self._until = 0.0
        self._in_a_row = self._failed_probes = 0
        self._spent_s = 0.0

    @property
    def state(self) -> TierState:
        """The state now. A pause that has run out shows as off until a call comes and is the probe."""
        return self._state

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Around one call to the tier. Raises `TierError` at once where the tier is off; notes how the call ended."""
        call = self._enter()
        try:
            yield
        except TierError as error:
            if error.counts:
                self._failed(call, str(error))
            else:
                self._succeeded()
            raise
        except BaseException:
            self._left_open(call)
            raise
        self._succeeded()

    def check(self) -> None:
        """Raises `TierError` where the tier is off. Never takes the place of a probe."""
        with self._lock:
            if self._state is not TierState.ON:
                raise self._refusal(self._clock())

    def _enter(self) -> _Call:
        with self._lock:
            now = self._clock()
            if self._state is TierState.ON:
                return _Call(now, False)
            if self._state is TierState.OFF and now >= self._until:
                self._state = TierState.PROBING
                return _Call(now, True)
            raise self._refusal(now)

    def _failed(self, call: _Call, reason: str) -> None:
        with self._lock:
            now = self._clock()
            if call.is_probe and self._state is TierState.PROBING:
                self._failed_probes += 1
                self._switch_off(now, reason)
            elif self._state is TierState.ON:
                self._in_a_row += 1
                self._spent_s += now - call.began
                if self._in_a_row >= self._failures or self._spent_s >= self._patience_s:
                    self._switch_off(now, reason)
            # Else: it began before the tier was switched off, and says nothing new.

    def _succeeded(self) -> None:
        with self._lock:
            self._switch_on()

    def _left_open(self, call: _Call) -> None:
        """An interrupt says nothing about the tier: the next call is the probe."""
        with self._lock:
            if call.is_probe and self._state is TierState.PROBING:
                self._state = TierState.OFF

    def _begin_in_child(self) -> None:
        # The thread whose call was the probe is not in the child.
        if self._state is TierState.PROBING:
            self._state = TierState.OFF

    def _switch_on(self) -> None:
        self._state = TierState.ON
        self._in_a_row = self._failed_probes = 0
        self._spent_s = 0.0

    def _switch_off(self, now: float, reason: str) -> None:
        self._last = reason
        self._until = now + self._pause_s * 2**self._failed_probes
        given_up = self._failed_probes >= self._probes
        self._state = TierState.GIVEN_UP if given_up else TierState.OFF

    def _refusal(self, now: float) -> TierError:
        if self._state is TierState.GIVEN_UP:
            when = f"not tried again by this process after {self._failed_probes} probes that failed"
        elif self._state is TierState.PROBING:
            when = "another call is trying it now"
        else:
            when = f"tried again in {max(0.0, self._until - now):.0f} s"
        return TierError(f"switched off ({when}); last failure: {self._last}", counts=False)
