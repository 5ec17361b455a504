"""A Hugging Face folder to a config: the model that it holds, or the drafting that it was trained for."""

import os
from collections.abc import Mapping
from typing import Any

from graphspec.errors import Problem, SpecError
from graphspec.formats.carry import Carried, Carrier, Settings, by_name
from graphspec.formats.read import read_document
from graphspec.text import show

_S = "speculators_config"
_CODE = "auto_map"

METHODS: Mapping[str, str] = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "mtp": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
    "medusa": "medusa",
}
"""Algorithm of a speculators checkpoint -> method."""

REASONS: Mapping[str, str] = {
    **by_name(
        {
            "graphspec's own rule of acceptance decides: rejection_sample_method": f"""
                {_S}.default_proposal_method {_S}.proposal_type {_S}.accept_tolerance {_S}.verifier_accept_k""",
            "the target's own config.json says it": f"{_S}.verifier",
        }
    ),
    _S: "graphspec takes the first way of proposing alone",
    _CODE: "code of the checkpoint is never run",
}
"""Why a field is left."""


def from_hf(folder: str) -> Carried:
    """The config data of a folder with a config.json, which is read as data; no code is run.

    The other fields of config.json are facts of the model. They are not left: `model.source`, or `speculative.model`
    for a draft, names the folder that they are read from. Raises one `SpecError` with every problem.
    """
    path = os.path.join(folder, "config.json")
    document = read_document(path)
    if not isinstance(document.data, dict):
        raise document.locate([Problem(where="", found=show(document.data), wanted="an object")])
    facts = document.data
    names = (_S, "speculators_model_type", _CODE, "dtype", "torch_dtype")
    values = {name: facts[name] for name in names if facts.get(name) is not None}
    nested = facts.get("text_config")
    if isinstance(nested, Mapping) and not {"dtype", "torch_dtype"} & set(values):
        values |= {n: nested[n] for n in ("dtype", "torch_dtype") if nested.get(n) is not None}
    carrier = Carrier("the checkpoint", Settings(values=values, spelled={}))
    # What it is called is not written in the file, so the folder itself stands for it.
    try:
        if _S in facts:
            _draft(carrier, folder, values)
        else:
            _target(carrier, folder, values)
        return carrier.finish(REASONS, {"device.target": "graphspec's default is cpu"})
    except SpecError as error:
        raise document.locate(error.problems) from None


def _target(carrier: Carrier, folder: str, values: Mapping[str, Any]) -> None:
    carrier.put("model.source", folder, "the folder")
    new, old = values.get("dtype"), values.get("torch_dtype")
    if new is not None and new == old:
        carrier.leave("torch_dtype", "the older name of dtype, with the same value")
    carrier.carry("dtype", "model.dtype")
    carrier.carry("torch_dtype", "model.dtype")
    if new is None and old is None:
        carrier.missing("model.dtype", "graphspec's default is float32")


def _draft(carrier: Carrier, folder: str, values: Mapping[str, Any]) -> None:
    carrier.put("speculative.model", folder, "the folder")
    for name in ("dtype", "torch_dtype"):
        if name in values:
            carrier.leave(name, "the draft's type; graphspec drafts in the target's")
    if not carrier.expand(_S):
        return
    _method(carrier)
    methods = carrier.take(f"{_S}.proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    for i, other in enumerate(methods[1:] if first is not None else (), start=1):
        carrier.leave(f"{_S}.proposal_methods[{i}]", REASONS[_S], other)
    if isinstance(first, Mapping):
        for name, value in first.items():
            where = f"{_S}.proposal_methods[0].{name}"
            if name == "speculative_tokens":
                carrier.put("speculative.num_speculative_tokens", value, where)
            else:
                carrier.leave(where, REASONS.get(f"{_S}.{name}", "of no use to graphspec"), value)
    elif methods is not None:
        carrier.wrong(f"{_S}.proposal_methods", methods, "a list of objects")
    carrier.expand(f"{_S}.verifier")
    name = carrier.take(f"{_S}.verifier.name_or_path")
    if name is not None:
        carrier.put("model.source", name, f"{_S}.verifier.name_or_path")
        carrier.missing("model.dtype", "the target's own type; graphspec's default is float32")


def _method(carrier: Carrier) -> None:
    written = carrier.take(f"{_S}.algorithm")
    kind = carrier.take("speculators_model_type")
    name = f"{_S}.algorithm" if written is not None else "speculators_model_type"
    algorithm = kind if written is None else written
    if written is not None and kind is not None:
        same = "says the same as the algorithm" if kind == written else "the algorithm says it"
        carrier.leave("speculators_model_type", same, kind)
    if algorithm is None:
        return
    method = METHODS.get(algorithm) if isinstance(algorithm, str) else None
    if method is None:
        why = "no method that graphspec knows by this name; it looks at the checkpoint itself"
        carrier.leave(name, why, algorithm)
        return
    if method != algorithm:
        carrier.note(name, algorithm, "speculative.method", method, "drafts all in one pass")
        carrier.put("speculative.parallel_drafting", True, name)
    carrier.put("speculative.method", method, name)
