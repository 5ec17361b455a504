"""One run of a fleet in a fresh process, for bench/fleet.py. Prints one JSON line: fleet_child.py EXECUTOR CACHE_DIR."""

import json
import os
import sys
import time

import fleet_units

BEGAN = time.perf_counter()


def main(name: str, cache_dir: str) -> None:
    os.environ[fleet_units.DRIVER] = str(os.getpid())
    from graphspec.fleet.local import LocalExecutor
    from graphspec.fleet.matrix import expand
    from graphspec.fleet.on_ray import RayExecutor
    from graphspec.fleet.plan import plan_fleet
    from graphspec.fleet.run import FleetProgress, run_fleet

    class Started(FleetProgress):
        at = 0.0

        def started(self, plan, executor, slots):
            self.at = time.perf_counter()

    imported = time.perf_counter()
    settings = ["program=fleet_units:program"]
    variants = expand(["examples/smollm2-ngram.yaml"], settings=settings)
    plan = plan_fleet(variants, cache_dir=cache_dir)
    planned = time.perf_counter()
    made = {"local": lambda: LocalExecutor(2), "ray": lambda: RayExecutor(slots=2)}[name]
    told = Started()
    report = run_fleet(plan, made, progress=told)
    ended = time.perf_counter()
    assert not report.findings, report.findings
    print(
        json.dumps(
            {
                "import_s": imported - BEGAN,
                "plan_s": planned - imported,
                "start_s": max(0.0, told.at - planned),
                "run_s": report.seconds,
                "after_import_s": ended - imported,
                "scheduled": len(plan.missing),
                "tries": sum(job.attempts for job in report.jobs),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
