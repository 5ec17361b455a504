"""The pytest plugin: fixtures for tests of an engine that uses graphspec. Importing it costs nothing."""

from pathlib import Path

import pytest


@pytest.fixture
def graphspec_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that this test alone uses, also in processes it starts."""
    folder = tmp_path / "graphspec-cache"
    monkeypatch.setenv("GRAPHSPEC_CACHE_DIR", str(folder))
    return folder
