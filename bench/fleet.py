"""What does a fleet warmup cost beside the compiles, and how long does one take that has nothing to do?

Units take a stated time to compile and no processor. With two workers the compiles alone take half of their sum. What a
run takes beyond that is overhead: start of the workers (importing torch in each), keys made again there, stores, reports.
"""

import argparse
import os
import tempfile

from common import HERE, fresh, machine, median, write

CHILD = "fleet_child.py"
WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one compile")
    parser.add_argument("--executors", default="local,ray")
    parser.add_argument("--second-runs", type=int, default=3)
    asked = parser.parse_args()
    variables = {
        "FLEET_BENCH_UNITS": str(asked.units),
        "FLEET_BENCH_SECONDS": str(asked.seconds),
        # Workers of both kinds import the program by name.
        "PYTHONPATH": str(HERE),
    }
    alone = asked.units * asked.seconds / WORKERS
    result = {
        "machine": machine(),
        "units": asked.units,
        "seconds": asked.seconds,
        "alone_s": alone,
    }
    print(
        f"{asked.units} units of {asked.seconds} s on {WORKERS} workers: the compiles alone take {alone:.1f} s"
    )
    print("load average", *(f"{load:.1f}" for load in os.getloadavg()))
    for name in asked.executors.split(","):
        with tempfile.TemporaryDirectory() as folder:
            first = fresh(CHILD, name, folder, **variables)
            again = [fresh(CHILD, name, folder, **variables) for _ in range(asked.second_runs)]
        assert first["scheduled"] == first["tries"] == asked.units
        assert all(run["scheduled"] == run["tries"] == 0 for run in again)
        over = first["run_s"] / alone - 1
        print(
            f"{name}: {first['run_s']:.1f} s, {over:.1%} above the compiles (target 5%); "
            f"planning {first['plan_s']:.2f} s, starting the executor {first['start_s']:.2f} s"
        )
        print(
            f"{name}, second run: nothing scheduled, {median(again, 'after_import_s'):.2f} s "
            f"(target 2 s) after {median(again, 'import_s'):.2f} s of imports"
        )
        result[name] = {"first": first, "again": again, "overhead": over}
    write("fleet", result)


if __name__ == "__main__":
    main()
