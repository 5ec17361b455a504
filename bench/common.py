"""What the benchmarks share: fresh interpreters taken in turn, medians, and results as JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
THREADS = 2


def fresh(script: str, *arguments: str, **variables: str) -> dict:
    """The last line that a fresh interpreter prints when it runs `script`, as JSON. Threads are pinned."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(THREADS),
        "MKL_NUM_THREADS": str(THREADS),
        **variables,
    }
    ran = subprocess.run(
        [sys.executable, "-P", str(HERE / script), *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)} failed:\n{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def median(samples: list[dict], name: str) -> float:
    return statistics.median(s[name] for s in samples)


def machine() -> dict:
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": THREADS,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "load_average": os.getloadavg(),
    }


def write(name: str, result: dict) -> None:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"written: bench/results/{name}.json")
