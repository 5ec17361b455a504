"""Hypothesis strategies for contracts: resolved specs of small made-up models, and pairs that differ in one field."""

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from hypothesis import reject
from hypothesis import strategies as st

from graphspec.annotations import alternatives
from graphspec.errors import SpecError
from graphspec.fields import FieldPolicy, evolve, field_types, is_config_class, policies
from graphspec.frozen import FrozenMap
from graphspec.resolve import check
from graphspec.resolve.draft import DraftOverrides
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.strategies import HashPair, Values, _values, engine_configs

_TARGET: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
_HEAD = {**_TARGET, "num_hidden_layers": 1}
_BLOCK = {
    **_HEAD,
    "block_size": 8,
    "target_layer_ids": [1, 2, 3],
    "dflash_config": {"mask_token_id": 95, "target_layer_ids": [1, 2, 3]},
}
_DRAFTS: Mapping[str, Mapping[str, Any]] = {
    "draft_model": {**_TARGET, "num_hidden_layers": 2},
    "eagle": _HEAD,
    "eagle3": {**_HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 48},
    "dflash": {**_BLOCK, "architectures": ["DFlashDraftModel"]},
    "dspark": {**_BLOCK, "architectures": ["DSparkDraftModel"]},
}


@functools.cache
def _folders() -> tuple[str, Mapping[str, str]]:
    """The folders of the target and of the draft of each method, written once a process."""
    root = tempfile.mkdtemp(prefix="graphspec-specs-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    made = {}
    for name, config in {"target": _TARGET, **_DRAFTS}.items():
        made[name] = os.path.join(root, name)
        os.mkdir(made[name])
        with open(os.path.join(made[name], "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
    return made.pop("target"), made


def specs(configs: Values | None = None) -> st.SearchStrategy[EngineSpec]:
    """What `configs`, plain data of engines, resolves to; what does not resolve is left out.

    Without `configs` they are engines with a small Llama: any method that it can have, several devices, any mode.

    >>> from hypothesis import find
    >>> find(specs(), lambda spec: spec.num_speculative_tokens > 1).num_speculative_tokens
    2
    """
    data = configs if configs is not None else st.builds(_folders).flatmap(_engines)
    resolved: Values = data.map(lambda one: check(one).spec)
    return resolved.filter(lambda spec: spec is not None)


def _engines(folders: tuple[str, Mapping[str, str]]) -> Values:
    return engine_configs(*folders)


def sections_of(cls: type) -> Values:
    """Objects of `cls` as they stand in resolved specs."""
    return specs().map(lambda spec: _first(spec, cls)).filter(lambda section: section is not None)


def _first(section: Any, cls: type) -> Any:
    if type(section) is cls:
        return section
    inner = (getattr(section, name) for name in policies(type(section)))
    found = (_first(v, cls) for v in inner if is_config_class(type(v)))
    return next((f for f in found if f is not None), None)


def spec_pairs(of: st.SearchStrategy[EngineSpec] | None = None) -> st.SearchStrategy[HashPair]:
    """Pairs of specs that differ in exactly one field, of the spec or of any section inside; the first is one of `of`.

    The other need not be a spec that some config resolves to: what a key must tell apart does not depend on that.
    """
    return (specs() if of is None else of).flatmap(_changed)


@attrs.frozen(kw_only=True)
class _Leaf:
    path: tuple[str, ...]
    policies: tuple[FieldPolicy, ...]
    values: Values


@st.composite
def _changed(draw: st.DrawFn, spec: Any) -> HashPair:
    leaf = draw(st.sampled_from(list(_leaves(spec, (), ()))))
    before = functools.reduce(getattr, leaf.path, spec)
    value = draw(leaf.values.filter(lambda v: v != before))
    try:
        other = _evolved(spec, leaf.path, value)
    except SpecError:
        reject()
    return HashPair(one=spec, other=other, path=".".join(leaf.path), policies=leaf.policies)


def _evolved(section: Any, path: tuple[str, ...], value: Any) -> Any:
    name, rest = path[0], path[1:]
    new = _evolved(getattr(section, name), rest, value) if rest else value
    return evolve(section, **{name: new})


def _leaves(section: Any, path: tuple[str, ...], along: tuple[FieldPolicy, ...]) -> Iterator[_Leaf]:
    cls = type(section)
    now = {name: getattr(section, name) for name in policies(cls)}
    for name, policy in policies(cls).items():
        place, chain, parts = (*path, name), (*along, policy), alternatives(field_types(cls)[name])
        values: Values | None
        if is_config_class(type(now[name])):
            yield from _leaves(now[name], place, chain)
            values = st.none() if type(None) in parts else None
        elif DraftOverrides in parts:
            values = st.none() | st.builds(
                DraftOverrides,
                method=st.sampled_from(["eagle", "eagle3"]),
                target=st.just(FrozenMap({})),
            )
        elif any(is_config_class(p) for p in parts):
            # An absent section that may hold what configs cannot make. Its absence differs from its presence above.
            values = None
        else:
            values = _values(cls, name, now)
        if values is not None:
            yield _Leaf(path=place, policies=chain, values=values)
