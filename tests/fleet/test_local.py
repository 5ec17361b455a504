"""A fleet of local processes compiles each key once, and what goes wrong with some of it costs nothing else."""

import itertools
import os
import signal
import threading
from collections import Counter

import attrs
import pytest

from graphspec.errors import EnvironmentProblem
from graphspec.fleet.local import LocalExecutor
from graphspec.fleet.places import Place
from graphspec.fleet.plan import DEFAULT_SECONDS
from graphspec.fleet.report import State
from graphspec.fleet.run import FleetProgress, run_fleet
from graphspec.fleet.task import Resources


def states(report):
    return {job.job.unit: job.state for job in report.jobs}


def test_equal_keys_are_one_job_and_a_second_run_schedules_nothing(fleet_of):
    """Three variants of two units are four keys: one unit does not depend on the axis. The second run starts no worker."""
    fleet = fleet_of("tp_a", "b")
    report = fleet.run("tp=1,2,4")
    assert (report.plan.units, len(report.jobs)) == (6, 4)
    assert fleet.compiled == ["b", "tp_a", "tp_a", "tp_a"]
    assert not report.findings
    (shared,) = [job for job in report.jobs if job.job.unit == "b"]
    assert len(shared.job.wanted_by) == 3
    again = fleet.run("tp=1,2,4", executor=lambda: pytest.fail("a worker was asked for"))
    assert {job.state for job in again.jobs} == {State.PRESENT}
    assert again.as_dict()["scheduled"] == 0
    assert len(fleet.compiled) == 4


def test_a_poisoned_unit_and_a_lost_worker_leave_the_rest_stored(fleet_of):
    """A unit that does not compile is tried once, one whose worker dies once is made good, one that takes down each worker
    is given up. The others are stored, and the report names each."""
    fleet = fleet_of("fine", "poisoned", "unlucky", "deadly", "good")
    report = fleet.run(max_attempts=2)
    assert states(report) == {
        "fine": State.COMPILED,
        "good": State.COMPILED,
        "unlucky": State.COMPILED,
        "poisoned": State.FAILED,
        "deadly": State.LOST,
    }
    assert Counter(fleet.compiled) == {
        "fine": 1,
        "good": 1,
        "unlucky": 2,
        "poisoned": 1,
        "deadly": 2,
    }
    said = report.as_dict()
    (variant,) = said["variants"]
    assert variant["ready"] is False
    assert sorted(variant["missing"]) == ["deadly", "poisoned"]
    assert any("unlucky" in note and "signal 9" in note for note in said["notes"])
    assert any("poisoned" in f and "found poison" in f for f in said["findings"])
    assert any("deadly" in f and f.count("signal 9") == 2 for f in said["findings"])
    plan = fleet.plan()
    assert {job.unit for job in plan.missing} == {"poisoned", "deadly"}


def test_an_interrupt_ends_the_workers_and_keeps_what_was_stored(fleet_of):
    """A unit that waits for ever is cancelled with what stands behind it; what ended before is stored."""
    fleet = fleet_of("quick", "waits", "last")

    class Interrupts(FleetProgress):
        def ended(self, report):
            if report.job.unit == "quick":
                raise KeyboardInterrupt

    executor = LocalExecutor(2)
    report = fleet.run(executor=lambda: executor, progress=Interrupts())
    assert report.cancelled
    assert states(report)["waits"] is State.CANCELLED
    assert "cancelled" in report.findings[-1]
    assert not any(thread.is_alive() for thread in executor._threads)
    assert "waits" in {job.unit for job in fleet.plan().missing}
    stored = {job.unit for job in fleet.plan().jobs if job.place is Place.SHARED}
    assert "quick" in stored


def test_a_full_store_is_a_finding_for_each_unit_that_did_not_fit(fleet_of, mounted):
    """What fits is stored, and what does not is named with the reason; nothing half written is left."""
    fleet = attrs.evolve(fleet_of("a", "b"), cache=str(mounted("size=16k")))
    with (
        open(f"{fleet.cache}/filler", "wb", buffering=0) as file,
        pytest.raises(OSError, match="No space left"),
    ):
        file.writelines(itertools.repeat(bytes(4096)))
    report = fleet.run()
    assert set(states(report).values()) == {State.NOT_STORED}
    assert all("no space is left" in finding for finding in report.findings)


