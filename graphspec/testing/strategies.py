"""Hypothesis strategies for configs: valid ones of every class, near misses, and pairs that differ in one field.

Values come from the fields' own metadata. What the rules of a class ask of several fields together is written down
here once, as the values that one field can take beside the others (`_BESIDE`): valid objects are built by such steps,
and a pair that differs in one field is one step more.
"""

import enum
import functools
import math
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
from hypothesis import reject
from hypothesis import strategies as st

from graphspec.annotations import alternatives, is_mapping
from graphspec.config.compilation import CompilationConfig, CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.kernels import ATTENTION_BACKENDS, KernelConfig
from graphspec.config.model import Dtype, ModelConfig, ModelSpec
from graphspec.config.schedule import KSchedule, Range
from graphspec.config.speculative import RejectionSampleMethod, SpeculativeConfig
from graphspec.config.structure import unstructure
from graphspec.errors import SpecError
from graphspec.fields import FieldPolicy, Stage, evolve, field_types, is_config_class, policies
from graphspec.frozen import JsonValue, freeze

T = TypeVar("T")
Values = st.SearchStrategy[Any]
Plain = dict[str, Any]
Folder = str | os.PathLike[str]
_Beside = Callable[[Mapping[str, Any]], Mapping[str, Values | None]]
_NONE = type(None)
_types = functools.cache(field_types)
_MOST_FIELDS = 6


def _reachable(cls: type) -> Iterator[type]:
    yield cls
    for annotation in field_types(cls).values():
        for part in filter(is_config_class, alternatives(annotation)):
            yield from _reachable(part)


CONFIG_CLASSES: tuple[type, ...] = tuple(
    dict.fromkeys([*_reachable(EngineConfig), ModelSpec, KSchedule])
)
"""Every class of `graphspec.config`. `configs` makes each without throwing an example away."""


@attrs.frozen(kw_only=True)
class HashPair:
    """Two valid objects that differ in the field at `path`. `policies` are those of the fields on the way to it."""

    one: Any
    other: Any
    path: str
    policies: tuple[FieldPolicy, ...]

    @property
    def policy(self) -> FieldPolicy:
        """The policy of the field itself."""
        return self.policies[-1]

    @property
    def stage(self) -> Stage | None:
        """The field's stage in the whole: as weak as the weakest section on the way. None: no key contains it."""
        stages = [policy.stage for policy in self.policies]
        if None in stages:
            return None
        return Stage.CAPTURE if Stage.CAPTURE in stages else Stage.COMPILE


def configs(cls: type[T]) -> st.SearchStrategy[T]:
    """Valid objects of a config class, most fields at their defaults.

    A class of your own works too. Where its rules span fields, examples that break them are thrown away.

    >>> from hypothesis import find
    >>> from graphspec.config.scheduler import SchedulerConfig
    >>> find(plain(configs(SchedulerConfig)), lambda data: data.get("max_num_seqs", 64) > 64)
    {'max_num_seqs': 65}
    """
    return _instances(cls)


def plain(values: Values) -> Values:
    """The plain data of configs, as `structure` takes it and a file holds it."""
    return values.map(unstructure)


def hash_pairs(cls: type) -> st.SearchStrategy[HashPair]:
    """Pairs of valid objects of `cls` that differ in exactly one field, of `cls` or of a section inside."""
    return configs(cls).flatmap(_changed)


def near_misses(cls: type) -> st.SearchStrategy[tuple[Plain, Plain, str]]:
    """Valid plain data, the same with one thing wrong, and the path that the one problem names.

    Wrong are: a type, a bound, a length, NaN or infinity, the spelling of a key or of an enum's value, a missing key.
    """
    return plain(configs(cls)).flatmap(lambda data: _missed(cls, data))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Range, ...]:
    """A table of draft depths that keeps the rules, in any order: ranges with gaps between them, the first from 1."""
    first, ranges = 1, []
    for _ in range(draw(st.integers(1, 4))):
        last = first + draw(st.integers(0, 6))
        ranges.append((first, last, draw(st.integers(0, 6))))
        first = last + 1 + draw(st.integers(0, 4))
    return tuple(draw(st.permutations(ranges)))


def sections(longest: int = 256) -> st.SearchStrategy[Plain]:
    """Plain data of an `EngineConfig` that keeps the rules between sections too, all but ``model.source``.

    It resolves for any Llama checkpoint of at least `longest` positions, with n-gram drafts or none.
    """
    return (st.none() | _drafting("ngram", None)).flatmap(lambda data: _sections(data, longest))


