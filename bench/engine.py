"""What the reference engine is worth in tokens a second. Ratios in one run, every way in turn, medians.

- **Speculation**: greedy n-gram drafts against none, ten prompts that copy much, one at a time.
- **transformers**: ``generate`` on the same weights, prompts and threads, at batch 1 and 8 without speculation, and at
  batch 1 with its prompt lookup against our n-gram drafts. Both make the same number of tokens, and none ends early.
- **Bound**: a decode step at batch 1 against the time that the machine's best matrix-vector product takes over as many
  bytes of weights, both in turn.
- **Overhead**: the part of a decode step at batch 16 that is spent neither in compiled units nor in attention.
- **After ready**: compiles and captures, counted.

The machine's own rate changes by the minute, so each round runs every way once, in random order.
"""

import argparse
import random
import statistics
import time

from common import THREADS, fresh, machine, write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=10, help="how many of the ten")
    asked = parser.parse_args()
    result = {
        "machine": machine(),
        **fresh("engine_child.py", str(asked.rounds), str(asked.tokens), str(asked.prompts)),
    }
    show(result)
    write("engine", result)


def show(result: dict) -> None:
    rates = {name: statistics.median(samples) for name, samples in result["tokens_per_s"].items()}
    for name, rate in rates.items():
        print(f"{name:34s} {rate:7.1f} tokens/s")

    def ratio(one: str, other: str, target: float) -> None:
        pairs = zip(result["tokens_per_s"][one], result["tokens_per_s"][other], strict=True)
        found = statistics.median(a / b for a, b in pairs)
        result.setdefault("ratios", {})[f"{one} / {other}"] = found
        print(f"{one} / {other}: {found:.2f} (target: at least {target})")

    ratio("ngram, batch 1", "plain, batch 1", 2.0)
    ratio("plain, batch 1", "transformers, batch 1", 1.3)
    ratio("plain, batch 8", "transformers, batch 8", 1.3)
    ratio("ngram, batch 1", "transformers prompt lookup", 2.0)
    a = result["acceptance"]
    print(
        f"acceptance length of n-gram drafts {a['tokens'] / a['steps']:.2f} in {a['steps']} steps"
    )
    steps, bounds = result["step_ms"], result["bound_ms"]
    share = statistics.median(b / s for s, b in zip(steps, bounds, strict=True))
    result["share_of_bound"] = share
    print(
        f"decode step at batch 1 {statistics.median(steps):.1f} ms, bound {statistics.median(bounds):.1f} ms: "
        f"{100 * share:.0f} % of the bound's rate (target: at least 60 %)"
    )
    print(
        f"overhead at batch 16: {100 * result['overhead']:.1f} % of a step of {result['step16_ms']:.0f} ms (target: under 10 %)"
    )
    print(
        f"after ready: {result['compiled']} compiles, {result['captured']} captures (target: 0, 0)"
    )
    print(f"{THREADS} threads, load average {result['load']}")


if __name__ == "__main__":
    random.seed(1)
    began = time.perf_counter()
    main()
    print(f"{time.perf_counter() - began:.0f} s")
