"""Loads the entries of a described device as a node does, in a process that is told only where they are.

Prints one JSON object: for each unit how its lookup ended, whether all symbols were found, and what stopped the loader.
"""

import ctypes
import json
import os
import sys
import tempfile


def main() -> None:
    config, device, cache = sys.argv[1:]
    from graphspec.cache.compiling.without_driver import driver_stub

    if "CROSS_STUB" not in os.environ:
        place = driver_stub(tempfile.mkdtemp(prefix="graphspec-cross-"))
        # The dynamic linker reads it when a process starts.
        os.environ["LD_LIBRARY_PATH"] = place + os.pathsep + os.environ.get("LD_LIBRARY_PATH", "")
        os.environ["CROSS_STUB"] = place
        os.execv(sys.executable, [sys.executable, "-P", __file__, *sys.argv[1:]])

    import torch  # noqa: F401

    from graphspec.api import load
    from graphspec.cache.load import keyed_units
    from graphspec.cache.loading.artifact import load_artifact
    from graphspec.cache.opened import open_cache
    from graphspec.capture.program import load_program
    from graphspec.cubin import architecture_of, cubins_in
    from graphspec.errors import CacheError
    from graphspec.fleet.devices import describe_device

    spec = load(config, ["device.target=cuda", "device.isa=x86-64-v3"])
    opened = open_cache(spec.cache, cache)
    units = load_program(spec).units()
    told = {}
    for keyed in keyed_units(units, spec, device=describe_device(device).profile):
        lookup = opened.store.get(keyed.key)
        entry = lookup.entry
        assert entry is not None, lookup.reason
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(entry.payload)
            file.flush()
            ctypes.CDLL(file.name, mode=os.RTLD_NOW)
        try:
            load_artifact(entry, single_threaded=True)
            stopped = "nothing"
        except CacheError as error:
            stopped = error.problems[0].found
        told[keyed.unit.name] = {
            "outcome": lookup.outcome.value,
            "symbols": "all found",
            "stopped": stopped,
            "architectures": sorted({architecture_of(c) for c in cubins_in(entry.payload)}),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
