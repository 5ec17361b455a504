"""What stores should do, as dictionaries: places in the order in which they are asked, and a queue of what waits."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome, Stored
from support.entries import key_of

BAD = "bad bytes"
"""A file that is no entry. A get moves it away; a put may find its place taken."""


@attrs.define
class Place:
    """One store that holds entries: payloads by name. Without a folder it is memory, and gone at a restart."""

    writable: bool = True
    folder: str | None = None
    has: dict[str, bytes | str] = attrs.Factory(dict)

    def good(self, name: str) -> bytes | None:
        """The payload of a whole entry."""
        found = self.has.get(name)
        return found if isinstance(found, bytes) else None

    def path(self, name: str) -> Path:
        """The file of an entry."""
        return Path(self.disk().path_of(key_of(name)))

    def disk(self) -> DiskStore:
        """A store over the folder, as another process would open it."""
        assert self.folder is not None
        return DiskStore(self.folder)

    def settle(self, name: str, payload: bytes) -> None:
        """After a put onto bad bytes: either they are as they were, or the entry is there now. Nothing else."""
        found = self.disk().look(key_of(name))
        if found.entry is not None:
            assert found.entry.payload == payload
            self.has[name] = payload
        else:
            assert found.outcome is Outcome.CORRUPT


@attrs.frozen
class Wanted:
    """How a put should end. None where the first place had bad bytes, and both answers are right."""

    written: bool | None
    differs: bool

    def agrees(self, stored: Stored) -> bool:
        """Whether a put ended like this."""
        if self.written is None:
            return stored.failed or stored.written
        return (stored.written, stored.failed, stored.differs) == (
            self.written,
            False,
            self.differs,
        )


@attrs.define
class Model:
    """Places behind each other, the nearest first, as one store. With `queued`, puts wait before they reach them."""

    places: Sequence[Place]
    queued: bool = False
    paused: bool = False
    queue: list[tuple[str, bytes | None]] = attrs.Factory(list)
    """Names with the payload that is put, or None where the entry is set aside."""

    def lookup(self, name: str, *, touches: bool) -> tuple[Outcome, bytes | None]:
        """Outcome and payload of a get, or of a look where nothing is touched."""
        waiting = [payload for queued, payload in self.queue if queued == name]
        if None in waiting:
            last = waiting[-1]
            return (Outcome.MISS, None) if last is None else (Outcome.HIT, last)
        outcome, payload = self._in_places(name, touches)
        if payload is None and waiting:
            return Outcome.HIT, waiting[-1]
        return outcome, payload

    def _in_places(self, name: str, touches: bool) -> tuple[Outcome, bytes | None]:
        bad = False
        for number, place in enumerate(self.places):
            payload = place.good(name)
            if payload is not None:
                if touches:
                    for above in self._writable(number):
                        above.has[name] = payload
                return Outcome.HIT, payload
            if name in place.has:
                bad = True
                if touches and place.writable:
                    del place.has[name]
        return (Outcome.CORRUPT if bad else Outcome.MISS), None

    def put(self, name: str, payload: bytes) -> Wanted | None:
        """How a put ends; None where it is refused. Call it after the real put."""
        if not list(self._writable()):
            return None
        if not self.queued:
            return self._put(name, payload)
        waiting = [queued for other, queued in self.queue if other == name]
        if waiting and waiting[-1] is not None:
            return Wanted(False, waiting[-1] != payload)
        self.queue.append((name, payload))
        return Wanted(True, False)

    def _put(self, name: str, payload: bytes) -> Wanted:
        written, differs = [], False
        for place in self._writable():
            there = place.good(name)
            if name not in place.has:
                place.has[name] = payload
                written.append(True)
            elif there is not None:
                differs |= there != payload
                written.append(False)
            else:
                place.settle(name, payload)
                written.append(None)
        return Wanted(written[0], differs)

    def set_aside(self, name: str) -> None:
        """The entry is in no writable place any more."""
        if self.queued:
            self.queue.append((name, None))
        else:
            self._drop(name)

    def drain(self) -> list[Wanted]:
        """What becomes of the puts that wait, in their order. Call it after the real ones were written."""
        done = []
        for name, payload in self.queue:
            if payload is None:
                self._drop(name)
            else:
                done.append(self._put(name, payload))
        self.queue.clear()
        return done

    def restart(self) -> None:
        """Memory is gone."""
        for place in self.places:
            if place.folder is None:
                place.has.clear()

    def _drop(self, name: str) -> None:
        for place in self._writable():
            place.has.pop(name, None)

    def _writable(self, end: int | None = None) -> Iterator[Place]:
        return (place for place in self.places[:end] if place.writable)