@st.composite
def engine_configs(
    draw: st.DrawFn, target_folder: Folder, draft_folders: Mapping[str, Folder], longest: int = 256
) -> Plain:
    """Complete plain data for the checkpoint in `target_folder`: any method or none, several devices, any verification.

    `draft_folders` has the draft checkpoint by method; a method that needs one and has none there is left out. The data
    is valid as far as types and the rules of sections go: resolving may refuse what a checkpoint forbids.
    """
    usable = [m for m in _OPTIONS if m in draft_folders or m not in _NEEDS_FOLDER]
    method = draw(st.sampled_from([None, *usable]))
    speculative = draw(_drafting(method, draft_folders.get(method))) if method else None
    data = draw(_sections(speculative, longest))
    size, replicas = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2]))
    parallel = {"tensor_parallel_size": size, "data_parallel_size": replicas}
    if speculative and method in _NEEDS_FOLDER:
        speculative["draft_tensor_parallel_size"] = draw(st.sampled_from([1, size]))
    compilation = draw(plain(_instances(CompilationConfig, {}, _COMPILATION)))
    model = {"source": os.fspath(target_folder), **data["model"]}
    return {**data, "model": model, "parallel": parallel, "compilation": compilation}


@st.composite
def _instances(
    draw: st.DrawFn, cls: type, start: Plain | None = None, names: Sequence[str] | None = None
) -> Any:
    fields = attrs.fields_dict(cls)
    now = {name: f.default for name, f in fields.items() if f.default is not attrs.NOTHING}
    options = list(now) if names is None else names
    chosen = draw(st.lists(st.sampled_from(options or [""]), unique=True, max_size=_MOST_FIELDS))
    now |= draw(_TOGETHER.get(cls, st.just({}))) if start is None else start
    for name in fields:
        values = _values(cls, name, now) if name in chosen or name not in now else None
        if values is not None:
            now[name] = draw(values)
    try:
        return cls(**now)
    except SpecError:
        if cls in CONFIG_CLASSES:
            raise
        reject()


def _values(cls: type, name: str, now: Mapping[str, Any]) -> Values | None:
    """Values that `name` can take while all other fields stay as they are. None: it cannot change alone."""
    annotation, before = _types(cls)[name], now.get(name, attrs.NOTHING)
    special = _beside(cls, now)
    if name not in special:
        return _typed(annotation, policies(cls)[name], before is not None)
    values = special[name]
    if values is None or before is None or name in (_RATES, _LENGTH):
        return values
    return values | st.none() if _NONE in alternatives(annotation) else values


@functools.cache
def _typed(annotation: Any, policy: FieldPolicy, none: bool = True) -> Values:
    parts = [p for p in alternatives(annotation) if none or p is not _NONE]
    if all(p in (bool, _NONE) or _is_enum(p) for p in parts):
        few: Mapping[Any, list[Any]] = {bool: [False, True], _NONE: [None]}
        return st.sampled_from([v for p in parts for v in few.get(p, p)])
    return st.one_of([_one(p, policy) for p in parts])


def _one(part: Any, policy: FieldPolicy) -> Values:
    low, high = policy.minimum, policy.maximum
    if part is int:
        least = None if low is None else math.ceil(low)
        most = None if high is None else math.floor(high)
        return st.integers(least, most)
    if part is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    if part in (str, JsonValue, Any):
        return _text if part is str else _json
    if is_config_class(part):
        return configs(part)
    if is_mapping(part):
        return _mapping
    if typing.get_origin(part) is tuple:
        items = typing.get_args(part)
        if items[-1] is Ellipsis:
            return st.lists(_typed(items[0], policy), max_size=4).map(tuple)
        return st.tuples(*(_typed(item, policy) for item in items))
    if part in (bool, _NONE) or _is_enum(part):
        return _typed(part, policy)
    raise TypeError(f"no values are known for a field of type {part!r}")


def _is_enum(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, enum.Enum)


_text = st.text(st.characters(codec="utf-8"), max_size=8)
_finite = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _finite | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=4,
).map(freeze)
_mapping = st.dictionaries(_text, _json, max_size=3).map(freeze)
_dense = st.lists(st.integers(0, 6), min_size=1, max_size=8).map(lambda depths: (0, *depths))
_import_name = st.from_regex(r"[a-z]{1,4}(\.[a-z]{1,4})?:[a-z]{1,4}", fullmatch=True)
_backend = st.sampled_from([*ATTENTION_BACKENDS, "auto", "Auto", "flash_attn"])
_FLY: Mapping[str, Values] = {
    "fly_entropy_threshold": st.floats(0, 8),
    "fly_entropy_top_k": st.integers(1, 64),
}
_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"


