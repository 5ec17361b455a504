"""The factor tree of a config class: what enters the key of a stage, by name, and the hash of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import xxhash

from graphspec.fields import Stage, is_config_class, policies
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.writers import (
    WRITERS,
    NotEncodableError,
    Writer,
    Writers,
    attributes,
    class_name,
    frame,
    interleaved,
    sequence_writer,
)

CLASS = ""
"""Name under which a tree node keeps the class it came from; no field can have it."""


def factor_tree(section: Any, stage: Stage) -> Mapping[str, Any]:
    """The keyed fields of a config object for `stage`, as nested mappings from field name to value.

    A class may add factors that are not fields of its own with a method ``key_factors(stage)``, as the speculative
    section does for what the method's class declares.
    """
    tree: dict[str, Any] = {CLASS: class_name(type(section))}
    for name, policy in policies(type(section)).items():
        if stage.covers(policy.stage):
            tree[name] = _factor(getattr(section, name), stage)
    extra = getattr(section, "key_factors", None)
    if extra is not None:
        tree.update(extra(stage))
    return tree


def _factor(value: Any, stage: Stage) -> Any:
    if is_config_class(type(value)):
        return factor_tree(value, stage)
    if isinstance(value, tuple):
        return tuple(_factor(v, stage) for v in value)
    return value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a factor tree with its dotted path, class names left out.

    >>> dict(flatten({"": "Spec", "model": {"": "Model", "hidden_size": 576}}))
    {'model.hidden_size': 576}
    """
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping) and CLASS in value:
            yield from flatten(value, path)
        elif name != CLASS:
            yield path, value


def classes_of(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The class of every section below a factor tree, with the section's dotted path.

    >>> list(classes_of({"": "Spec", "model": {"": "Model", "hidden_size": 576}}))
    [('model', 'Model')]
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and CLASS in value:
            path = f"{prefix}.{name}" if prefix else name
            yield path, value[CLASS]
            yield from classes_of(value, path)


class _FactorWriters(Writers):
    """Writes a config object as the encoding of its factor tree for one stage, without building the tree."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def writer_for(self, cls: type) -> Writer:
        if is_config_class(cls):
            return self._section_writer(cls)
        if issubclass(cls, tuple):
            return sequence_writer(b"t", self)
        return WRITERS[cls]

    def _section_writer(self, cls: Any) -> Writer:
        kept = {
            encode(name): name
            for name, policy in policies(cls).items()
            if self._stage.covers(policy.stage)
        }
        heads = sorted(kept)
        values_of, join = attributes([kept[head] for head in heads]), interleaved(heads)
        adds = hasattr(cls, "key_factors")
        # The empty name stands before all others.
        mark, name = encode(CLASS), encode(class_name(cls))
        first = mark + name

        def write(section: Any) -> bytes:
            values = [self[type(v)](v) for v in values_of(section)]
            more = section.key_factors(self._stage) if adds else None
            if more:
                fields = {mark: name, **dict(zip(heads, values, strict=True))}
                fields |= {encode(k): WRITERS[type(v)](v) for k, v in more.items()}
                return frame(b"d", b"".join([h + fields[h] for h in sorted(fields)]))
            return frame(b"d", first + join(values))

        return write


_WRITERS = {stage: _FactorWriters(stage) for stage in Stage}


def key_text(section: Any, stage: Stage) -> bytes:
    """The canonical bytes that `compute_hash` digests: epoch, stage and factor tree."""
    try:
        factors = _WRITERS[stage][type(section)](section)
    except (NotEncodableError, RecursionError):
        # Built as a tree, the same is refused with its path.
        factors = encode(factor_tree(section, stage))
    head = encode("epoch") + encode(EPOCH) + encode("stage") + encode(stage.value)
    return frame(b"d", head + encode("factors") + factors)


def compute_hash(section: Any, stage: Stage) -> str:
    """The xxh3-128 of `key_text`, 32 hexadecimal digits: the same on every machine and in every process.

    xxHash is fast and not tamper-proof. It names things; stored entries also keep the key text and compare it, so a
    collision can cost a recompile and never a wrong graph.
    """
    return digest(key_text(section, stage))


def digest(text: bytes) -> str:
    """xxh3-128 of canonical bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(text)
