"""F38 and F39: warm on the second run, and no mixed pair, with the real compiler and on a device where there is one."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.loading.artifact import load_artifact
from graphspec.config.engine import EngineConfig
from support.processes import run_python
from support.toy import NAME, WIDTH, program
from support.warmups import TESTS

DEVICES = [
    pytest.param("cpu", marks=[pytest.mark.deep, pytest.mark.slow]),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]

START = """
    import hashlib, json, os, sys
    import torch
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.load import load_or_compile
    from graphspec.cache.folder.locks import KeyLocks
    from graphspec.config.engine import EngineConfig
    from support.toy import program

    spec = EngineConfig.from_dict(json.loads(os.environ["CONFIG"])).resolve()
    root, device = os.environ["ROOT"], os.environ["DEVICE"]
    artifacts, results = load_or_compile(
        program(spec).units(), spec, DiskStore(root), KeyLocks(root)
    )
    x = torch.linspace(-3, 3, 32, device=device).view(4, 8)
    made = [*artifacts["scale"](x), *artifacts["mix"](x, torch.eye(8, device=device) + 1)]
    data = b"".join(t.cpu().numpy().tobytes() for t in made)
    print(json.dumps({
        "compiled": sum(r.compiled for r in results),
        "outcomes": [r.outcome.value for r in results],
        "output": hashlib.sha256(data).hexdigest(),
        "inductor": "torch._inductor" in sys.modules,
    }))
"""


@pytest.fixture
def asked(tiny_config):
    """The toy's config for a device, as plain data."""
    return lambda device: tiny_config(program=NAME, device={"target": device})


@pytest.mark.parametrize("device", DEVICES)
def test_F38_the_second_run_is_warm_and_gives_the_same_bytes(asked, tmp_path, device):
    """The second run, not the third: it compiles nothing, loads no compiler, and its outputs are those of the cold one."""
    where = {"CONFIG": json.dumps(asked(device)), "ROOT": str(tmp_path), "DEVICE": device}
    cold, *warm = (json.loads(run_python(START, **where)) for _ in "123")
    assert (cold["compiled"], cold["outcomes"]) == (2, ["miss", "miss"])
    for start in warm:
        assert (start["compiled"], start["outcomes"]) == (0, ["hit", "hit"])
        assert start["output"] == cold["output"]
        assert not start["inductor"]


WRITER = """
import os, sys
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.entry import unpack

root, path = sys.argv[1:]
with open(path, "rb") as file:
    entry = unpack(file.read())
store = DiskStore(root)
print("ready", flush=True)
sys.stdin.readline()
while not os.path.exists(os.path.join(root, "enough")):
    try:
        os.unlink(store.path_of(entry.key))
    except FileNotFoundError:
        pass
    store.put(entry)
"""


@pytest.mark.parametrize("device", DEVICES)
def test_F39_readers_never_see_parts_of_two_variants(asked, tmp_path, device):
    """Two processes publish different valid builds of one unit under one key, over and over; each get is one of the two
    to the byte, and what it computes is right."""
    spec = EngineConfig.from_dict(asked(device)).resolve()
    (unit,) = [u for u in program(spec).units() if u.name == "mix"]
    root = tmp_path / "shared"
    variants = []
    for number in range(2):
        folder = str(tmp_path / f"variant-{number}")
        load_or_compile([unit], spec, DiskStore(folder), KeyLocks(folder))
        (keyed,) = keyed_units([unit], spec)
        entry = DiskStore(folder).get(keyed.key).entry
        # Builds of equal bytes, which are what is wanted, would prove nothing: what follows a library is not read.
        payload = bytes(entry.payload) + f"variant {number}".encode() * (1 + 1000 * number)
        other = DiskStore(str(tmp_path / f"stored-{number}"))
        other.put(type(entry)(key=entry.key, metadata=entry.metadata, payload=payload))
        variants.append((other.path_of(entry.key), payload))
    writers = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, str(root), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        for path, _ in variants
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    store, seen = DiskStore(str(root)), set()
    x, w = torch.ones(3, WIDTH, device=device), torch.eye(WIDTH, device=device)
    began, gets = time.monotonic(), 0
    # On a busy machine one writer may stand still for all of the 2000 gets.
    while gets < 2000 or (seen != {0, 1} and time.monotonic() - began < 60):
        gets += 1
        found = store.get(keyed.key)
        if found.entry is None:
            continue
        number = [payload for _, payload in variants].index(bytes(found.entry.payload))
        if number not in seen:
            out, sums = load_artifact(found.entry)(x, w)
            assert torch.equal(out, x)
            assert sums.tolist() == [WIDTH] * 3
        seen.add(number)
    (root / "enough").touch()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert seen == {0, 1}
