"""How long until the units of the example are callable, warm: graphspec against torch.compile with its own caches hot?

Both start in fresh processes, in turn, and do the same: units for the same shapes, then one decode step of the whole model
(5 rows) with the same random weights. The clock runs from "torch imported and weights there" to "first step done".
Ours also resolves the config and computes the keys in that time; theirs is given the resolved spec.
"""

import argparse
import os
import tempfile

from common import THREADS, fresh, machine, median, write

CHILD = "warm_start_child.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cache-dir", default=None, help="our cache folder; default: a temporary one"
    )
    rounds = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours = {"GRAPHSPEC_CACHE_DIR": rounds.cache_dir or os.path.join(folder, "ours")}
        theirs = {
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "theirs"),
            "TRITON_CACHE_DIR": os.path.join(folder, "theirs-triton"),
        }
        cold = {"ours": fresh(CHILD, "ours", **ours), "theirs": fresh(CHILD, "theirs", **theirs)}
        # The second hot run of torch.compile is the fastest: the first still fills caches.
        fresh(CHILD, "theirs", **theirs)
        samples = {"ours": [], "theirs": []}
        for _ in range(rounds.rounds):
            samples["ours"].append(fresh(CHILD, "ours", **ours))
            samples["theirs"].append(fresh(CHILD, "theirs", **theirs))
    for name, taken in samples.items():
        print(
            f"{name:7s} ready {median(taken, 'ready_s'):7.3f} s   first step done "
            f"{median(taken, 'total_s'):7.3f} s   (cold {cold[name]['total_s']:.1f} s)"
        )
    assert all(s["compiled"] == 0 for s in samples["ours"])
    ratio = median(samples["ours"], "total_s") / median(samples["theirs"], "total_s")
    ready = median(samples["ours"], "ready_s") / median(samples["theirs"], "total_s")
    print(f"ratio {ratio:.3f} (target: at most 0.10), {THREADS} threads, {rounds.rounds} rounds")
    write(
        "warm_start",
        {
            "machine": machine(),
            "ratio": ratio,
            "ratio_without_first_step": ready,
            "cold": cold,
            "samples": samples,
        },
    )


if __name__ == "__main__":
    main()
