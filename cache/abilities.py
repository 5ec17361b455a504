"""What a store may offer besides get and put, asked in one way: a look that changes nothing, and whether puts make sense."""

from typing import Protocol, runtime_checkable

from graphspec.cache.store import Lookup, Store
from graphspec.cache.units import EntryKey


@runtime_checkable
class Looks(Protocol):
    """A store that can say what it has without changing anything: nothing set aside, filled in or marked as used."""

    def look(self, key: EntryKey) -> Lookup:
        """What `get` would find."""
        ...


def look(store: Store, key: EntryKey) -> Lookup:
    """What a store has under `key`: by its look, or by its get where it has no look."""
    return store.look(key) if isinstance(store, Looks) else store.get(key)


def is_writable(store: Store) -> bool:
    """False for a store that says by its attribute `writable` that each put is refused."""
    return bool(getattr(store, "writable", True))
