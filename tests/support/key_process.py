"""A process that resolves configs and prints their keys, after it has changed what a key must not depend on.

It reads one JSON object from standard input: `configs`, plain data by name, and `changes`, names of functions below.
"""

import ctypes
import importlib
import json
import os
import platform
import random
import socket
import sys


def another_import_order(configs):
    """Modules load last first, each on its own."""
    names = (
        "speculators.dflash speculators.mtp speculators.ngram resolve.spec resolve.schedule config.speculative "
        "keys.factors config.model fields keys.encoding testing.goldens formats.read"
    )
    for name in names.split():
        importlib.import_module(f"graphspec.{name}")
    return configs


def another_dict_order(configs):
    """Every mapping of the data is filled in another order."""

    def shuffled(data):
        if isinstance(data, list):
            return [shuffled(item) for item in data]
        if not isinstance(data, dict):
            return data
        names = sorted(data, reverse=True)
        random.shuffle(names)
        return {name: shuffled(data[name]) for name in names}

    return shuffled(configs)


def another_host_name(configs):
    """In a namespace of its own where that is allowed, else by what Python says."""
    libc, new_names = ctypes.CDLL(None, use_errno=True), 0x04000000
    name = b"another-host"
    if libc.unshare(new_names) != 0 or libc.sethostname(name, len(name)) != 0:
        told = os.uname()
        made = os.uname_result((told[0], name.decode(), *told[2:]))
        os.uname = lambda: made
        socket.gethostname = name.decode
        platform.node = name.decode
    assert socket.gethostname() == name.decode()
    return configs


def another_umask(configs):
    """Files that nobody may read."""
    os.umask(0o777)
    return configs


def another_user(configs):
    """One without a name, where this process may become it and still read the checkpoints; else by what Python says."""
    contracts(configs)  # what is imported is imported: the interpreter itself may be root's alone
    here = os.path.dirname(os.path.abspath(__file__))
    if os.getuid() == 0:
        os.seteuid(65534)
        if not os.access(here, os.R_OK | os.X_OK, effective_ids=True):
            os.seteuid(0)
    if os.geteuid() != 65534:
        for call in ("getuid", "geteuid", "getgid", "getegid"):
            setattr(os, call, lambda: 65534)
    return configs


def torch_first(configs):
    """Torch is there before anything of ours."""
    import torch

    torch.manual_seed(7)
    torch.set_num_threads(1)
    return configs


def another_locale(configs):
    """As the environment says, where the system has it."""
    import locale

    for name in ("tr_TR.UTF-8", "de_DE.UTF-8", ""):
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        break
    return configs


def other_settings_of_python(configs):
    """Limits and hooks that programs set."""
    import decimal
    import gc

    sys.setrecursionlimit(5000)
    sys.set_int_max_str_digits(640)
    decimal.getcontext().prec = 3
    gc.disable()
    return configs


def unit_keys(spec):
    """Digest and text of the entry keys of the reference program."""
    from graphspec.cache.load import keyed_units
    from graphspec.capture.program import load_program

    units = keyed_units(load_program(spec).units(), spec)
    return {f"unit {k.unit.name}": [k.key.digest, k.key.text.hex()] for k in units}


def contracts(configs):
    """What each config resolves to."""
    from graphspec.config.engine import EngineConfig

    return {name: EngineConfig.from_dict(data).resolve() for name, data in configs.items()}


def main():
    """Reads what to do, does it, and prints the keys."""
    told = json.load(sys.stdin)
    configs = told["configs"]
    for change in told["changes"]:
        configs = globals()[change](configs)
    from graphspec.fields import Stage

    keys = {}
    for name, spec in contracts(configs).items():
        keys[name] = {s.value: [spec.compute_hash(s), spec.key_text(s).hex()] for s in Stage}
        if name in told["units"]:
            keys[name] |= unit_keys(spec)
    print(json.dumps(keys, sort_keys=True))


if __name__ == "__main__":
    main()
