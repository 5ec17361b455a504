"""Goldens that resolve anywhere: configs with the configs of their checkpoints beside them, locked and checked."""

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from graphspec.config.engine import EngineConfig
from graphspec.config.structure import unstructure
from graphspec.errors import GraphspecError, Problem, SpecError
from graphspec.fields import Stage, is_config_class, policies
from graphspec.frozen import thaw
from graphspec.keys import encoding
from graphspec.keys.golden import (
    Golden,
    GoldenFile,
    GoldenKey,
    advice,
    drift,
    golden_of,
    read_goldens,
    write_goldens,
)
from graphspec.resolve import check
from graphspec.resolve.checkpoint import read_checkpoint
from graphspec.resolve.spec import EngineSpec

Plain = dict[str, Any]
_DEFAULT = object()


class GoldenDriftError(GraphspecError):
    """A file of goldens would get other keys for the same configs under the same epoch."""

    exit_code = 1
    headline = "the goldens are not locked anew"


@attrs.frozen(kw_only=True)
class Verdict:
    """What became of one golden: the keys it has now, or why it has none, and what drifted, one line each."""

    name: str
    before: Golden
    after: Golden | None
    lines: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Report:
    """What became of a whole file. `advice` says what to do about it; empty when nothing is wrong."""

    epoch: int
    verdicts: tuple[Verdict, ...]
    advice: str

    @property
    def drifted(self) -> tuple[Verdict, ...]:
        """The goldens whose keys are not what they were."""
        return tuple(v for v in self.verdicts if v.lines)


def lock(path: str, configs: Mapping[str, Any] | None = None) -> GoldenFile:
    """Writes the keys of `configs`, plain data of engines by name, to a file of goldens, and returns what it says.

    Without `configs` those in the file are locked anew. Raises `SpecError` for a config that does not resolve, and
    `GoldenDriftError` where one that the file has already gets another key while the epoch stays the same.
    """
    before = read_goldens(path) if configs is None or os.path.exists(path) else None
    if configs is None:
        assert before is not None
        pinned = {name: _config_of(name, golden) for name, golden in before.goldens.items()}
        checkpoints = dict(before.checkpoints)
    else:
        checkpoints = {}
        pinned = {name: _pinned(name, data, checkpoints) for name, data in configs.items()}
    with _Checkpoints(checkpoints) as there:
        goldens = {
            name: golden_of(there.spec(name, config), config) for name, config in pinned.items()
        }
    made = GoldenFile(epoch=encoding.EPOCH, goldens=goldens, checkpoints=checkpoints)
    if before is not None:
        _refuse_drift(path, before, made)
    write_goldens(path, made)
    return made


def check_goldens(path: str) -> Report:
    """What each golden of a file has become. Reads nothing but that file."""
    file = read_goldens(path)
    with _Checkpoints(file.checkpoints) as there:
        verdicts = tuple(_verdict(n, g, there) for n, g in file.goldens.items())
    command = f"graphspec keys lock --output {path}"
    wrong = file.epoch != encoding.EPOCH or any(v.lines for v in verdicts)
    return Report(
        epoch=file.epoch,
        verdicts=verdicts,
        advice=advice(file.epoch, command) if wrong else "",
    )


def _verdict(name: str, before: Golden, there: "_Checkpoints") -> Verdict:
    try:
        after = golden_of(there.spec(name, _config_of(name, before)))
    except GraphspecError as error:
        lines = tuple(f"{name}: it no longer resolves: {p.render()}" for p in error.problems)
        return Verdict(name=name, before=before, after=None, lines=lines)
    return Verdict(name=name, before=before, after=after, lines=tuple(drift(name, before, after)))


def _config_of(name: str, golden: Golden) -> Mapping[str, Any]:
    if golden.config is None:
        raise SpecError(
            Problem(
                where=f"specs.{name}",
                found="keys without a config",
                wanted="a config to make the keys from again",
                hint="a golden of the pytest fixture is checked by its test; for this command write it with keys lock",
            )
        )
    return golden.config


def _refuse_drift(path: str, before: GoldenFile, made: GoldenFile) -> None:
    if before.epoch != made.epoch:
        return
    same = [
        name
        for name, golden in made.goldens.items()
        if name in before.goldens and _means(before, name) == _means(made, name)
    ]
    lines = [x for n in same for x in drift(n, before.goldens[n], made.goldens[n])]
    if lines:
        raise GoldenDriftError(
            Problem(
                where=path,
                found="goldens of the same configs with other keys\n" + "\n".join(lines),
                wanted="another epoch in the same commit, or the same keys",
                hint=advice(before.epoch, f"graphspec keys lock --output {path}"),
            )
        )


