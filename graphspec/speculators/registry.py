"""Names of drafting methods and their classes: built in, registered by a call, or found as entry points."""

import importlib
import importlib.metadata
from collections.abc import Mapping
from functools import cache

from graphspec.errors import Problem, SpecError
from graphspec.fields import is_config_class
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.mtp_families import ALIASES
from graphspec.text import nearest_hint, one_of, show

ENTRY_POINTS = "graphspec.methods"

BUILT_IN: Mapping[str, str] = {
    "ngram": "graphspec.speculators.ngram:NgramSpeculatorConfig",
    "ngram_gpu": "graphspec.speculators.ngram:NgramGPUSpeculatorConfig",
    "suffix": "graphspec.speculators.suffix:SuffixSpeculatorConfig",
    "draft_model": "graphspec.speculators.draft_model:StandaloneARSpeculatorConfig",
    "eagle": "graphspec.speculators.eagle:EagleSpeculatorConfig",
    "eagle3": "graphspec.speculators.eagle:Eagle3SpeculatorConfig",
    "mtp": "graphspec.speculators.mtp:MTPSpeculatorConfig",
    "dflash": "graphspec.speculators.dflash:DFlashSpeculatorConfig",
    "dspark": "graphspec.speculators.dflash:DSparkSpeculatorConfig",
    "extract_hidden_states": "graphspec.speculators.extract:ExtractHiddenStatesSpeculatorConfig",
    "custom_class": "graphspec.speculators.custom:CustomClassSpeculatorConfig",
}
"""Built-in method name -> where its class is."""

DETECTION_ORDER = ("eagle", "eagle3", "dflash", "dspark", "mtp")
"""Methods that a draft may be taken for when the user names none, in the order in which they are asked."""

_registered: dict[str, type[SpeculatorConfig]] = {}


def register_speculative_method(name: str, cls: type[SpeculatorConfig]) -> None:
    """Adds a method under `name`. Repeating a registration does nothing.

    Every process that reads configs must register, workers too; an entry point of the group ``graphspec.methods``
    does that everywhere. Raises `SpecError` for a name that is taken, and for a class that is not a
    `SpeculatorConfig` or whose `base_method` is not a built-in method.
    """
    # A plugin may register while its entry point is being loaded; only what is loaded already can be asked.
    loaded = _from_entry_points() if _from_entry_points.cache_info().currsize else {}
    problem = _registration_problem(name, cls, {**loaded, **_registered})
    if problem is not None:
        raise SpecError(problem)
    _registered[name] = cls


def registered_speculative_methods() -> tuple[str, ...]:
    """Names of all methods that are not built in, sorted. Entry points are loaded."""
    return tuple(sorted({**_from_entry_points(), **_registered}))


def known_methods() -> tuple[str, ...]:
    """Every name that ``speculative.method`` may have, deprecated spellings left out."""
    return (*sorted(BUILT_IN), *registered_speculative_methods())


def speculator_config_class(method: str) -> type[SpeculatorConfig]:
    """The class of a method. Raises `SpecError` with the nearest known name."""
    if method in BUILT_IN:
        module, name = BUILT_IN[method].split(":")
        cls: type[SpeculatorConfig] = getattr(importlib.import_module(module), name)
        return cls
    registered = registered_class(method)
    if registered is None:
        raise SpecError(unknown_method(method))
    return registered


def registered_class(method: str) -> type[SpeculatorConfig] | None:
    """The class of a method that is not built in, or None."""
    return _registered.get(method) or _from_entry_points().get(method)


def unknown_method(method: str) -> Problem:
    """The problem of a name that is neither built in nor registered."""
    others = registered_speculative_methods()
    return Problem(
        where="speculative.method",
        found=show(method),
        wanted=f"{one_of(sorted(BUILT_IN))}; registered: {', '.join(others) or 'none'}",
        hint="for no drafting, leave the section out"
        if method.lower() in ("", "none", "off")
        else nearest_hint(method, known_methods()),
    )


def _registration_problem(
    name: str, cls: type[SpeculatorConfig], known: Mapping[str, type[SpeculatorConfig]]
) -> Problem | None:
    where = f"register_speculative_method({name!r})"
    if not isinstance(name, str) or not name.isidentifier():
        return Problem(where=where, found=show(name), wanted="a name that is an identifier")
    if name in BUILT_IN or name in ALIASES:
        return Problem(where=where, found="the name of a built-in method", wanted="another name")
    if not (is_config_class(cls) and issubclass(cls, SpeculatorConfig)):
        return Problem(
            where=where, found=show(cls), wanted="a subclass of SpeculatorConfig by @config_class"
        )
    if cls.base_method not in BUILT_IN:
        return Problem(
            where=where,
            found=f"{cls.__name__}.base_method = {cls.base_method!r}",
            wanted=one_of(sorted(BUILT_IN)),
            hint="consumers that know only built-in methods treat yours as its base",
        )
    other = known.get(name)
    if other is not None and other is not cls:
        return Problem(
            where=where,
            found=f"the class {other.__module__}.{other.__qualname__} under that name",
            wanted="one class a name",
        )
    return None


@cache
def _from_entry_points() -> Mapping[str, type[SpeculatorConfig]]:
    found: dict[str, type[SpeculatorConfig]] = {}
    problems = []
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            cls = point.load()
        except Exception as error:
            # A plugin may raise anything at all; its name is what the reader needs.
            problems.append(
                Problem(
                    where=f"entry point {point.name} = {point.value}",
                    found=f"{type(error).__name__}: {error}",
                    wanted="a class that can be imported",
                    hint=f"update or remove {point.dist.name if point.dist else 'its package'}",
                )
            )
            continue
        problem = _registration_problem(point.name, cls, {**found, **_registered})
        if problem is not None:
            problems.append(problem)
        found.setdefault(point.name, cls)
    if problems:
        raise SpecError(problems)
    return found
