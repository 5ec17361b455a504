"""The JSON Schema of a config, made from the metadata of its fields: for editors, forms and other languages.

A schema cannot say all that `EngineConfig.from_dict` checks: rules between fields, that 7.0 is no integer, how deep
free data may nest. What it refuses is refused there too, with one exception: hyphens for underscores in keys.

``python -m graphspec.formats.schema > graphspec/formats/schema.json`` makes the file that lies beside this module.
"""

import enum
import inspect
import json
import sys
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from graphspec.annotations import alternatives, is_mapping
from graphspec.config.engine import EngineConfig
from graphspec.config.structure import unstructure
from graphspec.fields import FieldPolicy, field_types, is_config_class, policies
from graphspec.frozen import JsonValue

SCHEMA_VERSION = 1
"""Number of the config's format. A config that was valid and is so no longer raises it; new fields do not."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = f"urn:graphspec-engine:config:{SCHEMA_VERSION}"
_TYPES: Mapping[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `EngineConfig`, as plain data in the order of declaration.

    Sections lie under ``$defs`` by class name. ``x-stage`` says which key a field enters: ``compile`` (and so both),
    ``capture``, or ``none`` with the reason in ``x-reason``. ``x-group`` is a heading inside a long section.

    >>> schema = config_schema()
    >>> schema["required"], schema["$defs"]["SchedulerConfig"]["properties"]["max_num_seqs"]["maximum"]
    (['model'], 65536)
    """
    sections: dict[str, Any] = {}
    whole = _section(EngineConfig, sections)
    head = {"$schema": _DIALECT, "$id": _ID, **whole, "title": "graphspec engine config"}
    return {**head, "$defs": sections}


def schema_text() -> str:
    """The schema as the text that is shipped: the same on every machine, with a newline at the end."""
    return json.dumps(config_schema(), indent=2, allow_nan=False) + "\n"


def main() -> None:
    """Writes the schema to standard output."""
    sys.stdout.write(schema_text())


def _section(cls: type, sections: dict[str, Any]) -> dict[str, Any]:
    fields, hints = attrs.fields_dict(cls), field_types(cls)
    return {
        "title": cls.__name__,
        "description": inspect.getdoc(cls),
        "type": "object",
        "properties": {
            name: _field(policy, fields[name].default, _value(hints[name], sections))
            for name, policy in policies(cls).items()
        },
        "required": [name for name in policies(cls) if fields[name].default is attrs.NOTHING],
        "additionalProperties": False,
    }


def _field(policy: FieldPolicy, default: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"description": policy.doc, **value}
    # JSON Schema applies bounds to numbers only, as `out_of_bounds` does, so they hold for nullable fields too.
    bounds = {"minimum": policy.minimum, "maximum": policy.maximum}
    made.update({name: bound for name, bound in bounds.items() if bound is not None})
    if default is not attrs.NOTHING:
        made["default"] = unstructure(default)
    if policy.group:
        made["x-group"] = policy.group
    made["x-stage"] = policy.stage.value if policy.stage else "none"
    if policy.reason:
        made["x-reason"] = policy.reason
    return made


def _value(annotation: Any, sections: dict[str, Any]) -> dict[str, Any]:
    parts = alternatives(annotation)
    if len(parts) > 1:
        choices = [_value(part, sections) for part in parts]
        if all(part in _TYPES for part in parts):
            return {"type": [choice["type"] for choice in choices]}
        return {"anyOf": choices}
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if annotation is JsonValue:
        return {}
    if is_config_class(annotation):
        if annotation.__name__ not in sections:
            sections[
                annotation.__name__
            ] = {}  # holds its place in the order, before the sections that it contains
            sections[annotation.__name__] = _section(annotation, sections)
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    if is_mapping(annotation):
        values = _value(typing.get_args(annotation)[1], sections)
        return {"type": "object", "additionalProperties": values or True}
    if typing.get_origin(annotation) is tuple:
        return _list(typing.get_args(annotation), sections)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    raise TypeError(f"no JSON Schema is known for a field of type {annotation!r}")


def _list(items: tuple[Any, ...], sections: dict[str, Any]) -> dict[str, Any]:
    if len(items) == 2 and items[1] is Ellipsis:
        return {"type": "array", "items": _value(items[0], sections)}
    return {
        "type": "array",
        "prefixItems": [_value(item, sections) for item in items],
        "minItems": len(items),
        "maxItems": len(items),
        "items": False,
    }


if __name__ == "__main__":
    main()
