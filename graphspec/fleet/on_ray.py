"""`RayExecutor`: tasks on the nodes of a Ray cluster. Needs the package `ray`."""

import functools
import importlib.util
import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from graphspec.errors import EnvironmentProblem, Problem
from graphspec.fleet.executor import Ended
from graphspec.fleet.task import Done, Resources, Task

if TYPE_CHECKING:
    from graphspec.fleet.perform import Compilers

_LOOK_S = 30.0
"""How often to look whether there are still nodes, while nothing ends."""


def _ray() -> Any:
    """The package, whose hints say less than its documentation allows."""
    import ray

    return ray


class RayExecutor:
    """Tasks of a Ray cluster: the one at `address`, or one of this machine's own with `slots` workers.

    Each task states CPUs, memory and GPUs, and Ray places it. Ray itself repeats nothing. `address` is as for
    ``ray.init``: ``auto`` for the cluster that this machine is part of, ``HOST:6379``, or ``ray://HOST:10001``.
    """

    name = "ray"

    def __init__(self, address: str | None = None, *, slots: int | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise EnvironmentProblem(
                Problem(
                    where="--executor ray",
                    found="no package ray",
                    wanted="Ray, on this machine and on each node",
                    hint="pip install 'graphspec-engine[ray]', or use --executor local",
                )
            )
        self._address = address
        self._asked_slots = slots
        self._pending: dict[Any, Task] = {}
        self._started = False
        self._remote: Any = None
        self.slots = slots or 0

    def why_not(self, resources: Resources) -> str:
        ray = _ray()
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": resources.cpus, "memory": resources.memory_bytes, "GPU": resources.gpus}
        if any(all(node.get(name, 0) >= n for name, n in wanted.items()) for node in alive):
            return ""
        asked = ", ".join(f"{amount} {name}" for name, amount in wanted.items() if amount)
        return f"no node of the cluster has {asked}; it has {len(alive)} nodes"

    def submit(self, task: Task) -> None:
        needs = task.resources
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory_bytes}
        made = self._remote.options(**{k: v for k, v in options.items() if v}).remote(task)
        self._pending[made] = task

    def as_completed(self) -> Iterator[Ended]:
        ray = _ray()
        while self._pending:
            done, _ = ray.wait(list(self._pending), num_returns=1, timeout=_LOOK_S)
            for ended in done:
                yield self._ended(ended, self._pending.pop(ended))
            if not done:
                yield from self._stranded()

    def cancel(self) -> None:
        ray = _ray()
        for pending in self._pending:
            # By force: a compiler does not look for an interrupt.
            ray.cancel(pending, force=True)
        self._pending.clear()

    def __enter__(self) -> Self:
        ray = _ray()
        if not ray.is_initialized():
            own = {"num_cpus": self._asked_slots} if self._address is None else {}
            # Its usage report goes to the network, and its dashboard takes seconds: neither is for a tool that ends.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(
                    address=self._address or "local",
                    include_dashboard=False if self._address is None else None,
                    log_to_driver=False,
                    logging_level="error",
                    **own,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise EnvironmentProblem(
                    Problem(
                        where=f"--address {self._address}",
                        found=" ".join(str(error).split()),
                        wanted="a Ray cluster that answers",
                        hint="start one with: ray start --head; without --address, one of this machine is made",
                    )
                ) from None
            self._started = True
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        # A worker that dies is told to the driver, which counts: Ray would repeat without a word.
        self._remote = ray.remote(max_retries=0, retry_exceptions=False)(_perform)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray = _ray()
        self.cancel()
        if self._started:
            ray.shutdown()
            self._started = False

    def _stranded(self) -> Iterator[Ended]:
        """Tasks that no node which is left could take: Ray would let them wait for one."""
        reasons = {
            needs: self.why_not(needs) for needs in {t.resources for t in self._pending.values()}
        }
        ray = _ray()
        for waiting, task in list(self._pending.items()):
            if reason := reasons[task.resources]:
                ray.cancel(waiting, force=True)
                del self._pending[waiting]
                yield Ended(task=task, lost=reason)

    def _ended(self, ended: Any, task: Task) -> Ended:
        ray = _ray()
        try:
            done: Done = ray.get(ended)
        except ray.exceptions.RayError as error:
            # The first line says what happened to the worker; what follows tells how to debug Ray.
            said = str(error).strip().splitlines() or [""]
            return Ended(task=task, lost=f"{type(error).__name__}: {said[0]}")
        return Ended(task=task, done=done)


@functools.cache
def _compilers() -> "Compilers":
    """One for each worker process, whose end ends them: Ray gives a task nowhere else to keep what outlives it."""
    from graphspec.fleet.perform import Compilers

    return Compilers()


def _perform(task: Task) -> Done:
    from graphspec.fleet.perform import perform

    return perform(task, _compilers())