def _rates(count: int | None) -> Values:
    probabilities = st.lists(st.floats(0, 1), min_size=count or 1, max_size=count or 6)
    return probabilities.map(lambda rates: tuple(sorted(rates, reverse=True)))


@functools.cache
def _verification(k: int | None) -> st.SearchStrategy[Plain]:
    """Fields of verification that can only be set together, for a depth or for none that is stated."""
    name, how = "rejection_sample_method", RejectionSampleMethod
    choices = [
        st.just({}),
        st.fixed_dictionaries({name: st.just(how.SYNTHETIC), _RATES: _rates(k)}),
        st.fixed_dictionaries({name: st.just(how.SYNTHETIC), _LENGTH: st.floats(1, (k or 7) + 1)}),
    ]
    if k is None or k > 1:
        more = {"fly_window_size": st.integers(1, min(8, (k or 9) - 1)), **_FLY}
        choices.append(st.fixed_dictionaries({name: st.just(how.FLY)}, optional=more))
    return st.one_of(choices)


def _beside_speculative(now: Mapping[str, Any]) -> Mapping[str, Values | None]:
    k, how, rates = now["num_speculative_tokens"], now["rejection_sample_method"], now[_RATES]
    length, low, high = now[_LENGTH], now["prompt_lookup_min"], now["prompt_lookup_max"]
    fly = how is RejectionSampleMethod.FLY
    least = max(1, math.ceil(length or 0) - 1, 1 + fly, 1 + (now["fly_window_size"] or 0))
    depths = st.integers(least, least + 6) | st.integers(least, 1024)
    kept = [name for name in (_RATES, _LENGTH, "fly_window_size", *_FLY) if now[name] is not None]
    free = [
        m for m in RejectionSampleMethod if m.value != "synthetic" and (k, m.value) != (1, "fly")
    ]
    return {
        "method": st.sampled_from(list(_OPTIONS)),
        "tensor_parallel_size": None,
        "num_speculative_tokens": st.just(len(rates)) if rates else depths,
        "num_speculative_tokens_per_batch_size": tables(),
        "attention_backend": _backend,
        "dspark_draft_topk": st.integers(1, 64),
        "prompt_lookup_min": st.integers(1, high or 16),
        "prompt_lookup_max": st.integers(low or 1, (low or 1) + 16),
        "rejection_sample_method": None if kept else st.sampled_from(free),
        _RATES: _rates(k) if rates else None,
        _LENGTH: None if length is None else st.floats(1, (k or 7) + 1),
        "fly_window_size": st.integers(1, min(8, (k or 9) - 1)) if fly else None,
        **{name: values if fly else None for name, values in _FLY.items()},
    }


def _beside_model_spec(now: Mapping[str, Any]) -> Mapping[str, Values | None]:
    heads, groups = now.get("num_attention_heads", 1), now.get("num_key_value_heads", 1)
    divisors = [n for n in range(1, heads + 1) if heads % n == 0 and n != groups]
    if "num_key_value_heads" not in now:
        divisors.append(1)
    return {
        "num_attention_heads": st.integers(1, 32).map(lambda n: n * groups),
        "num_key_value_heads": st.sampled_from(divisors) if divisors else None,
    }


_BESIDE: Mapping[type, _Beside] = {
    SpeculativeConfig: _beside_speculative,
    ModelSpec: _beside_model_spec,
    ModelConfig: lambda _: {"hf_overrides": _import_name | _mapping},
    KernelConfig: lambda _: {"attention_backend": _backend},
    KSchedule: lambda _: {"dense": _dense},
    EngineConfig: lambda _: {"program": _import_name},
}
"""By class, the fields that rules or their meaning restrict beyond type and bounds. None: it cannot change alone."""

_TOGETHER: Mapping[type, st.SearchStrategy[Plain]] = {SpeculativeConfig: _verification(None)}


def _beside(cls: type, now: Mapping[str, Any]) -> Mapping[str, Values | None]:
    return _BESIDE[cls](now) if cls in _BESIDE else {}


