"""How much padding does the best ladder save, and how long does it take to find?

Padding: for each histogram of bench/data (see bench/traffic.py) and two schedules of up to 512 requests, the expected
padded tokens of a step with the fixed ladder that engines use (1, 2, 4, 8 by 8, 256 by 16, and each tier's last size)
and with the best ladder of as many graphs, and of half as many. A ladder that is best for one day is not best for the
next: `next day` is the same ladder on a histogram of the same kind from another seed. Target: at least 25 percent less.
The ramp is there because it has least to gain: it visits every size up to 512 alike, which a fixed ladder is made for.

Time: the best ladder of 512 sizes and 40 graphs, for one depth and for four, all sizes occurring; and beside it the
same with a limit in MiB, a budget that drops graphs from the fixed ladder, and a quadratic program for one layer, to
tell a busy machine. In turns. Target: under 200 ms.
"""

import argparse
import os
import statistics
import time

from common import HERE, machine, write
from traffic import KINDS, MAX_NUM_SEQS, SEED, histogram

from graphspec.capture.best_ladder import best_ladder
from graphspec.capture.budget import apply_budget
from graphspec.capture.ladder_choice import default_ladder
from graphspec.capture.limits import CostLimit
from graphspec.capture.padding import expected_padding
from graphspec.capture.traffic import Traffic
from graphspec.capture.traffic_file import read_traffic
from graphspec.config.schedule import dense_schedule

TARGET_FEWER, TARGET_MS = 0.25, 200.0
GRAPHS = 40
SCHEDULES = {
    "k=3": dense_schedule(None, 3, MAX_NUM_SEQS),
    "k=7/4/2/1": dense_schedule([(1, 8, 7), (9, 32, 4), (33, 128, 2), (129, 512, 1)], 7, 512),
}
MIB = CostLimit(
    name="max_mib", unit="MiB", most=900, of=lambda k, size: 20.3 + 0.0117 * size * (1 + k)
)


def fixed_ladder(schedule) -> dict:
    """The ladder of the target, which is not what `request_ladder` makes."""
    steps = {1, 2, 4, *range(8, 256, 8), *range(256, MAX_NUM_SEQS + 1, 16)}
    return {
        k: tuple(sorted(s for s in steps | {last} if first <= s <= last))
        for first, last, k in schedule.tiers
    }


def count(buckets) -> int:
    return sum(map(len, buckets.values()))


def compare(kind: str, schedule) -> dict:
    today = read_traffic(str(HERE / "data" / f"{kind}.json"), max_num_seqs=MAX_NUM_SEQS)
    demands = today.split(schedule)
    tomorrow = Traffic.of(histogram(kind, SEED + 1)).split(schedule)
    fixed = fixed_ladder(schedule)
    default = default_ladder(schedule)
    best = best_ladder(demands, count(fixed))
    half = best_ladder(demands, max(count(fixed) // 2, len(demands)))
    result = {"graphs": count(fixed), "half_graphs": count(half), "default_graphs": count(default)}
    for name, ladder in (("fixed", fixed), ("best", best), ("half", half), ("default", default)):
        result[name] = expected_padding(ladder, demands).padded_tokens
        result[f"{name}_next_day"] = expected_padding(ladder, tomorrow).padded_tokens
    result["useful"] = expected_padding(fixed, demands).useful_tokens
    result["fewer"] = 1 - result["best"] / result["fixed"]
    result["fewer_next_day"] = 1 - result["best_next_day"] / result["fixed_next_day"]
    result["fewer_with_half"] = 1 - result["half"] / result["fixed"]
    return result


def quadratic_layer(sizes: list[int]) -> list[int]:
    """What a plain program does for one more graph: every size against every other."""
    return [min((end - start) * end for start in range(end)) for end in sizes]


def actions() -> dict:
    traffic = Traffic.of({s: 1 + s * 7919 % 101 for s in range(1, MAX_NUM_SEQS + 1)})
    one, four = (traffic.split(schedule) for schedule in SCHEDULES.values())
    fixed = fixed_ladder(SCHEDULES["k=3"])
    drop = CostLimit(name="max_graphs", unit="graphs", most=10, of=lambda _k, _s: 1)
    return {
        "best_ladder_one_depth": lambda: best_ladder(one, GRAPHS),
        "best_ladder_four_depths": lambda: best_ladder(four, GRAPHS),
        "best_ladder_one_depth_900_mib": lambda: best_ladder(one, None, MIB),
        "budget_drops_41_of_51": lambda: apply_budget(fixed, one, [drop]),
        "quadratic_layer": lambda: quadratic_layer(list(range(1, MAX_NUM_SEQS + 1))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    began_at = os.getloadavg()
    padding = {
        kind: {name: compare(kind, schedule) for name, schedule in SCHEDULES.items()}
        for kind in KINDS
    }
    for kind, rows in padding.items():
        for name, row in rows.items():
            print(
                f"{kind}, {name}: {row['graphs']} graphs, padded tokens a step: fixed {row['fixed']:.3f}, "
                f"best {row['best']:.3f} ({row['fewer']:.0%} fewer; next day {row['fewer_next_day']:.0%}), "
                f"with {row['half_graphs']} graphs {row['half']:.3f} ({row['fewer_with_half']:.0%} fewer)"
            )
    least = {kind: min(row["fewer"] for row in rows.values()) for kind, rows in padding.items()}
    met = [kind for kind, fewer in least.items() if fewer >= TARGET_FEWER]
    print(f"target: at least {TARGET_FEWER:.0%} fewer; met on {', '.join(met)}")
    for kind in least.keys() - met:
        print(
            f"not met on {kind}: {least[kind]:.0%}; that is the optimum, so no ladder of as many graphs would"
        )
    taken: dict = {name: [] for name in actions()}
    names = list(taken)
    ready = actions()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            ready[name]()
            taken[name].append((time.perf_counter() - began) * 1000)
    for name, samples in taken.items():
        print(f"{name}: median {statistics.median(samples):.1f} ms, least {min(samples):.1f} ms")
    print(
        f"target: {MAX_NUM_SEQS} sizes and {GRAPHS} graphs under {TARGET_MS:.0f} ms; {rounds} rounds in turns; "
        f"load average {began_at[0]:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores"
    )
    write(
        "ladder",
        {
            "machine": machine(),
            "load_average_before": began_at,
            "target_fewer": TARGET_FEWER,
            "target_ms": TARGET_MS,
            "padding": padding,
            "least_fewer": least,
            "milliseconds": taken,
        },
    )


if __name__ == "__main__":
    main()
