"""`VerifyingStore`: a hit is what was asked for and signed by whom one trusts, and a put can be read back."""

import attrs

from graphspec.cache.abilities import is_writable, look
from graphspec.cache.entry import PREFIX_BYTES, Entry, Trust, pack, read_prefix
from graphspec.cache.store import Lookup, Outcome, Store, Stored, set_aside
from graphspec.cache.units import EntryKey
from graphspec.errors import KeyFactorError


class VerifyingStore:
    """Takes nothing on trust from the inner store. For stores that are not ours, or not on this machine.

    Get: a hit must carry the very key text that was asked for. With `trust` it must also have a seal that is trusted and
    that covers this very entry, metadata and payload. Anything else is corrupt, and is set aside where the inner store
    can do that. Without `trust` the payload is not checked: an entry outside a file has no digest of it.

    Put: what the inner store has afterwards is read and compared. A put that cannot be read back has failed. Other bytes
    under the same key are told as `differs`, also by a store that only knows that the name was taken.
    """

    def __init__(self, inner: Store, *, trust: Trust | None = None) -> None:
        self._inner = inner
        self._trust = trust

    @property
    def writable(self) -> bool:
        """False when the inner store refuses puts."""
        return is_writable(self._inner)

    def get(self, key: EntryKey) -> Lookup:
        lookup = self._inner.get(key)
        wrong = self._wrong(key, lookup)
        if not wrong:
            return lookup
        self.set_aside(key, wrong)
        return Lookup(outcome=Outcome.CORRUPT, reason=wrong)

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find; nothing is set aside."""
        lookup = look(self._inner, key)
        wrong = self._wrong(key, lookup)
        return Lookup(outcome=Outcome.CORRUPT, reason=wrong) if wrong else lookup

    def put(self, entry: Entry) -> Stored:
        stored = self._inner.put(entry)
        if stored.failed:
            return stored
        found = self.look(entry.key)
        if found.entry is None:
            if found.outcome is Outcome.CORRUPT:
                self.set_aside(entry.key, found.reason)
            reason = f"it cannot be read back ({found.outcome.value}): {found.reason}"
            return Stored(written=False, reason=reason, differs=stored.differs)
        if _same(found.entry, entry):
            return stored
        return attrs.evolve(stored, written=False, reason="", differs=True)

    def set_aside(self, key: EntryKey, reason: str) -> None:
        """Takes the entry out of the inner store, where that can be done."""
        set_aside(self._inner, key, reason)

    def _wrong(self, key: EntryKey, lookup: Lookup) -> str:
        entry = lookup.entry
        if entry is None:
            return "a hit without an entry" if lookup.outcome is Outcome.HIT else ""
        if entry.key.text != key.text:
            return "the entry is that of another key"
        if self._trust is None:
            return ""
        if entry.seal is not None and not _covered(entry):
            return "the entry's seal is that of other bytes"
        return self._trust(entry.seal)


def _covered(entry: Entry) -> bool:
    """Whether the entry's seal is over the bytes that this entry has as a file."""
    try:
        return read_prefix(pack(entry)[:PREFIX_BYTES]).seal == entry.seal
    except KeyFactorError:
        return False


def _same(one: Entry, other: Entry) -> bool:
    return one.key.text == other.key.text and one.payload == other.payload
