"""What processes do with bundles when tests kill them: actions for `support.faults.Killer`.

Below the folder lie a cache in ``from``, a bundle ``a.bundle`` and a cache in ``to``.
"""

import os

from graphspec.cache.bundle.exporter import all_entries, export_bundle
from graphspec.cache.bundle.importer import import_bundle
from graphspec.cache.folder.disk import DiskStore
from support.bundles import unit_entry

ENTRIES = [unit_entry(name, bytes(range(200)) + name.encode()) for name in "ab"]


def export_all(root: str) -> None:
    """Exports the cache."""
    store = DiskStore(os.path.join(root, "from"))
    done = export_bundle(os.path.join(root, "a.bundle"), all_entries(store))
    assert len(done.entries) == len(ENTRIES)


def import_all(root: str) -> None:
    """Imports the bundle."""
    store = DiskStore(os.path.join(root, "to"))
    done = import_bundle(os.path.join(root, "a.bundle"), store, any_device=True)
    assert done.count("imported") + done.count("present") == len(ENTRIES)
