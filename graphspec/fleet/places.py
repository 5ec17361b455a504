"""`Places`: what the whole fleet can load, as this machine sees it, and what only this machine's own folder holds."""

import enum
import os

from graphspec.cache.abilities import look
from graphspec.cache.opened import OpenCache, open_cache
from graphspec.cache.units import EntryKey
from graphspec.config.cache import CacheConfig


class Place(enum.Enum):
    """Where an entry is."""

    SHARED = "shared"
    HERE = "here"
    """In this machine's folder, and in no place that others look into."""
    NOWHERE = "nowhere"


class Places:
    """The cache of one config. Its remote tiers are what a fleet shares; without any, the folder is, which is then the
    folder of one machine, or of a file system that all nodes mount."""

    def __init__(self, config: CacheConfig, cache_dir: str | None) -> None:
        self.cache: OpenCache = open_cache(config, cache_dir)
        # The same tiers behind a folder that is not there: a hit of the own folder would hide what the tiers lack.
        nothing = os.path.join(self.cache.root, "no-such-folder")
        self._shared = open_cache(config, nothing) if config.remote else self.cache

    def find(self, key: EntryKey) -> tuple[Place, str]:
        """Where the entry is, and why it is not shared. Nothing is copied or marked as used."""
        found = look(self._shared.store, key)
        if found.entry is not None:
            return Place.SHARED, ""
        reason = found.reason or found.outcome.value
        here = self._shared is not self.cache and look(self.cache.store, key).entry is not None
        return (Place.HERE if here else Place.NOWHERE), reason

    def publish(self, key: EntryKey) -> str:
        """Gives the tiers what the own folder holds. Returns why that failed, or an empty text."""
        found = look(self.cache.store, key)
        if found.entry is None:
            return found.reason
        # The folder has it and says so; each tier behind is given it, and the first writer wins there.
        stored = self.cache.store.put(found.entry)
        if stored.failed:
            return stored.reason
        place, reason = self.find(key)
        return "" if place is Place.SHARED else reason
