"""One small unit and its key on a machine that is described: for tests of keys without torch."""

from graphspec.cache.entry import Entry
from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput, unit_key
from graphspec.config.device import DeviceProfile
from graphspec.keys.scope import Scope

TOOLCHAIN = {"torch": "2.13.0", "graphspec": "0.1.0"}
CPU = DeviceProfile(kind="cpu", name="x86_64", capability=("x86-64-v3",))


def build(spec):
    """What would be traced."""
    return lambda x: x


def unit(*paths, tokens=2048, **changes):
    """A unit that may read `paths` of the spec, and takes up to so many tokens."""
    rows = DynamicDim(name="tokens", maximum=tokens)
    parts = {
        "name": "unit",
        "scope": Scope(paths),
        "modules": ("support.keyed",),
        "build": build,
        "inputs": (TensorInput(name="x", shape=(rows, 8), dtype="float32"),),
    }
    return CompileUnit(**{**parts, **changes})


def key(one, spec, *, toolchain=TOOLCHAIN, device=CPU, options=()):
    """Its entry key."""
    return unit_key(one, spec, toolchain=toolchain, device=device, options=dict(options))


def start(store, entry_key):
    """What an engine does at start: the outcome of the lookup, and the payload it goes on with; a miss is compiled."""
    found = store.get(entry_key)
    if found.entry is not None:
        return found.outcome, bytes(found.entry.payload)
    payload = f"compiled for {entry_key.digest}".encode()
    metadata = {"unit": "unit", "device": "cpu", "compile_seconds": 1.0}
    store.put(Entry(key=entry_key, metadata=metadata, payload=payload))
    return found.outcome, payload
