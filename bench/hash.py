"""How long does the hash of a whole contract take, next to the usual shortcut?

Two contracts: the example with n-gram drafts, and EAGLE-3 with a draft model and a dynamic table, whose schedule has a
depth for each of 256 batch sizes. Each round makes a new, equal spec object, so nothing that an earlier hash left on
the object can help, and times on it, in turns of order, `compute_hash` of both stages and
``sha256(json.dumps(attrs.asdict(spec), default=str))``. Target: `compute_hash` under 150 microseconds.

A round on a busy machine measures the machine. So rounds come in batches, each batch gives a median, and the figure is
the smallest of the medians; all of them are in the result. The very first hash of a process also looks at each config
class once; that is timed apart.
"""

import argparse
import hashlib
import json
import os
import pickle
import statistics
import tempfile
import time
from pathlib import Path

import attrs
from common import ROOT, machine, write
from resolve import CONFIG, HEAD, MODEL

import graphspec
from graphspec.fields import Stage

TARGET_US = 150.0
LARGEST_BATCH = 256


def specs() -> dict:
    """The two contracts. The checkpoints of the second are config.json folders, written on the spot."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind, config in (("target", MODEL), ("draft", HEAD)):
            (folder / kind).mkdir()
            (folder / kind / "config.json").write_text(json.dumps(config))
        file = folder / "eagle3.yaml"
        text = CONFIG.replace("128", str(LARGEST_BATCH))
        file.write_text(text.format(target=folder / "target", draft=folder / "draft"))
        made = {
            "ngram": graphspec.load(str(ROOT / "examples" / "smollm2-ngram.yaml")),
            "eagle3": graphspec.load(str(file)),
        }
    assert made["eagle3"].speculative.draft_model is not None
    assert len(made["eagle3"].schedule.dense) == LARGEST_BATCH + 1
    return made


def sha256_of_json(spec) -> str:
    return hashlib.sha256(json.dumps(attrs.asdict(spec), default=str).encode()).hexdigest()


ACTIONS = {
    "compute_hash_capture": lambda spec: spec.compute_hash(Stage.CAPTURE),
    "compute_hash_compile": lambda spec: spec.compute_hash(Stage.COMPILE),
    "sha256_of_json": sha256_of_json,
}


def microseconds(action, spec) -> float:
    began = time.perf_counter_ns()
    action(spec)
    return (time.perf_counter_ns() - began) / 1000


def batch(data: bytes, rounds: int) -> dict:
    """Median of each action over `rounds` new, equal specs."""
    taken = {name: [] for name in ACTIONS}
    names = list(ACTIONS)
    for i in range(rounds):
        spec = pickle.loads(data)
        for name in names[i % 3 :] + names[: i % 3]:
            taken[name].append(microseconds(ACTIONS[name], spec))
    return {name: statistics.median(samples) for name, samples in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=200)
    asked = parser.parse_args()
    began_at = os.getloadavg()
    first, results = {}, {}
    made = specs()
    for name, spec in made.items():
        first[name] = microseconds(ACTIONS["compute_hash_capture"], spec)
    stored = {name: pickle.dumps(spec) for name, spec in made.items()}
    medians = {name: [] for name in made}
    for _ in range(asked.batches):
        for name, data in stored.items():
            medians[name].append(batch(data, asked.rounds))
    for name, batches in medians.items():
        least = {action: min(b[action] for b in batches) for action in ACTIONS}
        ratio = least["sha256_of_json"] / least["compute_hash_capture"]
        results[name] = {
            "key_text_bytes": len(made[name].key_text(Stage.CAPTURE)),
            "first_in_process_us": first[name],
            "least_median_us": least,
            "medians_us": batches,
            "json_to_capture": ratio,
        }
        for action, value in least.items():
            print(f"{name}: {action}: {value:.0f} us")
        print(f"{name}: sha256_of_json takes {ratio:.1f} times as long as compute_hash_capture")
    print(
        f"target: compute_hash under {TARGET_US:.0f} us; least of {asked.batches} medians of {asked.rounds} rounds; "
        f"load average {began_at[0]:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores"
    )
    write(
        "hash",
        {
            "machine": machine(),
            "load_average_before": began_at,
            "target_us": TARGET_US,
            "rounds": asked.rounds,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
