"""DeepInfer's environment variables to a config. Only names that begin with DEEPINFER_ are read, or shown."""

import re
from collections.abc import Mapping
from typing import Any

from graphspec.errors import Problem, SpecError
from graphspec.formats.carry import Carried, Carrier, Settings

_PREFIX = "DEEPINFER_"
_DRAFTS, _ADAPTIVE = f"{_PREFIX}USE_NEXTN_DECODE", f"{_PREFIX}ENABLE_MTP_VARLEN"
_K = "speculative.num_speculative_tokens"
_DEFAULT = 5
_SWITCH = {"0": False, "1": True}

ABSENT: Mapping[str, str] = {
    "model.dtype": "no variable of DeepInfer says it; graphspec's default is float32",
    "device.target": "no variable of DeepInfer says it; graphspec's default is cpu",
}
"""Fields to know about, since the input cannot give them."""


def from_deepinfer(environment: Mapping[str, str]) -> Carried:
    """The config data of DeepInfer's variables: DSpark drafts up to a depth, verified by confidence if asked.

    A depth of 0 is no drafting. The depth is 5 when it is not given. Raises one `SpecError` with every problem.

    >>> from_deepinfer({"DEEPINFER_USE_NEXTN_DECODE": "3"}).data
    {'speculative': {'method': 'dspark', 'num_speculative_tokens': 3}}
    """
    values = {n: v for n, v in environment.items() if isinstance(n, str) and n.startswith(_PREFIX)}
    if not values:
        raise SpecError(
            Problem(
                where="the environment",
                found=f"no variable that begins with {_PREFIX}",
                wanted=f"{_DRAFTS} or {_ADAPTIVE}",
            )
        )
    carrier = Carrier("DeepInfer", Settings(values=values, spelled={}))
    depth = _depth(carrier)
    switch = carrier.take(_ADAPTIVE)
    if switch is not None and switch not in tuple(_SWITCH):
        carrier.wrong(_ADAPTIVE, switch, "0 or 1")
    elif switch is not None and depth == 0:
        carrier.leave(_ADAPTIVE, f"there are no drafts to verify: {_DRAFTS} is 0", switch)
    elif switch is not None:
        path = "speculative.enable_adaptive_verification"
        carrier.note(_ADAPTIVE, switch, path, _SWITCH[switch], "a switch")
        carrier.put(path, _SWITCH[switch], _ADAPTIVE)
    return carrier.finish({}, ABSENT)


def _depth(carrier: Carrier) -> int | None:
    written: Any = carrier.take(_DRAFTS)
    if written is None:
        carrier.note(_DRAFTS, None, _K, _DEFAULT, "what it is when not given")
    elif not isinstance(written, str) or not re.fullmatch("[0-9]{1,9}", written):
        carrier.wrong(_DRAFTS, written, "text of digits alone, 0 for no drafting")
        return None
    depth = _DEFAULT if written is None else int(written)
    if depth == 0:
        carrier.leave(_DRAFTS, "no drafting, so there is no speculative section", written)
        return 0
    carrier.put("speculative.method", "dspark", _DRAFTS)
    carrier.put(_K, depth, _DRAFTS)
    return depth
