"""Steps 4 to 6: where the draft lies, what its checkpoint declares, and the class that fits it."""

import attrs

from graphspec.config.model import ModelConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import Problem, SpecError
from graphspec.frozen import FrozenMap
from graphspec.resolve.infer import Inferred, class_of
from graphspec.resolve.records import Note
from graphspec.speculators import checkpoint
from graphspec.speculators.base import SpeculatorConfig
from graphspec.speculators.registry import (
    DETECTION_ORDER,
    known_methods,
    registered_class,
    registered_speculative_methods,
    speculator_config_class,
)
from graphspec.text import one_of, show


@attrs.frozen(kw_only=True)
class Chosen:
    """The method and its class, settled. `method` is a built-in name, `custom_method` a registered one."""

    method: str
    custom_method: str | None
    cls: type[SpeculatorConfig]
    why: str
    notes: tuple[Note, ...] = ()

    @property
    def name(self) -> str:
        """The name that the user knows the method by."""
        return self.custom_method or self.method


def draft_source(inferred: Inferred, section: SpeculativeConfig, target: ModelConfig) -> str | None:
    """Where the draft's checkpoint lies; None for methods without one. Opens no file.

    Raises `SpecError` when the method needs a model, has no default and none is given, or takes none and one is given.
    """
    cls = class_of(inferred)
    if cls is None:
        return inferred.model
    name = inferred.custom_method or inferred.method
    if not cls.has_draft_model:
        if inferred.model is not None and inferred.method in ("ngram", "ngram_gpu", "suffix"):
            raise SpecError(
                Problem(
                    where="speculative.model",
                    found=f"{show(inferred.model)} with method {name}, which runs no model",
                    wanted="no value for this method",
                    hint="drop it, or choose a method with a draft model",
                )
            )
        return None
    source = inferred.model or cls.default_model(section, target)
    if source is None:
        raise SpecError(
            Problem(
                where="speculative.model",
                found=f"nothing (null) for method {name}",
                wanted="the draft's checkpoint",
                hint=f"name a Hugging Face folder or a .gguf file in speculative.model; {name} has no default"
                if inferred.explicit
                else "name it in speculative.model, or set speculative.method, for instance to ngram",
            )
        )
    return source


def choose(inferred: Inferred, source: str | None, config: FrozenMap | None) -> Chosen:
    """The method and class for a draft whose checkpoint says `config`; both None for methods without one.

    A method that the user named stays, and `SpecError` says so when the checkpoint is of another kind; one that names a
    registered method on top of the user's runs as that. Without a named method the checkpoint's own declaration
    decides, then its path, then whether it is a complete model.
    """
    if config is None or source is None:
        cls = class_of(inferred)
        assert cls is not None
        assert inferred.method is not None
        return Chosen(
            method=inferred.method,
            custom_method=inferred.custom_method,
            cls=cls,
            why=inferred.why,
            notes=inferred.notes,
        )
    if inferred.method is None:
        return _detected(inferred, source, config)
    cls = class_of(inferred)
    assert cls is not None
    own = _more_special(cls, config)
    if own is not None:
        return Chosen(
            method=inferred.method,
            custom_method=own,
            cls=registered_class(own) or cls,
            why=f"{inferred.why}, and its checkpoint names {own!r}, which builds on it",
            notes=inferred.notes,
        )
    _refuse_other_kind(inferred, cls, source, config)
    return Chosen(
        method=inferred.method,
        custom_method=inferred.custom_method,
        cls=cls,
        why=inferred.why,
        notes=inferred.notes,
    )


def declared_method(config: FrozenMap) -> str | None:
    """The method that a checkpoint's config declares, by structural facts and never by its path."""
    own = config.get("speculator_config_class")
    if isinstance(own, str) and own in known_methods():
        return own
    for name in (*DETECTION_ORDER, *registered_speculative_methods()):
        cls = registered_class(name) or speculator_config_class(name)
        # A subclass that inherits its parent's test would claim the parent's checkpoints.
        own_test = "declares" in vars(cls) or name in DETECTION_ORDER
        if own_test and cls.declares(config):
            return name
    return None


def _detected(inferred: Inferred, source: str, config: FrozenMap) -> Chosen:
    name = declared_method(config)
    why = f"the checkpoint declares it: {_described(config)}"
    if name is None:
        classes = ((n, speculator_config_class(n)) for n in DETECTION_ORDER)
        name = next((n for n, cls in classes if cls.matches(source.lower(), config)), None)
        why = f"its path is {source!r}, and the checkpoint declares nothing"
    if name is None and checkpoint.is_whole_model(config):
        name, why = "draft_model", f"the checkpoint is a complete model: {_described(config)}"
    if name is None:
        raise SpecError(
            Problem(
                where="speculative.method",
                found=f"nothing (null), and {source} does not say what it is ({_described(config)})",
                wanted=one_of(known_methods()),
                hint="name the method: a wrong guess would run and keep almost no draft",
            )
        )
    cls = registered_class(name) or speculator_config_class(name)
    note = Note(
        code="method_inferred", text=f"speculative.method is taken to be {name!r}, since {why}"
    )
    return Chosen(
        method=str(cls.base_method),
        custom_method=name if registered_class(name) is not None else None,
        cls=cls,
        why=why,
        notes=(*inferred.notes, note),
    )


def _refuse_other_kind(
    inferred: Inferred, cls: type[SpeculatorConfig], source: str, config: FrozenMap
) -> None:
    name = inferred.custom_method or inferred.method
    declared = declared_method(config)
    ours = {inferred.method, inferred.custom_method}
    if declared is not None and declared not in ours | cls.trusted_declarations:
        raise SpecError(
            Problem(
                where="speculative.method",
                found=f"{name} for {source}, whose checkpoint is of kind {declared} ({_described(config)})",
                wanted=f"{declared} for this checkpoint, or a checkpoint of kind {name}",
                hint=f"set speculative.method to {declared}, or leave it out",
            )
        )
    structural = inferred.method in ("mtp", "dflash")
    if declared is None and structural and checkpoint.is_whole_model(config):
        raise SpecError(
            Problem(
                where="speculative.model",
                found=f"{source}, a complete model without {name} modules ({_described(config)})",
                wanted=f"a checkpoint with {name} modules",
                hint="the checkpoint, not the method, is what does not fit; name another, or choose another method",
            )
        )


def _more_special(cls: type[SpeculatorConfig], config: FrozenMap) -> str | None:
    """The registered method that the checkpoint names itself, if its class is a form of `cls` with the same base."""
    own = config.get("speculator_config_class")
    if not isinstance(own, str):
        return None
    named = registered_class(own)
    fits = named is not None and issubclass(named, cls) and named.base_method == cls.base_method
    return own if fits else None


def _described(config: FrozenMap) -> str:
    parts = [*checkpoint.architectures(config)]
    if checkpoint.model_type(config):
        parts.append(f"model_type {checkpoint.model_type(config)}")
    if checkpoint.algorithm(config):
        parts.append(f"algorithm {checkpoint.algorithm(config)}")
    return ", ".join(parts) or "no class name and no model_type"