def _means(file: GoldenFile, name: str) -> Any:
    """What decides the keys of a golden: its config, and what its checkpoints say."""
    config = file.goldens[name].config or {}
    said: list[Any] = []

    def look_up(source: str) -> str:
        said.append(file.checkpoints.get(source))
        return source

    _relocated(config, look_up)
    return config, said


class _Checkpoints:
    """The configs of checkpoints as folders, for the time of a block, and what resolves with them."""

    def __init__(self, configs: Mapping[str, Any]) -> None:
        self._configs = configs

    def __enter__(self) -> "_Checkpoints":
        self._temporary = tempfile.TemporaryDirectory(prefix="graphspec-")
        for name, config in self._configs.items():
            folder = os.path.join(self._temporary.name, name)
            os.mkdir(folder)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
        return self

    def __exit__(self, *raised: object) -> None:
        self._temporary.cleanup()

    def keys(self, config: Mapping[str, Any]) -> Mapping[Stage, GoldenKey] | None:
        """The keys of a pinned config; None when it does not resolve."""
        made = check(_relocated(config, self._place))
        return None if made.spec is None else golden_of(made.spec).keys

    def spec(self, name: str, config: Mapping[str, Any]) -> EngineSpec:
        """The contract of a pinned config. Raises `SpecError` with its name in front of the paths."""
        made = check(_relocated(config, self._place))
        if made.spec is None:
            raise SpecError(p.under(name) for p in made.problems)
        return made.spec

    def _place(self, source: str) -> str:
        return os.path.join(self._temporary.name, source) if source in self._configs else source


def _relocated(config: Mapping[str, Any], place: Callable[[str], str]) -> Plain:
    """A copy in which each place of a checkpoint is what `place` makes of it."""
    data: Plain = thaw(config)
    for section, field in (("model", "source"), ("speculative", "model")):
        inside = data.get(section)
        if isinstance(inside, dict) and isinstance(inside.get(field), str):
            inside[field] = place(inside[field])
    return data


def _pinned(name: str, data: Any, checkpoints: dict[str, Any]) -> Plain:
    """The config with names in `checkpoints` for places, and without what its keys do not depend on.

    So nothing of one machine, and no secret, is in a file that people commit. `checkpoints` grows by those of the config.
    """
    made = check(data)
    if made.spec is None:
        error = made.error()
        raise type(error)(p.under(name) for p in error.problems)
    spec, config = made.spec, EngineConfig.from_dict(data)
    names = {spec.model.source: _add(checkpoints, spec.model.source)}
    draft = spec.speculative.draft_model if spec.speculative is not None else None
    if draft is not None and draft.source not in names:
        own = draft.source == config.model.weights
        names[draft.source] = names[spec.model.source] if own else _add(checkpoints, draft.source)
    pinned = _relocated(unstructure(config), lambda source: names.get(source, source))
    wanted = golden_of(spec).keys
    with _Checkpoints(checkpoints) as there:
        for path, value in _unkeyed(config):
            changed = _with(pinned, path, value)
            if there.keys(changed) == wanted:
                pinned = changed
        if there.keys(pinned) != wanted:
            raise SpecError(
                Problem(
                    where=f"{name}.speculative.model",
                    found="keys that depend on where the checkpoints lie",
                    wanted="a config that means the same in any folder",
                    hint="name the method in speculative.method: without it, a folder's name may tell it",
                )
            )
    return pinned


def _add(checkpoints: dict[str, Any], source: str) -> str:
    """The name under which `checkpoints` has what the checkpoint at `source` says: the folder's own where it is free."""
    config = thaw(read_checkpoint(source))
    stem = os.path.basename(os.path.abspath(source.removeprefix("package:"))) or "checkpoint"
    names = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
    name = next(n for n in names if checkpoints.get(n, config) == config)
    checkpoints[name] = config
    return name


def _unkeyed(section: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every unkeyed field that is set, with another value for it: its default, or the least that is allowed."""
    for name, policy in policies(type(section)).items():
        value, default = getattr(section, name), attrs.fields_dict(type(section))[name].default
        if is_config_class(type(value)):
            yield from _unkeyed(value, (*path, name))
        elif policy.stage is None and default is attrs.NOTHING:
            if policy.minimum is not None:
                yield (*path, name), policy.minimum
        elif policy.stage is None and value != default:
            yield (*path, name), _DEFAULT


def _with(config: Plain, path: tuple[str, ...], value: Any) -> Plain:
    changed: Plain = thaw(config)
    section = changed
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    if value is _DEFAULT:
        del section[path[-1]]
    return changed
