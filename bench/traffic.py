"""Makes bench/data/*.json: histograms of batch sizes of decode steps, from a simulated queue with a fixed seed.

    python bench/traffic.py

One step of the loop is one decode step. Requests arrive by a Poisson process whose rate is what the histograms differ
in, wait while `MAX_NUM_SEQS` others run, and leave after a number of steps that is log-normal: median 120, and one in
twenty above 500. The number that runs is the batch size of the step. Steps without any request are not counted.

| name | rate of arrivals |
|---|---|
| steady | constant, for about 100 requests at once |
| bursty | about 20 at once; one in 1500 steps begins a burst of about 300, in which seven times as many arrive |
| long_tail | about 4 at once; one in 4000 steps, a batch job hands in up to 700 requests at once, mostly few |
| ramp | rises evenly from none to what fills the engine, and falls again |

Nothing here was measured on a real engine: they are shapes to compare ladders on, not a claim about anybody's traffic.
"""

import json
import math
import random
from collections import Counter

from common import HERE

MAX_NUM_SEQS = 512
STEPS = 60_000
SEED = 20_240
MEDIAN_STEPS, SPREAD = 120, 0.9
MEAN_STEPS = MEDIAN_STEPS * math.exp(SPREAD**2 / 2)


def steady(_step: int, _random: random.Random, _state: dict) -> float:
    return 100 / MEAN_STEPS


def bursty(step: int, random_: random.Random, state: dict) -> float:
    if random_.random() < 1 / 1500:
        state["until"] = step + random_.expovariate(1 / 300)
    return (140 if step < state.get("until", 0) else 20) / MEAN_STEPS


def long_tail(_step: int, random_: random.Random, _state: dict) -> float:
    job = random_.random() < 1 / 4000
    return min(700.0, random_.paretovariate(0.6) * 4) if job else 4 / MEAN_STEPS


def ramp(step: int, _random: random.Random, _state: dict) -> float:
    return 560 * (1 - abs(2 * step / STEPS - 1)) / MEAN_STEPS


KINDS = {"steady": steady, "bursty": bursty, "long_tail": long_tail, "ramp": ramp}


def arrivals(rate: float, random_: random.Random) -> int:
    """A Poisson number, by counting exponential gaps."""
    count, time = 0, random_.expovariate(1.0)
    while time < rate:
        count += 1
        time += random_.expovariate(1.0)
    return count


def histogram(kind: str, seed: int = SEED) -> dict[int, int]:
    """Batch size to number of decode steps."""
    rate, random_ = KINDS[kind], random.Random(f"{kind} {seed}")
    state: dict = {}
    sizes: Counter = Counter()
    leaving: Counter = Counter()
    running = waiting = 0
    for step in range(STEPS):
        running -= leaving.pop(step, 0)
        waiting += arrivals(rate(step, random_, state), random_)
        while waiting and running < MAX_NUM_SEQS:
            waiting, running = waiting - 1, running + 1
            took = math.ceil(random_.lognormvariate(math.log(MEDIAN_STEPS), SPREAD))
            leaving[step + took] += 1
        if running:
            sizes[running] += 1
    return dict(sorted(sizes.items()))


def main() -> None:
    folder = HERE / "data"
    folder.mkdir(exist_ok=True)
    for kind in KINDS:
        made = histogram(kind)
        about = {
            "about": f"{kind}: batch sizes of {sum(made.values())} decode steps of a simulated queue, "
            f"max_num_seqs {MAX_NUM_SEQS}; what it simulates is said in bench/traffic.py",
            "made_by": "python bench/traffic.py",
            "seed": SEED,
        }
        text = json.dumps({**about, "batch_sizes": {str(s): n for s, n in made.items()}}, indent=1)
        (folder / f"{kind}.json").write_text(text + "\n")
        steps = sum(made.values())
        mean = sum(s * n for s, n in made.items()) / steps
        print(f"{kind}: {steps} steps, {len(made)} sizes, mean {mean:.1f}, largest {max(made)}")


if __name__ == "__main__":
    main()
