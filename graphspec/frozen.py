"""`FrozenMap` and `freeze`: plain data that nobody can change, so that a frozen config is frozen all the way down."""

from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, NewType

JsonValue = NewType("JsonValue", object)
"""Annotation of a value that JSON can hold: null, a boolean, a number, a string, a list or a mapping of those."""


class FrozenMap(Mapping[str, Any]):
    """An immutable, hashable, picklable mapping. Equal to any mapping with equal items.

    >>> FrozenMap({"a": 1}) == {"a": 1}
    True
    """

    __slots__ = ("_items",)
    _items: dict[str, Any]

    def __init__(self, items: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # The mixins of Mapping answer these through exceptions and views; resolving a config asks thousands of times.
    def get(self, key: str, default: Any = None) -> Any:
        return self._items.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def items(self) -> ItemsView[str, Any]:
        return self._items.items()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a FrozenMap cannot be changed")

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return (FrozenMap, (self._items,))


def freeze(value: Any) -> Any:
    """A copy of plain data in which mappings are `FrozenMap` and lists are tuples.

    >>> freeze({"a": [1, {"b": 2}]})
    {'a': (1, {'b': 2})}
    """
    if isinstance(value, Mapping):
        return FrozenMap({k: freeze(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(v) for v in value)
    return value


def thaw(value: Any) -> Any:
    """The same data as plain dicts and lists, which every writer of files understands.

    >>> thaw(freeze({"a": [1]}))
    {'a': [1]}
    """
    if isinstance(value, Mapping):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(v) for v in value]
    return value
