"""The pytest plugin: fixtures for tests of an engine that uses graphspec. Importing it costs nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from graphspec.testing.keys import GoldenAssertion


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--graphspec-update-goldens``: golden keys are written instead of compared."""
    parser.getgroup("graphspec").addoption(
        "--graphspec-update-goldens",
        action="store_true",
        help="Write the golden keys of graphspec_golden anew instead of comparing with them.",
    )


@pytest.fixture
def graphspec_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that this test alone uses, also in processes it starts."""
    folder = tmp_path / "graphspec-cache"
    monkeypatch.setenv("GRAPHSPEC_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def graphspec_golden(request: pytest.FixtureRequest) -> "GoldenAssertion":
    """``graphspec_golden(spec, "name")``: the spec's keys are those in the golden file beside this test."""
    from graphspec.testing.keys import GoldenAssertion

    return GoldenAssertion(
        folder=request.path.parent / "goldens" / request.path.stem,
        update=request.config.getoption("--graphspec-update-goldens"),
    )
