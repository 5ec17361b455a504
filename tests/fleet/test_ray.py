"""The same fleet on a real Ray cluster of this machine: two workers, one of which is killed."""

import os
from collections import Counter

import pytest

from graphspec.fleet.on_ray import RayExecutor
from graphspec.fleet.report import State
from graphspec.fleet.run import FleetProgress
from graphspec.fleet.task import Resources

pytestmark = [pytest.mark.deep, pytest.mark.slow]


@pytest.fixture
def ray_path(monkeypatch):
    """Workers of Ray are started with this variable's path, and need the tests' own modules."""
    pytest.importorskip("ray")
    from support.processes import TESTS

    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    )


@pytest.mark.filterwarnings("ignore")
def test_a_matrix_on_two_workers_loses_nothing_when_one_is_killed(fleet_of, ray_path):
    """The worker of one unit kills itself in mid-compile: the unit is compiled by another. A poisoned unit fails once, a
    deadly one is given up; each other key is compiled exactly once, and a second run starts no cluster."""
    fleet = fleet_of("tp_a", "b", "unlucky", "poisoned", "deadly")
    report = fleet.run("tp=1,2", executor=lambda: RayExecutor(slots=2))
    assert (report.executor, report.slots) == ("ray", 2)
    by_state = Counter((job.job.unit, job.state) for job in report.jobs)
    assert by_state == {
        ("tp_a", State.COMPILED): 2,
        ("b", State.COMPILED): 1,
        ("unlucky", State.COMPILED): 1,
        ("poisoned", State.FAILED): 1,
        ("deadly", State.LOST): 1,
    }
    assert Counter(fleet.compiled) == {"tp_a": 2, "b": 1, "unlucky": 2, "poisoned": 1, "deadly": 3}
    assert any("unlucky" in note and "WorkerCrashed" in note for note in report.notes)
    assert {job.unit for job in fleet.plan("tp=1,2").missing} == {"poisoned", "deadly"}


@pytest.mark.filterwarnings("ignore")
def test_a_node_that_is_lost_takes_nothing_with_it(fleet_of, ray_path):
    """Both nodes are in the middle of a unit when one of them is killed: the other compiles both in the end."""
    import threading

    from ray.cluster_utils import Cluster

    fleet = fleet_of("waits_a", "waits_b")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)

    def kill_one() -> None:
        while len(fleet.compiled) < 2:
            os.sched_yield()
        cluster.remove_node(node, allow_graceful=False)

    class Told(FleetProgress):
        def lost(self, job, attempt, reason):
            # Not before: a worker may outlive its node for long enough to answer.
            (fleet.folder / "go").touch()

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        report = fleet.run(executor=lambda: RayExecutor(cluster.address), progress=Told())
    finally:
        killer.join()
        cluster.shutdown()
    assert {job.state for job in report.jobs} <= {State.COMPILED, State.FOUND}
    assert sum(bool(job.lost) for job in report.jobs) == 1
    assert not fleet.plan().missing


@pytest.mark.filterwarnings("ignore")
def test_what_no_node_has_is_said_before_anything_starts(ray_path):
    """A GPU that no node has is a sentence; a task that waits for one would wait for ever."""
    with RayExecutor(slots=1) as executor:
        assert executor.why_not(Resources()) == ""
        assert "1 GPU" in executor.why_not(Resources(gpus=1))
        assert "4 CPU" in executor.why_not(Resources(cpus=4))
