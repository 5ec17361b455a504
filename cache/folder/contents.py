"""What one stored entry says of itself: sizes, digests, signer, metadata, and its key as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from graphspec.cache.entry import FORMAT, EntryCorruptError, Sizes, read_prefix, unpack
from graphspec.cache.folder.listing import StoredFile, entry_files
from graphspec.cache.folder.reading import read_entry
from graphspec.errors import KeyFactorError
from graphspec.keys.compare import describe, parts
from graphspec.keys.encoding import decode
from graphspec.keys.environment import HIDDEN, shown

_LONG = 200
_NESTED = 12


@attrs.frozen(kw_only=True)
class Contents:
    """One entry. `problem` says why it cannot be used, in a sentence; then what depends on it is empty.

    `key` has the parts of the key: for each a value as text by dotted path. `metadata` is as text too, read sets and
    provenance apart. Values of secret variables are hidden.
    """

    file: StoredFile
    problem: str
    sizes: Sizes | None = None
    key: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    reads: tuple[str, ...] = ()
    provenance: Mapping[str, str] = attrs.field(factory=dict)

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``cache show --json`` prints."""
        sizes = self.sizes
        seal = sizes.seal if sizes is not None else None
        return {
            "key": self.file.key,
            "path": self.file.path,
            "problem": self.problem,
            "format": FORMAT if sizes is not None else None,
            "bytes": self.file.bytes,
            "header_bytes": sizes.header if sizes is not None else None,
            "payload_bytes": sizes.payload if sizes is not None else None,
            "payload_sha256": sizes.payload_digest.hex() if sizes is not None else None,
            "signed_by": seal.public_key.hex() if seal is not None else None,
            "last_used": self.file.last_used,
            "metadata": dict(self.metadata),
            "reads": list(self.reads),
            "provenance": dict(self.provenance),
            "key_parts": {part: dict(values) for part, values in self.key.items()},
        }


def find_entries(root: str, start: str) -> Sequence[StoredFile]:
    """The entries whose key begins with `start`."""
    return [f for f in entry_files(root) if f.key.startswith(start.lower())]


def contents_of(file: StoredFile) -> Contents:
    """Reads and checks a whole entry. Nothing is changed."""
    sizes = None
    try:
        data = read_entry(file.path)
        sizes = read_prefix(data)
        entry = unpack(data)
    except OSError as error:
        return Contents(file=file, problem=error.strerror or str(error))
    except EntryCorruptError as error:
        return Contents(file=file, problem=str(error), sizes=sizes)
    metadata = dict(entry.metadata)
    reads = metadata.pop("reads", ())
    provenance = metadata.pop("provenance", {})
    return Contents(
        file=file,
        problem=""
        if entry.key.digest == file.key
        else f"it is the entry of another key, {entry.key.digest}",
        sizes=sizes,
        key=key_parts(entry.key.text),
        metadata={name: describe(value, limit=_LONG) for name, value in metadata.items()},
        reads=tuple(map(str, reads)) if isinstance(reads, list | tuple) else (),
        provenance={str(k): str(v) for k, v in provenance.items()}
        if isinstance(provenance, Mapping)
        else {},
    )


def key_parts(text: bytes) -> Mapping[str, Mapping[str, str]]:
    """The parts of a key: for each, its values as text by dotted path. A plain part has one, under the empty path."""
    try:
        key = decode(text)
    except KeyFactorError as error:
        return {"key": {"": error.problems[0].found}}
    if not isinstance(key, Mapping):
        return {"key": {"": describe(key)}}
    return {str(part): dict(_leaves(value, "", str(part))) for part, value in key.items()}


def _leaves(value: Any, path: str, name: str, levels: int = _NESTED) -> Iterator[tuple[str, str]]:
    if name == "environment" and isinstance(value, Mapping):
        yield from _variables(value, path)
        return
    inside = parts(value)
    if inside is None or not inside[1] or not levels:
        secret = name in _secret_fields()
        yield path, HIDDEN if secret else describe(value, name, limit=_LONG)
        return
    if inside[0]:
        yield f"{path}:class" if path else ":class", inside[0]
    for below, member in inside[1].items():
        deeper = f"{path}.{below}" if path else str(below)
        yield from _leaves(member, deeper, str(below).rpartition(".")[2], levels - 1)


def _variables(values: Mapping[Any, Any], path: str) -> Iterator[tuple[str, str]]:
    told = shown({str(name): "" if v is None else str(v) for name, v in values.items()})
    for name, text in told.items():
        unset = values.get(name, "") is None and text != HIDDEN
        yield f"{path}.{name}" if path else name, "not set" if unset else text


@cache
def _secret_fields() -> frozenset[str]:
    """Names of fields that are declared secret. None of ours is in a key; one of another package might be."""
    from graphspec.config.engine import EngineConfig
    from graphspec.keys.inventory import inventory
    from graphspec.resolve.spec import EngineSpec

    return frozenset(r.field for r in inventory((EngineConfig, EngineSpec)) if r.policy.secret)
