"""How long does a warmup of the example for a GPU that is not here take, beside one for the CPU that is?

Both are cold, in fresh processes and fresh folders, taken in turn, with the same compiler processes at once. The GPU's units
and the CPU's are compared alone, and each whole command: that for the GPU compiles the kernels of verification and drafting
besides, that for the CPU reads weights and captures graphs. Needs a CUDA build of torch and no GPU: make cross-test first.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

from common import ROOT, machine, median, write

CONFIG = str(ROOT / "examples" / "smollm2-ngram.yaml")


def timed(*words: str) -> tuple[float, dict]:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "graphspec", "warmup", "--config", CONFIG),
                *("--json", "--cache-dir", folder, *words),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return time.perf_counter() - began, json.loads(ran.stdout)


def native(jobs: str) -> dict:
    seconds, said = timed("--jobs", jobs)
    return {"wall_s": seconds, "units_s": said["phases"]["units"]}


def elsewhere(jobs: str, device: str) -> dict:
    seconds, said = timed("--jobs", jobs, "--device", device)
    assert said["findings"] == [], said["findings"]
    return {
        "wall_s": seconds,
        "units_s": sum(u["seconds"] for u in said["units"]),
        "kernels_s": sum(k["seconds"] for k in said["kernels"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--jobs", default="2", help="compiler processes at once")
    asked = parser.parse_args()
    pairs = [(native(asked.jobs), elsewhere(asked.jobs, asked.device)) for _ in range(asked.rounds)]
    here, there = [h for h, _ in pairs], [t for _, t in pairs]
    wall = median(there, "wall_s") / median(here, "wall_s")
    print(f"for the CPU: {median(here, 'wall_s'):.1f} s, units {median(here, 'units_s'):.1f} s")
    print(
        f"for {asked.device}: {median(there, 'wall_s'):.1f} s; units one after another "
        f"{median(there, 'units_s'):.1f} s, kernels {median(there, 'kernels_s'):.1f} s"
    )
    print(f"ratio of the commands: {wall:.2f} (target 1.5)")
    write("cross", {"machine": machine(), "ratio": wall, "native": here, "elsewhere": there})


if __name__ == "__main__":
    main()
