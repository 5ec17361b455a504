"""What a converter carries over, what it leaves, and why: no setting of another engine is lost without a word."""

import enum
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from graphspec.annotations import alternatives, is_mapping
from graphspec.config.engine import EngineConfig
from graphspec.config.kernels import ATTENTION_BACKENDS
from graphspec.config.structure import structure_partial, unstructure
from graphspec.errors import Problem, SpecError
from graphspec.fields import field_types, is_config_class, policies
from graphspec.formats.document import Document
from graphspec.formats.json_reader import read_json
from graphspec.formats.read import read_document
from graphspec.text import did_you_mean, nearest, one_of, show

SOURCE = "model.source"
NOT_GIVEN = "not given"
"""What is found where the other engine takes a default of its own that is not graphspec's."""
Renamed = Mapping[str, str | None]
"""The name of a choice at another engine -> its name here, or None when it has none."""

_SECRETS = frozenset({"api_key", "admin_api_key", "hf_token", "ssl_keyfile_password", "key"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SIZE = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?([kmgtKMGT])")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@attrs.frozen(kw_only=True)
class Left:
    """A setting that was not carried over as it stands. `changed_to` is empty when nothing stands for it now."""

    where: str
    found: str
    why: str
    changed_to: str = ""

    def render(self) -> str:
        """One line of text."""
        became = f" became {self.changed_to}" if self.changed_to else ""
        return f"{self.where}: {self.found}{became}: {self.why}"


@attrs.frozen(kw_only=True)
class Carried:
    """The result of a conversion: plain data that the other side reads, and what could not be put into it."""

    data: Mapping[str, Any]
    left: tuple[Left, ...]


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of an engine by its own names: how each was written, and which (name, value, why) others replaced."""

    values: Mapping[str, Any]
    spelled: Mapping[str, str]
    problems: Sequence[Problem] = ()
    lost: Sequence[tuple[str, Any, str]] = ()


@attrs.frozen(kw_only=True)
class Grammar:
    """How an engine's settings are written, on its command line and as keys of a file.

    `kinds` says how a flag's text is read: flag, int, size, float, json, list, else text. `aliases` are other
    spellings of a name, with their dashes. `positional` names the setting of a bare word. `inverse` allows --no-x, and
    --disable-x for --enable-x. `nested` allows --x.key for one key of a mapping.
    """

    kinds: Mapping[str, str] = {}
    aliases: Mapping[str, str] = {}
    positional: str = ""
    inverse: bool = False
    nested: bool = False

    def resolve(self, flag: str) -> tuple[str, bool]:
        """The setting that a flag names, and whether the flag negates it."""
        name = self.aliases.get(flag) or flag.lstrip("-").replace("-", "_")
        if self.inverse and name not in self.kinds:
            for prefix, other in (("no_", ""), ("disable_", "enable_"), ("enable_", "disable_")):
                positive = other + name.removeprefix(prefix)
                if name.startswith(prefix) and self.kinds.get(positive) == "flag":
                    return positive, True
        return name, False


def read_size(text: str) -> int | None:
    """An integer, where 16k is 16000 and 16K is 16384, or None for any other text."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return int(text) if _INTEGER.fullmatch(text) else None
    whole, fraction, suffix = match[1], match[2] or "", match[3]
    power = "kmgt".index(suffix.lower()) + 1
    if suffix.isupper():
        return None if fraction else int(whole) * 1024**power
    return int(int(whole + fraction) * 1000**power // 10 ** len(fraction))


def read_text(text: str, kind: str, where: str) -> Any:
    """The value that a word of a command line stands for. Raises `SpecError` when it stands for none."""
    value: Any = text
    wanted = ""
    if kind == "json":
        value = read_json(text, where).data
    elif kind == "size":
        value, wanted = read_size(text), "an integer, or one with a suffix such as 16k"
    elif kind == "int":
        value, wanted = int(text) if _INTEGER.fullmatch(text) else None, "an integer"
    elif kind == "float":
        number = float(text) if _NUMBER.fullmatch(text) else math.inf
        value, wanted = number if math.isfinite(number) else None, "a number"
    if value is None and wanted:
        raise SpecError(Problem(where=where, found=show(text), wanted=wanted))
    return value


def read_words(words: Sequence[str], grammar: Grammar) -> Settings:
    """The settings that the words of a command line give, without the program's own name."""
    reader = _Reader(grammar, list(words))
    while reader.words:
        reader.step()
    return reader.settings()


def read_keys(mapping: Mapping[Any, Any], grammar: Grammar) -> Settings:
    """The settings that a mapping gives. Keys are names, or flags without their dashes."""
    reader = _Reader(grammar, [])
    for key, value in mapping.items():
        if isinstance(key, str):
            name, negated = grammar.resolve(f"--{key.replace('_', '-')}")
            reader.set(name, key, not value if negated and type(value) is bool else value)
        else:
            reader.report(show(key), "this key", "keys that are strings")
    return reader.settings()


def read_file(document: Document, grammar: Grammar) -> Settings:
    """`read_keys` of a file. Problems carry file and line."""
    if not isinstance(document.data, dict):
        wanted = "a mapping of settings"
        raise document.locate([Problem(where="", found=show(document.data), wanted=wanted)])
    found = read_keys(document.data, grammar)
    if found.problems:
        raise document.locate(found.problems)
    return found


def with_file(settings: Settings, grammar: Grammar) -> Settings:
    """The settings with those of the file that ``--config`` names. What the command line gives too, it wins."""
    values = dict(settings.values)
    path = values.pop("config", None)
    if not isinstance(path, str):
        return settings
    document = read_document(path)
    inner = read_file(document, grammar)
    lines = {k: f"{path}:{document.lines[(s,)]}: {s}" for k, s in inner.spelled.items()}
    why = "the command line gives it again, and wins"
    return attrs.evolve(
        settings,
        values={**inner.values, **values},
        spelled={**lines, **settings.spelled},
        lost=[(k, v, why) for k, v in inner.values.items() if k in values],
    )


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not re.match(r"-[0-9.]", word)


class _Reader:
    """Reads words one after another. A setting given twice is a problem, in whatever spelling."""

    def __init__(self, grammar: Grammar, words: list[str]) -> None:
        self.words = words
        self._grammar = grammar
        self._values: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._nested: set[str] = set()

    def settings(self) -> Settings:
        return Settings(values=self._values, spelled=self._spelled, problems=self._problems)

    def step(self) -> None:
        word = self.words.pop(0)
        flag, given, inline = word.partition("=") if _is_flag(word) else ("", "", word)
        head, dot, keys = flag.partition(".") if self._grammar.nested else (flag, "", "")
        positional = self._grammar.positional
        if dot:
            self._key(head, keys, inline if given else self._next(flag))
        elif flag:
            self._flag(flag, inline if given else None)
        elif positional and positional not in self._values:
            self.set(positional, positional, word)
        else:
            self.report("the command line", f"the word {show(word)}", "flags and their values")

    def _flag(self, flag: str, inline: str | None) -> None:
        name, negated = self._grammar.resolve(flag)
        kind = self._grammar.kinds.get(name)
        switch = flag.startswith(("--enable-", "--disable-", "--no-"))
        last = switch or not self.words or _is_flag(self.words[0])
        if kind == "flag" or (kind is None and inline is None and last):
            if inline is not None:
                self.report(flag, show(inline), "no value: the flag itself says it")
            self.set(name, flag, not negated)
        elif kind == "list" and inline is None:
            items = []
            while self.words and not _is_flag(self.words[0]):
                items.append(self.words.pop(0))
            self.set(name, flag, items)
        else:
            text = self._next(flag) if inline is None else inline
            try:
                if text is not None:
                    self.set(name, flag, read_text(text, kind or "text", flag))
            except SpecError as error:
                self._problems.extend(error.problems)

    def _key(self, head: str, keys: str, text: str | None) -> None:
        if text is None:
            return
        try:
            value = read_json(text, head).data
        except SpecError:
            size = read_size(text)
            value = text if size is None else size
        name, _ = self._grammar.resolve(head)
        if name not in self._nested:
            # Of a JSON value and single keys the engine keeps the later spelling, and drops all that the other says.
            self.set(name, head, {})
            self._nested.add(name)
        place = self._values[name]
        *parents, last = keys.removesuffix("+").split(".")
        for part in parents:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or (last in place and not keys.endswith("+")):
            self.report(f"{head}.{keys}", show(text), "one value for each key")
        elif keys.endswith("+"):
            place[last] = [*place.get(last, []), *text.split(",")]
        else:
            place[last] = value

    def _next(self, flag: str) -> str | None:
        if self.words and not _is_flag(self.words[0]):
            return self.words.pop(0)
        self.report(flag, "no value", "a value after the flag")
        return None

    def set(self, name: str, spelling: str, value: Any) -> None:
        if name in self._values:
            before = self._spelled[name]
            found = "this, given twice" if spelling == before else f"this, and {before} as well"
            self.report(spelling, found, f"one value for {name}")
        else:
            self._values[name] = value
            self._spelled[name] = spelling

    def report(self, where: str, found: str, wanted: str) -> None:
        self._problems.append(Problem(where=where, found=found, wanted=wanted))


def by_name(groups: Mapping[str, str]) -> Mapping[str, str]:
    """A reason for each name, from reasons that each have a list of names."""
    return {name: why for why, names in groups.items() for name in names.split()}


def _parts(path: str) -> tuple[Any, ...]:
    found: Any = EngineConfig
    for name in path.split("."):
        section = next(p for p in alternatives(found) if is_config_class(p))
        found = field_types(section)[name]
    return alternatives(found)


def kind_at(path: str) -> str:
    """How the text of a command line is read for the field at a dotted path of the config."""
    parts = _parts(path)
    if any(is_mapping(p) or typing.get_origin(p) is tuple for p in parts):
        return "json"
    kinds = {bool: "flag", int: "int", float: "float"}
    return next((kinds[p] for p in parts if p in kinds), "text")


def choices_at(path: str) -> tuple[str, ...]:
    """The names among which the field at `path` is a choice; none when it is not one."""
    if path.endswith("attention_backend"):
        return ("AUTO", *ATTENTION_BACKENDS)
    enums = (p for p in _parts(path) if isinstance(p, type) and issubclass(p, enum.Enum))
    return tuple(member.value for cls in enums for member in cls)


class Carrier:
    """Carries the settings of one engine, each exactly once. What is taken by nobody is left, with a reason."""

    def __init__(self, engine: str, settings: Settings, nulls: Iterable[str] = ()) -> None:
        self.engine = engine
        self._data: dict[str, Any] = {}
        self._open = dict(settings.values)
        self._spelled = dict(settings.spelled)
        self._problems = list(settings.problems)
        self._origin: dict[str, str] = {}
        self._asked: set[str] = set()
        self._left: list[Left] = []
        for name, value, why in settings.lost:
            self.leave(name, why, value)
        for name in [n for n, v in self._open.items() if v is None and n not in nulls]:
            self.leave(name, "no value: the engine's own default")

    def spelling(self, name: str) -> str:
        """The setting as the user wrote its name: a flag, or a key."""
        return self._spelled.get(name, name)

    def take(self, name: str) -> Any:
        """The value, which is then the caller's to place; None when it was not given."""
        self._asked.add(name)
        return self._open.pop(name, None)

    def number(self, name: str) -> int | None:
        """`take` for an integer; anything else is a problem, and None."""
        value = self.take(name)
        if type(value) is int:
            return value
        if value is not None:
            self.wrong(name, value, "an integer")
        return None

    def truth(self, name: str) -> bool:
        """`take` for a boolean; anything else is a problem, and False."""
        value = self.take(name)
        if value is False:
            self.leave(name, "off, which is as if it were not given", value)
        elif value is not None and value is not True:
            self.wrong(name, value, "true or false")
        return value is True

    def expand(self, name: str) -> bool:
        """Opens a setting that holds settings, as `name.key` each. False when there is nothing in it.

        A hyphen in a key stands for an underscore. A JSON text is read, as on a command line.
        """
        value = self.take(name)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = read_json(value, self.spelling(name)).data
            except SpecError as error:
                self._problems.extend(error.problems)
                return False
        if not isinstance(value, Mapping):
            if value is not None:
                self.wrong(name, value, "a mapping")
            return False
        if not value:
            self.leave(name, "it is empty", value)
        for key, item in value.items():
            inner = f"{name}.{key.replace('-', '_')}" if isinstance(key, str) else ""
            if not inner or inner in self._spelled:
                self.wrong(name, key, "keys that are strings, each once")
                continue
            self._spelled[inner] = f"{self.spelling(name)}.{key}"
            self._open[inner] = item
            if item is None:
                self.leave(inner, "no value: the engine's own default")
        return bool(value)

    def put(self, path: str, value: Any, name: str) -> None:
        """Writes a value at a dotted path of the config; `name` is the setting it comes from."""
        if path in self._origin:
            wanted = f"one of it and {self._origin[path]}, which mean the same"
            self.wrong(name, value, wanted)
            return
        self._origin[path] = self.spelling(name)
        section = self._data
        *parents, last = path.split(".")
        for part in parents:
            section = section.setdefault(part, {})
        section[last] = value

    def carry(self, name: str, path: str, renamed: Renamed | None = None) -> None:
        """Writes a setting, if given, to the field at `path`, under that field's own name for its value.

        A name that is renamed to None, and one that the field does not know, is left.
        """
        value = self.take(name)
        if value is None:
            return
        choices = choices_at(path)
        new = (renamed or {}).get(value, value) if isinstance(value, str) else value
        if isinstance(new, str) and choices and new not in choices:
            new = new.upper() if new.upper() in choices else None
        if new is None:
            self.leave(name, f"{path} has no such value; it is {one_of(choices)}", value)
            return
        if new != value:
            self.note(name, value, path, new, "graphspec's name for the same")
        self.put(path, new, name)

    def carry_all(self, rows: Mapping[str, str], renamed: Mapping[str, Renamed]) -> None:
        """`carry` for each row of a table of names and paths. `renamed` has the renamings of each path."""
        for name, path in rows.items():
            self.carry(name, path, renamed.get(path))

    def leave(self, name: str, why: str, value: Any = ...) -> None:
        """Reports a setting that nothing in the result stands for; `value` if it was taken before."""
        found = self.take(name) if value is ... else value
        self._left.append(Left(where=self.spelling(name), found=_shown(name, found), why=why))

    def note(self, name: str, value: Any, path: str, new: Any, why: str) -> None:
        """Reports a setting that was carried in another form."""
        self.leave(name, why, value)
        self._left[-1] = attrs.evolve(self._left[-1], changed_to=f"{path}: {new}")

    def missing(self, path: str, why: str) -> None:
        """Reports what the input does not say."""
        self._left.append(Left(where=path, found=NOT_GIVEN, why=why))

    def wrong(self, name: str, value: Any, wanted: str, hint: str = "") -> None:
        """Records a problem. All of them are raised together in the end."""
        where, found = self.spelling(name), _shown(name, value)
        self._problems.append(Problem(where=where, found=found, wanted=wanted, hint=hint))

    def finish(self, reasons: Mapping[str, str], absent: Mapping[str, str]) -> Carried:
        """The result. `reasons` say why a setting is left; `absent` what to know where a field is not given.

        Raises one `SpecError` with every problem, by the names that the user wrote.
        """
        for name in list(self._open):
            self.leave(name, self._reason(name, reasons))
        model = {"source": "?", **self._data.get("model", {})}
        _, found = structure_partial({**self._data, "model": model}, EngineConfig)
        problems = [*self._problems, *map(self._by_origin, found)]
        if problems:
            raise SpecError(problems)
        for path, why in absent.items():
            if path not in self._origin:
                self.missing(path, why)
        if SOURCE not in self._origin:
            self.missing(SOURCE, "every config names its model: give it")
        return Carried(data=self._data, left=tuple(self._left))

    def _reason(self, name: str, reasons: Mapping[str, str]) -> str:
        head = name
        while head:
            if head in reasons:
                return reasons[head]
            head = head.rpartition(".")[0]
        known = self._asked.union(reasons) - {name}
        hint = f"; {did_you_mean(name, known)}" if nearest(name, known) else ""
        return f"not a setting of {self.engine} that graphspec knows{hint}"

    def _by_origin(self, problem: Problem) -> Problem:
        path = problem.where
        while path and path not in self._origin:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        if not path:
            return problem
        return attrs.evolve(problem, where=self._origin[path] + problem.where[len(path) :])


class Exporter(Carrier):
    """Carries the fields of a config, by their paths, to the settings of an engine."""

    def __init__(self, engine: str, config: EngineConfig) -> None:
        leaves = dict(_leaves("", config))
        self._defaults = {path: default for path, (_, default) in leaves.items()}
        values = {path: value for path, (value, _) in leaves.items()}
        super().__init__(engine, Settings(values=values, spelled={}), nulls=values)

    def is_default(self, path: str, value: Any) -> bool:
        """True when the field at `path` holds that value unless it is set."""
        return bool(self._defaults.get(path) == value)

    def done(self, reasons: Mapping[str, str]) -> Carried:
        """The settings. A field that was set and that nobody took is left."""
        for path in [p for p, value in self._open.items() if not self.is_default(p, value)]:
            self.leave(path, reasons.get(path) or f"{self.engine} has no such setting")
        return Carried(data=self._data, left=tuple(self._left))


def _leaves(prefix: str, section: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    cls: type = type(section)
    for name in policies(cls):
        value, default = getattr(section, name), attrs.fields_dict(cls)[name].default
        if is_config_class(type(value)):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", (unstructure(value), unstructure(default))


def _shown(name: str, value: Any) -> str:
    return "(not shown)" if name.rpartition(".")[2] in _SECRETS else show(value)
