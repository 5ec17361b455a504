"""How many processors this process may use."""

import os


def usable_cpus() -> int:
    """CPUs that the process is allowed to run on, where the system tells; otherwise all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
