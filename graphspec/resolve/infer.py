"""Steps 1 to 3: which method the user means, by what was written alone. No file is opened."""

import attrs

from graphspec.config.speculative import SpeculativeConfig
from graphspec.resolve.records import Note
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.custom import is_import_path
from graphspec.speculators.mtp_families import ALIASES
from graphspec.speculators.registry import registered_class, speculator_config_class

_NGRAM_SPELLINGS = ("ngram", "[ngram]")


@attrs.frozen(kw_only=True)
class Inferred:
    """The method as far as the section's own words tell. `method` is None while a checkpoint has to decide."""

    method: str | None
    custom_method: str | None
    model: str | None
    explicit: bool
    why: str
    notes: tuple[Note, ...] = ()


def infer(section: SpeculativeConfig) -> Inferred:
    """The method that `section` names, or what its model's name says about it. The first rule that fits decides."""
    method, model = section.method, section.model
    if method is not None:
        if model in _NGRAM_SPELLINGS and method in ("ngram", "ngram_gpu"):
            model = None
        return _named(method, model)
    if is_import_path(model):
        return _guess("custom_class", model, f"speculative.model {model!r} is an import path")
    if model in _NGRAM_SPELLINGS:
        return _guess("ngram", None, f"speculative.model is {model!r}")
    if model is None:
        return _guess("draft_model", None, "neither method nor model is given")
    return _guess(None, model, "no method is given, so the draft checkpoint decides")


def _named(method: str, model: str | None) -> Inferred:
    registered = registered_class(method) if method not in ALIASES else None
    if registered is not None:
        return Inferred(
            method=registered.base_method,
            custom_method=method,
            model=model,
            explicit=True,
            why=f"speculative.method names the registered method {method!r}, built on {registered.base_method}",
        )
    return Inferred(
        method=method,
        custom_method=None,
        model=model,
        explicit=True,
        why=f"speculative.method is {method!r}",
    )


def _guess(method: str | None, model: str | None, why: str) -> Inferred:
    return Inferred(method=method, custom_method=None, model=model, explicit=False, why=why)


def canonical(inferred: Inferred) -> Inferred:
    """The same with the one current name for the method: spellings per model family are deprecated."""
    if inferred.method not in ALIASES:
        return inferred
    note = Note(
        code="method_deprecated",
        text=f"speculative.method {inferred.method!r} is an old name of 'mtp', which finds the family itself; "
        "write mtp",
    )
    return attrs.evolve(
        inferred,
        method="mtp",
        why=f"{inferred.method!r} is a deprecated spelling of 'mtp'",
        notes=(*inferred.notes, note),
    )


def class_of(inferred: Inferred) -> type[SpeculatorConfig] | None:
    """The method's class, None while a checkpoint has to decide. Raises `SpecError` for an unknown name."""
    name = inferred.custom_method or inferred.method
    return None if name is None else speculator_config_class(name)