def test_a_worker_with_another_key_says_which_factor_differs(fleet_of, monkeypatch):
    """A node whose environment changes code compiles nothing under a key that is not its own."""
    fleet = fleet_of("a")
    plan = fleet.plan()
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    report = run_fleet(plan, lambda: LocalExecutor(1))
    (job,) = report.jobs
    assert job.state is State.DIFFERS
    assert "TORCHINDUCTOR_FREEZING" in job.reason
    assert not fleet.compiled


def test_the_longest_expected_unit_starts_first(fleet_of):
    """Stored entries tell what a unit of the same name takes; of unknown units the median of the others is expected."""
    assert {j.expected_seconds for j in fleet_of("a", "b").plan().jobs} == {DEFAULT_SECONDS}
    fleet = fleet_of("tp_a", "tp_b")
    plan = fleet.plan("tp=1")
    seconds = {"tp_a": 1.0, "tp_b": 9.0}
    tasks = [attrs.evolve(j.task, expected_seconds=seconds[j.unit]) for j in plan.jobs]
    with LocalExecutor(1) as executor:
        # Before any worker is there, as when all workers are busy.
        with executor._changed:
            for task in sorted(tasks, key=lambda task: task.unit):
                executor.submit(task)
        assert [ended.task.unit for ended in executor.as_completed()] == ["tp_b", "tp_a"]
    planned = fleet.plan("tp=1,2")
    assert {job.expected_from for job in planned.missing} == {"stored entries of this unit"}
    assert {job.expected_seconds for job in planned.missing} == {1.0}


def test_what_only_the_own_folder_holds_is_published_and_not_compiled(fleet_of, tmp_path):
    """A tier that is lost is filled again from the driver's folder, and another node then lacks nothing."""
    tier = tmp_path / "tier"
    tier.mkdir(mode=0o700)
    fleet = fleet_of("a", "b", cache={"remote": [f"file://{tier}"]})
    assert set(states(fleet.run()).values()) == {State.COMPILED}
    for path in tier.rglob("*.entry"):
        path.unlink()
    report = fleet.run(executor=lambda: pytest.fail("a worker was asked for"))
    assert set(states(report).values()) == {State.PUBLISHED}
    elsewhere = fleet.plan(cache=str(tmp_path / "another"))
    assert {job.place for job in elsewhere.jobs} == {Place.SHARED}
    assert len(fleet.compiled) == 2


def test_a_unit_that_no_worker_can_take_is_refused_before_any_starts(fleet_of):
    """A GPU that is not there is an error with the units' names, not a wait for ever."""
    fleet = fleet_of("a", "b")
    plan = fleet.plan()
    jobs = [
        attrs.evolve(j, task=attrs.evolve(j.task, resources=Resources(gpus=1))) for j in plan.jobs
    ]
    with pytest.raises(EnvironmentProblem, match=r"units a, b(.|\n)*takes a GPU"):
        run_fleet(attrs.evolve(plan, jobs=tuple(jobs)), lambda: LocalExecutor(1))


def test_a_contract_that_no_process_can_be_sent_is_told_and_waited_for_by_nobody(fleet_of):
    """A class that only this process has cannot be pickled: the unit is given up with that reason, and no worker starts."""
    fleet = fleet_of("a")
    plan = fleet.plan()
    jobs = [attrs.evolve(j, task=attrs.evolve(j.task, spec=lambda: None)) for j in plan.jobs]
    with LocalExecutor(1) as executor:
        executor.submit(jobs[0].task)
        (ended,) = executor.as_completed()
        assert "cannot be sent" in ended.lost
        assert not executor._workers


def test_workers_end_with_their_driver(fleet_of):
    """Leaving the executor leaves no process behind, whether its worker is idle or at work."""
    fleet = fleet_of("waits", "quick")
    plan = fleet.plan()
    with LocalExecutor(2) as executor:
        for job in plan.jobs:
            executor.submit(job.task)
        first = next(executor.as_completed())
        assert first.task.unit == "quick"
        pids = [worker._process.pid for worker in executor._workers]
        assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert not [t for t in threading.enumerate() if t in executor._threads]
