"""The functions that most users call: `load` and `warmup`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graphspec.formats.assign import assign
from graphspec.formats.document import Document
from graphspec.formats.read import read_document
from graphspec.resolve import Resolution, check
from graphspec.resolve.spec import EngineSpec

if TYPE_CHECKING:
    from graphspec.capture.report import WarmupReport


def load(path: str, settings: Iterable[str] = ()) -> EngineSpec:
    """The contract that the config file at `path` (``-``: standard input) resolves to.

    `settings` are changes as ``path.to.field=value``, applied in order. Raises `SpecError` with every problem, each
    with file and line, and `EnvironmentProblem` when only this machine is at fault, as for a checkpoint that is not
    here.
    """
    return resolve_document(read_settings(path, settings)).require()


def read_settings(path: str, settings: Iterable[str] = ()) -> Document:
    """The file's data with `settings` applied. Raises `SpecError` for what cannot be read."""
    document = read_document(path)
    for setting in settings:
        document = assign(document, setting)
    return document


def resolve_document(document: Document) -> Resolution:
    """What a document comes to. Raises one error with all problems, each with file and line."""
    made = check(document.data)
    if made.spec is not None:
        return made
    error = made.error()
    raise type(error)(document.locate(error.problems).problems)


def warmup(spec: EngineSpec, **options: Any) -> "WarmupReport":
    """Compiles or loads every unit of `spec`, captures its graphs, and verifies each once.

    Takes the options of `graphspec.capture.warmup.warmup`: `cache_dir`, `jobs`, `strict` and `progress`.
    """
    from graphspec.capture.warmup import warmup as run

    return run(spec, **options)
