"""How long does a second process take to its first result: backend graphspec against inductor with its caches hot?

A model of four small transformer layers, one graph, for inference. Fresh processes in turn; the clock runs from "torch
imported and model there" to "first output". The backend eager is what Dynamo takes by itself, with nothing compiled.
"""

import argparse
import os
import tempfile

from common import THREADS, fresh, machine, median, write

CHILD = "backend_child.py"
WAYS = ("graphspec", "inductor", "eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "GRAPHSPEC_CACHE_DIR": os.path.join(folder, "ours"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
        }
        cold = {way: fresh(CHILD, way, **variables) for way in WAYS}
        # The first hot run of inductor still fills caches.
        fresh(CHILD, "inductor", **variables)
        samples = {way: [] for way in WAYS}
        for _ in range(asked.rounds):
            for way in WAYS:
                samples[way].append(fresh(CHILD, way, **variables))
    for way, taken in samples.items():
        print(
            f"{way:10s} first output {median(taken, 'first_s'):7.3f} s, of a processor "
            f"{median(taken, 'first_cpu_s'):7.3f} s   a call {median(taken, 'call_us'):7.0f} us   "
            f"(cold {cold[way]['first_s']:.1f} s)"
        )
    assert all(o[0] == "hit" for s in samples["graphspec"] for o in s["outcomes"])
    assert not any(s["inductor_loaded"] for s in samples["graphspec"])
    # Processor time: what else runs on a machine disturbs it less.
    dynamo = median(samples["eager"], "first_cpu_s")
    beyond = {way: median(samples[way], "first_cpu_s") - dynamo for way in WAYS[:2]}
    ratio = median(samples["graphspec"], "first_s") / median(samples["inductor"], "first_s")
    print(f"seconds of a processor beyond Dynamo's own: {beyond}")
    print(f"ratio {ratio:.3f}, {THREADS} threads, {asked.rounds} rounds")
    write(
        "backend",
        {"machine": machine(), "ratio": ratio, "beyond": beyond, "cold": cold, "samples": samples},
    )


if __name__ == "__main__":
    main()
