"""Speculative sections in a small engine: every method with a draft that fits it, resolved, refused, and changed."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from graphspec.config.engine import EngineConfig
from graphspec.errors import GraphspecError, Problem
from graphspec.fields import Stage
from graphspec.resolve import Resolution, check
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators import registry
from support.peer_cases import folder

Section = Mapping[str, Any]


@attrs.frozen
class Case:
    """A section that resolves, and the target that it resolves with."""

    target: str
    section: Section


def _case(target: str, **section: Any) -> Case:
    return Case(target, section)


CASES: Mapping[str, Case] = {
    "ngram": _case("target-llama", method="ngram", num_speculative_tokens=4),
    "ngram_gpu": _case("target-llama", method="ngram_gpu", num_speculative_tokens=4),
    "suffix": _case("target-llama", method="suffix", num_speculative_tokens=4),
    "draft_model": _case(
        "target-llama",
        method="draft_model",
        model=folder("draft-llama"),
        num_speculative_tokens=4,
    ),
    "draft_model parallel": _case(
        "target-llama",
        method="draft_model",
        model=folder("draft-llama"),
        num_speculative_tokens=4,
        parallel_drafting=True,
    ),
    "eagle": _case(
        "target-llama", method="eagle", model=folder("eagle-head"), num_speculative_tokens=4
    ),
    "eagle3": _case(
        "target-llama", method="eagle3", model=folder("eagle3-head"), num_speculative_tokens=4
    ),
    "eagle3 parallel": _case(
        "target-llama",
        method="eagle3",
        model=folder("eagle3-head"),
        num_speculative_tokens=4,
        parallel_drafting=True,
    ),
    "mtp": _case("target-deepseek-n1", method="mtp", num_speculative_tokens=4),
    "mtp multi-module": _case("target-deepseek-n2", method="mtp", num_speculative_tokens=4),
    "dflash": _case(
        "target-qwen3", method="dflash", model=folder("dflash-qwen3"), num_speculative_tokens=4
    ),
    "dspark": _case(
        "target-qwen3", method="dspark", model=folder("dspark-qwen3"), num_speculative_tokens=4
    ),
    "dspark fill-in": _case(
        "target-qwen3", method="dspark", model=folder("dspark-qwen3-fill"), num_speculative_tokens=4
    ),
    "extract_hidden_states": _case(
        "target-llama", method="extract_hidden_states", num_speculative_tokens=4
    ),
    "custom_class": _case(
        "target-llama",
        method="custom_class",
        model="package.module.Drafter",
        num_speculative_tokens=4,
    ),
}
"""Each method, and each variant that declares something else, by the method's name and the variant's."""

METHODS = tuple(dict.fromkeys(name.split()[0] for name in CASES))
"""The built-in methods."""


def engine(
    section: Section | None, target: str = "target-llama", **sections: Any
) -> dict[str, Any]:
    """Plain data of an engine with `section`. `target` is a peer model or a folder; keywords add to the sections."""
    source = target if "/" in target else folder(target)
    base: dict[str, Any] = {
        "model": {"source": source, "dtype": "bfloat16"},
        "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 8192},
        "kv_cache": {"num_blocks": 4096},
    }
    if section is not None:
        base["speculative"] = dict(section)
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values} if isinstance(values, Mapping) else values
    return base


def resolution(
    section: Section | None, target: str = "target-llama", **sections: Any
) -> Resolution:
    """What the engine with `section` comes to."""
    return check(engine(section, target, **sections))


def resolved(section: Section | None, target: str = "target-llama", **sections: Any) -> EngineSpec:
    """The contract of the engine with `section`."""
    return EngineConfig.from_dict(engine(section, target, **sections)).resolve()


def resolved_case(
    name: str, changes: Section | None = None, without: str = "", **sections: Any
) -> EngineSpec:
    """The contract of a case of `CASES` with fields of its section changed, or one left out."""
    return resolved(section_of(name, changes, without), CASES[name].target, **sections)


def section_of(name: str, changes: Section | None = None, without: str = "") -> dict[str, Any]:
    """The section of a case with fields changed, or one left out."""
    section = {**CASES[name].section, **(changes or {})}
    section.pop(without, None)
    return section


def refused(section: Section, target: str = "target-llama", **sections: Any) -> dict[str, Problem]:
    """The problems of an engine that is refused, by path; each has its parts."""
    made = resolution(section, target, **sections)
    assert made.spec is None, "it is accepted"
    assert isinstance(made.error(), GraphspecError)
    assert all(p.where and p.found and p.wanted for p in made.problems)
    return {p.where: p for p in made.problems}


def refused_case(
    name: str, changes: Section | None = None, without: str = "", **sections: Any
) -> dict[str, Problem]:
    """The problems of a case with fields of its section changed, or one left out."""
    return refused(section_of(name, changes, without), CASES[name].target, **sections)


def notes_of(spec: EngineSpec) -> dict[str, str]:
    """The texts of a contract's notes, by code."""
    return {note.code: note.text for note in spec.notes}


def keys_of(spec: EngineSpec) -> tuple[str, str]:
    """The COMPILE and the CAPTURE hash of a contract."""
    return spec.compute_hash(Stage.COMPILE), spec.compute_hash(Stage.CAPTURE)


def peer_config(name: str) -> dict[str, Any]:
    """The config.json of a peer model."""
    config: dict[str, Any] = json.loads((Path(folder(name)) / "config.json").read_text())
    return config


def variant(at: Path, name: str, without: str = "", **changes: Any) -> str:
    """A copy of a peer model's config in the folder `at`, with fields changed or some left out."""
    left_out = without.split()
    config = {k: v for k, v in peer_config(name).items() if k not in left_out}
    return checkpoint(at, {**config, **changes})


def checkpoint(at: Path, config: Mapping[str, Any]) -> str:
    """The folder `at` with this config.json."""
    at.mkdir(parents=True, exist_ok=True)
    (at / "config.json").write_text(json.dumps(dict(config)))
    return str(at)


@contextlib.contextmanager
def registered(name: str, cls: type) -> Iterator[None]:
    """A method registered for the time of a test."""
    registry.register_speculative_method(name, cls)
    try:
        yield
    finally:
        registry._registered.pop(name, None)
