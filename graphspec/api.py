"""The functions that most users call: `load` and `warmup`."""

from typing import TYPE_CHECKING, Any

from graphspec.errors import SpecError
from graphspec.formats.read import config_of, read_document
from graphspec.resolve.spec import EngineSpec

if TYPE_CHECKING:
    from graphspec.capture.report import WarmupReport


def load(path: str) -> EngineSpec:
    """The contract that the config file at `path` (``-``: standard input) resolves to.

    Raises `SpecError` with every problem, each with file and line.
    """
    document = read_document(path)
    config = config_of(document)
    try:
        return config.resolve()
    except SpecError as error:
        raise document.locate(error.problems) from None


def warmup(spec: EngineSpec, **options: Any) -> "WarmupReport":
    """Compiles or loads every unit of `spec`, captures its graphs, and verifies each once.

    Takes the options of `graphspec.capture.warmup.warmup`: `cache_dir`, `jobs`, `strict` and `progress`.
    """
    from graphspec.capture.warmup import warmup as run

    return run(spec, **options)