@st.composite
def _changed(draw: st.DrawFn, section: Any) -> HashPair:
    cls: type = type(section)
    now = {name: getattr(section, name) for name in policies(cls)}
    fixed = {n for n, values in _beside(cls, now).items() if values is None}
    name = draw(st.sampled_from([n for n in now if n not in fixed]))
    policy, values = policies(cls)[name], _values(cls, name, now)
    if is_config_class(type(now[name])):
        rest = [p for p in alternatives(_types(cls)[name]) if not is_config_class(p)]
        if not rest or draw(st.booleans()):
            pair = draw(_changed(now[name]))
            return HashPair(
                one=section,
                other=evolve(section, **{name: pair.other}),
                path=f"{name}.{pair.path}",
                policies=(policy, *pair.policies),
            )
        values = st.one_of([_typed(part, policy) for part in rest])
    assert values is not None
    other = evolve(section, **{name: draw(values.filter(lambda value: value != now[name]))})
    return HashPair(one=section, other=other, path=name, policies=(policy,))


_KINDS: Mapping[type, Values] = {
    str: st.sampled_from(["7", "1.5", "true", "null", ""]) | _text,
    float: st.integers(-8, 8).map(float) | _finite,
    bool: st.booleans(),
    int: st.integers(),
    _NONE: st.none(),
    list: st.lists(st.integers(), max_size=2),
    dict: st.dictionaries(_text, st.integers(), max_size=2),
}
"""Kinds of plain value. The first that a field does not take is drawn most often."""

_NO_NUMBERS = (math.nan, math.inf, -math.inf)


def _takes(part: Any) -> Sequence[type]:
    if part in (JsonValue, Any):
        return list(_KINDS)
    if part in _KINDS:
        return (int, float) if part is float else (part,)
    if _is_enum(part):
        return (str,)
    return (list,) if typing.get_origin(part) is tuple else (dict,)


@st.composite
def _missed(draw: st.DrawFn, cls: type, data: Plain) -> tuple[Plain, Plain, str]:
    name = draw(st.sampled_from(list(policies(cls))))
    annotation, now = _types(cls)[name], data.get(name)
    required = attrs.fields_dict(cls)[name].default is attrs.NOTHING
    kind = draw(st.sampled_from(["value"] * 4 + ["key"] + ["missing"] * required))
    if kind == "missing":
        return data, {n: v for n, v in data.items() if n != name}, name
    if kind == "key":
        key = draw(st.sampled_from([t for t in _typos(name) if t not in policies(cls)]))
        return data, {**data, key: now}, key
    inside = [p for p in alternatives(annotation) if is_config_class(p)]
    if draw(st.booleans()) and inside:
        section = now if isinstance(now, dict) else draw(plain(configs(inside[0])))
        valid, broken, path = draw(_missed(inside[0], section))
        return {**data, name: valid}, {**data, name: broken}, f"{name}.{path}"
    bad, path = draw(_bad(annotation, policies(cls)[name], now))
    return data, {**data, name: bad}, name + path


def _typos(name: str) -> list[str]:
    return [name[:-1], name + name[-1], name.swapcase(), f"{name} "]


def _bad(annotation: Any, policy: FieldPolicy, now: Any) -> st.SearchStrategy[tuple[Any, str]]:
    """Values that the annotation or the bounds refuse, each with the place inside of it that is refused."""
    choices = [_bad_whole(annotation, policy)]
    for part in alternatives(annotation):
        if is_mapping(part):
            held = now if isinstance(now, dict) else {}
            choices += [st.just(({**held, "rate": bad}, ".rate")) for bad in _NO_NUMBERS]
        elif typing.get_origin(part) is tuple:
            choices.append(_bad_list(part, policy, now))
    return st.one_of(choices)


@functools.cache
def _bad_whole(annotation: Any, policy: FieldPolicy) -> st.SearchStrategy[tuple[Any, str]]:
    parts = alternatives(annotation)
    taken = {kind for part in parts for kind in _takes(part)}
    kinds = [values for kind, values in _KINDS.items() if kind not in taken]
    beyond = [values for part in parts for values in _beyond(part, policy)]
    groups = [_evenly(group) for group in (kinds, beyond) if group]
    return st.tuples(_evenly(groups), st.just(""))


def _evenly(choices: Sequence[Values]) -> Values:
    # one_of would give each branch of a nested one_of the odds of a whole choice.
    return st.integers(0, len(choices) - 1).flatmap(choices.__getitem__)


