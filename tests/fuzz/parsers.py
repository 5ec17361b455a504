"""Fuzzes the parsers of entries and bundles: ``python tests/fuzz/parsers.py --inputs 1000000``.

Inputs are random bytes and damaged entries and bundles. Half of them are given right digests again after the damage, so that
what stands behind the digests is reached. For each input: the parser's own error or a value, and nothing else; less than a
second; no event that Python audits for code, files and processes; for one in a hundred, memory within what the limits and
the input's size allow. The first violation is printed with its input, and the exit code is 1.
"""

import argparse
import hashlib
import os
import random
import resource
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphspec.cache.bundle.layout import machine_of
from graphspec.cache.bundle.reader import read_bundle
from graphspec.cache.entry import PREFIX_BYTES, EntryCorruptError, pack, read_prefix, unpack
from graphspec.errors import BundleError
from graphspec.keys.encoding import encode_decoded
from support.bundles import MACHINE, around, in_order, manifest_of, unit_entry
from support.entries import with_header

SECONDS = 1.0
MEMORY = (64, 4 << 20)
"""Bytes that a parse may take: so many times the input's size, and so many beside."""
FORBIDDEN = (
    "exec",
    "compile",
    "import",
    "open",
    "pickle.find_class",
    "marshal.loads",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "ctypes.dlopen",
    "socket.connect",
)
PACKED = in_order(unit_entry("a", b"1"), unit_entry("b", b"22"))
MANIFEST = encode_decoded(manifest_of(*PACKED))
ENTRIES = b"".join(PACKED)
SMALL = pack(unit_entry("a", b"1"))
HEADER = SMALL[PREFIX_BYTES : PREFIX_BYTES + read_prefix(SMALL).header]
TAGS = b"0123456789nbiIfsxeoydStl:"


class Audit:
    """Notes forbidden events while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self.heard)

    def heard(self, event: str, arguments: tuple) -> None:
        if self.on and event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r:.200}")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four changes: a byte, a tag or digit, a piece repeated, a piece cut out."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(4)
        if kind < 2 and at < len(made):
            made[at] = rng.randrange(256) if kind == 0 else rng.choice(TAGS)
        elif kind == 2:
            made[at:at] = made[rng.randrange(len(made) + 1) :][: rng.randrange(40)]
        else:
            del made[at : at + rng.randrange(10)]
    return bytes(made)


def bundle_with(entry: bytes) -> bytes:
    """A bundle around one packed entry, with a manifest that fits it as well as can be."""
    try:
        key = unpack(entry).key
        name, machine = key.digest, machine_of(key.text) or MACHINE
    except EntryCorruptError:
        name, machine = "0" * 32, MACHINE
    row = (name, 0, 0, len(entry), hashlib.sha256(entry).digest())
    manifest = {"created_by": {}, "machines": [machine], "entries": [row]}
    return around(encode_decoded(manifest), entry)


INPUTS = {
    "entry: random bytes": lambda rng: rng.randbytes(rng.randrange(400)),
    "entry: damaged": lambda rng: damaged(SMALL, rng),
    "entry: damaged header, right digests": lambda rng: with_header(damaged(HEADER, rng), b"1"),
    "entry: random header, right digests": lambda rng: with_header(
        bytes(rng.choices(TAGS, k=rng.randrange(60))), b""
    ),
    "bundle: random bytes": lambda rng: rng.randbytes(rng.randrange(400)),
    "bundle: damaged": lambda rng: damaged(around(MANIFEST, ENTRIES), rng),
    "bundle: damaged manifest, right digests": lambda rng: around(damaged(MANIFEST, rng), ENTRIES),
    "bundle: damaged entries, right manifest": lambda rng: around(MANIFEST, damaged(ENTRIES, rng)),
    "bundle: damaged header in an entry, right digests": lambda rng: bundle_with(
        with_header(damaged(HEADER, rng), b"1")
    ),
}


def parse(kind: str, data: bytes) -> str:
    """What the parser made of it: accepted or refused. Any other error comes through."""
    try:
        unpack(data) if kind.startswith("entry") else read_bundle(data)
    except (EntryCorruptError, BundleError):
        return "refused"
    return "accepted"


def judged(kind: str, data: bytes, audit: Audit, measure_memory: bool) -> tuple[str, str]:
    """How the parse ended, and what was wrong with it, if anything."""
    if measure_memory:
        tracemalloc.start()
    audit.seen.clear()
    audit.on = True
    began = time.perf_counter()
    try:
        ended, problem = parse(kind, data), ""
    except Exception as error:
        ended, problem = "raised", f"raised {type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    audit.on = False
    if measure_memory:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > MEMORY[0] * len(data) + MEMORY[1]:
            problem = problem or f"took {peak:,} bytes for an input of {len(data):,}"
    if seconds > SECONDS:
        # A busy machine stops any process for a while: only what is slow again is slow.
        again = time.perf_counter()
        parse(kind, data)
        if time.perf_counter() - again > SECONDS:
            problem = problem or f"took {seconds:.1f} s"
    return ended, problem or (f"did {audit.seen[0]}" if audit.seen else "")


def fuzz(inputs: int, seed: int, audit: Audit) -> tuple[Counter, str]:
    """Counts by kind and end, and the first violation."""
    rng = random.Random(seed)
    counts: Counter = Counter()
    kinds = list(INPUTS)
    for number in range(inputs):
        kind = kinds[number % len(kinds)]
        data = INPUTS[kind](rng)
        ended, problem = judged(kind, data, audit, measure_memory=number % 100 == 0)
        counts[kind, ended] += 1
        if problem:
            return counts, f"input {number}, {kind}, {problem}:\n{data!r}"
    return counts, ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of entries and bundles.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for kind, data in (("entry", SMALL), ("bundle", around(MANIFEST, ENTRIES))):
        assert parse(kind, data) == "accepted"
    began = time.perf_counter()
    counts, problem = fuzz(asked.inputs, asked.seed, Audit())
    for (kind, ended), number in sorted(counts.items()):
        print(f"{number:9,} {ended:9} {kind}")
    print(
        f"{sum(counts.values()):,} inputs in {time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}"
    )
    if problem:
        print(problem)
        return 1
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
