"""A cache folder for tests of the commands on it: entries of any age, and calls of ``graphspec cache``."""

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cli import _root
from graphspec.cli.common import run
from support.entries import METADATA, entry_of, key_of

DAY = 86_400.0


class CacheFolder:
    """A folder, and the commands on it."""

    def __init__(self, root: str, capsys: Any) -> None:
        self.root = root
        self.store = DiskStore(root)
        self._capsys = capsys

    def put(self, name: str, idle: float = 0.0, **metadata: Any) -> Path:
        """Stores an entry that was last used so many seconds ago, and gives its path."""
        entry = attrs.evolve(entry_of(name, name.encode() * 100), metadata={**METADATA, **metadata})
        assert self.store.put(entry).written
        at = time.time() - idle
        os.utime(self.store.path_of(entry.key), (at, at))
        return Path(self.store.path_of(entry.key))

    def holds(self, names: Collection[str] = "abcdef") -> set[str]:
        """Which of the entries are there and whole."""
        return {n for n in names if self.store.look(key_of(n)).outcome is Outcome.HIT}

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of ``graphspec cache`` with the arguments."""
        code = run(_root, ["cache", *arguments, "--cache-dir", self.root])
        out, err = self._capsys.readouterr()
        return code, out, err

    def answer(self, *arguments: str) -> tuple[int, Any]:
        """Exit code of a command, and its output as JSON."""
        code, out, err = self.call(*arguments, "--json")
        assert err == ""
        return code, json.loads(out)
