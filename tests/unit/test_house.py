"""Habits that a machine can check: module sizes, doctests, and no bare folder name in the loaded modules."""

import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import graphspec

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("graphspec", "cache", "capture", "kernels")
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(graphspec.__path__[:1], "graphspec.")
    if not m.name.endswith("__main__")
) + [
    ".".join(("graphspec", *path.relative_to(ROOT).with_suffix("").parts))
    for folder in ("cache", "capture", "kernels")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.stem.startswith("_")
]


def test_no_module_is_longer_than_500_lines():
    """A longer module is two ideas at least."""
    folders = (*FOLDERS, "tests", "bench")
    long = [p for f in folders for p in (ROOT / f).rglob("*.py") if count(p) > 500]
    assert long == []


def count(path):
    return len(path.read_text().splitlines())


def test_every_module_opens_with_a_docstring():
    """Each file says in its first line what it is for."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert path.read_text().startswith('"""'), path


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name):
    """What a docstring shows is what the code prints."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_no_bare_folder_name_is_loaded():
    """`cache`, `capture` and `kernels` are only ever imported below `graphspec`."""
    bare = [n for n in ("cache", "capture", "kernels") if n in sys.modules]
    assert [n for n in bare if str(ROOT) in str(getattr(sys.modules[n], "__file__", ""))] == []
