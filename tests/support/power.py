"""A disk that forgets, when the power fails, what was not synced: every state that it may be in after a restart.

The model allows what POSIX allows, which is more than most file systems do: until a folder is synced, each name in it
may be what it was at any time since, one by one and in any order, whatever the content of the file is; until a file is
synced, any page of what was written to it may be zeros or hold what the disk held before, and it may be short.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from support.faults import hooked

PAGE = 4096
Tree = frozenset[tuple[str, bytes | None]]
"""What a folder holds: relative paths with the content of files, None for folders."""


@attrs.define(kw_only=True)
class _File:
    synced: bytes = b""
    content: bytes = b""


@attrs.define(kw_only=True)
class _Folder:
    names: dict[str, list[int | None]] = attrs.field(factory=dict)
    """What each name has led to since the last sync, and last of all now."""


@attrs.define(kw_only=True)
class Disk:
    """Folders and files by number. Number 0 is the folder at `base`, which is there for good."""

    base: str
    _nodes: list[_File | _Folder] = attrs.field(factory=lambda: [_Folder()])

    def states(self, stale: bytes) -> set[Tree]:
        """Each tree that a restart may find now. `stale` is what lies in blocks that were allocated and not written."""
        contents = [
            _contents(node, stale) if isinstance(node, _File) else () for node in self._nodes
        ]
        trees: set[Tree] = set()
        for names in self._names(0, ""):
            # Two names of one file have the same content, whatever that is.
            files = sorted({n for _, n in names if contents[n]})
            for chosen in itertools.product(*(contents[n] for n in files)):
                content = dict(zip(files, chosen, strict=True))
                trees.add(frozenset((path, content.get(n)) for path, n in names))
        return trees

    def _names(self, number: int, prefix: str) -> set[frozenset[tuple[str, int]]]:
        """Which paths may lead to which numbers, below a folder."""
        folder = self._nodes[number]
        found = {frozenset[tuple[str, int]]()}
        for name, history in folder.names.items() if isinstance(folder, _Folder) else ():
            options = {frozenset[tuple[str, int]]()} if None in history else set()
            for target in {t for t in history if t is not None}:
                path = prefix + name
                below = self._names(target, path + "/")
                options |= {frozenset({(path, target)}) | names for names in below}
            found = {a | b for a in found for b in options}
        return found

    def load(self, *, synced: bool) -> None:
        """Takes over what lies below `base` on the real disk, all of it as synced, or nothing of it."""
        for path in sorted(Path(self.base).rglob("*")):
            if path.is_dir():
                self.make(str(path), _Folder())
            else:
                content = path.read_bytes()
                self.make(str(path), _File(content=content, synced=content if synced else b""))
        if synced:
            for node in self._nodes:
                if isinstance(node, _Folder):
                    _forget(node)

    def make(self, path: str, node: _File | _Folder) -> int:
        self._nodes.append(node)
        self.name(path, len(self._nodes) - 1)
        return len(self._nodes) - 1

    def name(self, path: str, target: int | None) -> None:
        """Makes a path lead to something else."""
        folder, name = self._above(path)
        history = folder.names.setdefault(name, [None])
        history.append(target)

    def at(self, path: str) -> int:
        """The number of what a path leads to."""
        if path == self.base:
            return 0
        folder, name = self._above(path)
        target = folder.names[name][-1]
        assert target is not None
        return target

    def write(self, number: int, data: bytes) -> None:
        file = self._nodes[number]
        assert isinstance(file, _File)
        file.content += data

    def sync(self, number: int) -> None:
        node = self._nodes[number]
        if isinstance(node, _File):
            node.synced = node.content
        else:
            _forget(node)

    def is_mine(self, path: Any) -> bool:
        return isinstance(path, str) and (path + "/").startswith(self.base + "/")

    def _above(self, path: str) -> tuple[_Folder, str]:
        folder = self._nodes[self.at(os.path.dirname(path))]
        assert isinstance(folder, _Folder)
        return folder, os.path.basename(path)


def _forget(folder: _Folder) -> None:
    for history in folder.names.values():
        del history[:-1]


def _contents(file: _File, stale: bytes) -> Sequence[bytes]:
    """What may be in a file: all of it, or a part of it, each page after the synced part right, zeros, or stale."""
    if file.synced == file.content:
        return [file.content]
    size = len(file.content)
    pages = range(0, size, PAGE)
    found = set()
    for wrong in (bytes(size), stale.ljust(size, b"\xff")):
        for right in itertools.product((False, True), repeat=len(pages)):
            content = b"".join(
                (file.content if r else wrong)[at : min(at + PAGE, size)]
                for at, r in zip(pages, right, strict=True)
            )
            ends = {*pages, size // 2, size}
            found |= {file.synced + content[len(file.synced) : end] for end in ends}
    return sorted(found)


@attrs.frozen(kw_only=True)
class Moment:
    """After one operation: its name, the states that a power loss now may leave, and whether the action was over."""

    operation: str
    states: set[Tree]


def record(
    base: str, action: Callable[[], None], *, before: str = "", stale: bytes = b""
) -> Sequence[Moment]:
    """Runs an action and gives a moment before its first operation below `base` and one after each.

    What is there `before` is "synced", or "not synced": then none of it may be left after a restart.
    """
    disk = Disk(base=base)
    disk.load(synced=before == "synced")
    descriptors: dict[int, int] = {}
    moments = [Moment(operation="", states=disk.states(stale))]

    def hook(name: str, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if _apply(disk, descriptors, name, arguments, result):
            moments.append(Moment(operation=name, states=disk.states(stale)))
        return result

    with hooked(hook):
        action()
    return moments


def _apply(
    disk: Disk, descriptors: dict[int, int], name: str, arguments: Sequence[Any], result: Any
) -> bool:
    """Does to the model what a call of `os` has done to the real disk. False where it changed nothing."""
    first = arguments[0]
    if name == "open" and disk.is_mine(first):
        created = bool(arguments[1] & os.O_CREAT)
        descriptors[result] = disk.make(first, _File()) if created else disk.at(first)
        return created
    if name in ("write", "fsync", "close") and first in descriptors:
        if name == "write":
            disk.write(descriptors[first], bytes(arguments[1])[:result])
        elif name == "fsync":
            disk.sync(descriptors[first])
        else:
            del descriptors[first]
        return name != "close"
    if name in ("mkdir", "link", "rename", "unlink", "rmdir") and disk.is_mine(first):
        if name == "mkdir":
            disk.make(first, _Folder())
        elif name in ("link", "rename"):
            disk.name(arguments[1], disk.at(first))
        if name in ("rename", "unlink", "rmdir"):
            disk.name(first, None)
        return True
    return False


def write_tree(tree: Tree, folder: Path) -> None:
    """Makes a tree real."""
    for path, content in sorted(tree, key=lambda item: item[0]):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
