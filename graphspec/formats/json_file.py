"""Reads a JSON file of ours, and tells everything that is wrong with it in one class of error."""

from collections.abc import Callable

from graphspec.errors import GraphspecError, Problem, SpecError
from graphspec.formats.document import Document
from graphspec.formats.json_reader import read_json


def read_json_file(
    path: str, error: type[GraphspecError], other: Callable[[str, str], Problem]
) -> Document:
    """The document of the file at `path`. Raises `error`: with what ``other(path, found)`` says where the file cannot be
    read, else with every problem of its text."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeError) as unreadable:
        no_text = "bytes that are not UTF-8"
        reason = unreadable.strerror if isinstance(unreadable, OSError) else no_text
        raise error(other(path, f"a file that cannot be read: {reason}")) from unreadable
    try:
        return read_json(text, path)
    except SpecError as broken:
        raise error(broken.problems) from broken