def _beyond(part: Any, policy: FieldPolicy) -> Iterator[Values]:
    low, high = policy.minimum, policy.maximum
    if _is_enum(part):
        names = [member.value for member in part]
        yield st.sampled_from([t for name in names for t in _typos(name) if t not in names])
    if part is float:
        yield st.sampled_from(_NO_NUMBERS)
        if low is not None:
            yield st.floats(max_value=low, exclude_max=True, allow_infinity=False)
        if high is not None:
            yield st.floats(min_value=high, exclude_min=True, allow_infinity=False)
    if part is int and low is not None:
        yield st.integers(max_value=math.ceil(low) - 1)
    if part is int and high is not None:
        yield st.integers(min_value=math.floor(high) + 1)


@st.composite
def _bad_list(draw: st.DrawFn, part: Any, policy: FieldPolicy, now: Any) -> tuple[Any, str]:
    items = typing.get_args(part)
    valid = now if isinstance(now, list) and now else draw(plain(_one(part, policy)))
    if items[-1] is not Ellipsis and draw(st.booleans()):
        return [*valid[:-1], *valid[-1:] * draw(st.sampled_from([0, 2]))], ""
    valid = valid or [draw(plain(_typed(items[0], policy)))]
    at = draw(st.integers(0, len(valid) - 1))
    bad, path = draw(_bad(items[0 if items[-1] is Ellipsis else at], policy, valid[at]))
    return [*valid[:at], bad, *valid[at + 1 :]], f"[{at}]{path}"


_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
_DRAFT = "enforce_eager moe_backend attention_backend kv_cache_dtype draft_sample_method".split()
_HEAD = (*_DRAFT, "draft_lm_head_quantization", "disable_eagle_block_drop")
_OPTIONS: Mapping[str, Sequence[str]] = {
    "ngram": _LOOKUP,
    "ngram_gpu": _LOOKUP,
    "suffix": [name for name in policies(SpeculativeConfig) if name.startswith("suffix_")],
    "draft_model": (*_DRAFT, "parallel_drafting", "use_local_argmax_reduction"),
    "eagle": (*_HEAD, "disable_padded_drafter_batch"),
    "eagle3": (*_HEAD, "disable_padded_drafter_batch", "parallel_drafting"),
    "mtp": (*_HEAD, "index_share_for_mtp_iteration"),
    "dflash": (*_DRAFT, "xpress_topc"),
    "dspark": (*_DRAFT, "dspark_draft_topk", "enable_adaptive_verification"),
    "extract_hidden_states": (),
}
"""Fields of the speculative section that each method reads, of those that no checkpoint decides."""

_NEEDS_FOLDER = frozenset({"draft_model", "eagle", "eagle3", "dflash", "dspark"})
_COMPILATION = "cudagraph_mode runner compile_mode attention_support enforce_eager".split()


@st.composite
def _drafting(draw: st.DrawFn, method: str, folder: Folder | None) -> Plain:
    proposes = method != "extract_hidden_states"
    k = draw(st.integers(1, 6 if proposes else 1))
    start: Plain = {"method": method, "num_speculative_tokens": k}
    names = list(_OPTIONS[method])
    if proposes:
        start |= draw(_verification(k))
        names.append("num_speculative_tokens_per_batch_size")
    if folder is not None:
        start["model"] = os.fspath(folder)
    data: Plain = draw(plain(_instances(SpeculativeConfig, start, names)))
    return data


@st.composite
def _sections(draw: st.DrawFn, speculative: Plain | None, longest: int) -> Plain:
    requests, length = draw(st.integers(1, 12)), draw(st.integers(2, longest))
    k = speculative["num_speculative_tokens"] if speculative else 0
    block = draw(st.sampled_from([1, 4, 16]))
    return {
        "model": {
            "dtype": draw(st.sampled_from([dtype.value for dtype in Dtype])),
            "max_model_len": length,
            "hf_overrides": draw(st.sampled_from([{}, {"rope_theta": 5e5}])),
        },
        "scheduler": {
            "max_num_seqs": requests,
            # A drafter may add up to k slots for each request to a step.
            "max_num_batched_tokens": requests * (1 + 2 * k) + draw(st.integers(0, 9)),
        },
        "kv_cache": {"block_size": block, "num_blocks": 2 + (length + 2 * k) // block},
        "compilation": {
            "cudagraph_mode": draw(st.sampled_from([mode.value for mode in CudagraphMode])),
            "runner": draw(st.sampled_from(["v1", "v2"])),
        },
        "speculative": speculative,
    }
