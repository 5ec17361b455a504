"""Hypothesis's entry point: ``st.from_type`` knows every config class, those of registered methods included.

Hypothesis calls `register` when it is imported, in every project of the environment. So nothing of graphspec is loaded
before a strategy for one of its classes is asked for.
"""

from typing import Any


def register() -> None:
    """Makes ``st.from_type`` ask `strategy_for` about types that it does not know."""
    try:
        from hypothesis.strategies._internal.types import _global_extra_lookup
    except ImportError:
        _register_each()
    else:
        # The one hook that takes a family of classes and imports none of them. It is what Hypothesis's own extras use,
        # and not public.
        _global_extra_lookup["graphspec.fields"] = strategy_for


def _register_each() -> None:
    """The same by public means, which load graphspec, and for its own classes alone."""
    from hypothesis import strategies as st

    from graphspec.config.engine import EngineConfig
    from graphspec.keys.inventory import config_classes
    from graphspec.resolve.spec import EngineSpec

    for cls in config_classes([EngineConfig, EngineSpec]):
        st.register_type_strategy(cls, strategy_for)


def strategy_for(thing: Any) -> Any:
    """The strategy for a config class, or None for any other type. Called once `graphspec.fields` is loaded."""
    from graphspec.fields import is_config_class

    if not is_config_class(thing):
        return None
    from graphspec.testing.strategies import configs

    if f"{thing.__module__}.{thing.__qualname__}" in _RESOLVED:
        from graphspec.testing.spec_strategies import sections_of

        return sections_of(thing)
    return configs(thing)


_RESOLVED = ("graphspec.resolve.spec.EngineSpec", "graphspec.resolve.spec.SpeculativeSpec")
"""Classes whose fields only make sense together: they are drawn by resolving."""
