"""Configs and contracts as plain data for ``graphspec show``, and where each value comes from."""

import enum
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.fields import HIDDEN, is_config_class, policies
from graphspec.frozen import thaw
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.base import SpeculatorConfig

if TYPE_CHECKING:
    from graphspec.formats.document import Document

FORWARDS = (
    "num_speculative_tokens",
    "uniform_decode_query_len",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
    "needs_eagle_block_drop",
    "use_eagle_block_drop",
    "uses_target_hidden_states",
    "uses_aux_hidden_states",
    "aux_hidden_state_layer_ids",
    "uses_draft_kv_cache",
    "drafts_in_trees",
    "max_num_new_slots_for_drafting",
    "max_num_draft_seqs",
    "max_draft_len",
)
"""What consumers read from the contract itself, beside its sections."""


def config_values(config: EngineConfig) -> Mapping[str, Any]:
    """The config with its defaults."""
    values: Mapping[str, Any] = _plain(config)
    return values


def spec_values(spec: EngineSpec) -> Mapping[str, Any]:
    """The contract: its sections, what consumers read of it, its hashes."""
    from graphspec.fields import Stage

    return {
        **_plain(spec),
        "forwards": {name: _plain(getattr(spec, name)) for name in FORWARDS},
        "hashes": {stage.value: spec.compute_hash(stage) for stage in Stage},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, KSchedule):
        return [list(tier) for tier in value.tiers]
    if is_config_class(type(value)):
        data = {
            name: HIDDEN if policy.secret and held not in (None, ()) else _plain(held)
            for name, policy in policies(type(value)).items()
            for held in (getattr(value, name),)
        }
        if isinstance(value, SpeculatorConfig):
            data = {"class": f"{type(value).__module__}.{type(value).__qualname__}", **data}
        data.pop("draft_overrides", None)
        return data
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return thaw(value)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted path; lists are values."""
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def origins_of(
    document: "Document", values: Mapping[str, Any], *, resolved: bool
) -> Mapping[str, str]:
    """Where each leaf comes from: a line of the file, a setting, a default, the checkpoint, or a derivation."""
    return {path: _origin(document, path, resolved) for path, _ in leaves(values)}


def _origin(document: "Document", path: str, resolved: bool) -> str:
    written = document.origin(path)
    if written is not None:
        return written
    if not resolved:
        return "default"
    section = path.partition(".")[0]
    if section == "model":
        return "checkpoint, or its default"
    return "default" if section in _AS_WRITTEN else "derived"


_AS_WRITTEN = (
    "parallel",
    "scheduler",
    "kv_cache",
    "kernels",
    "lora",
    "watermark",
    "device",
    "program",
)
"""Sections that the contract takes over from the config, field by field."""
