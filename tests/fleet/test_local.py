"""A fleet of local processes compiles each key once, and what goes wrong with some of it costs nothing else."""

import itertools
import os
import signal
import threading
from collections import Counter

import attrs
import pytest

from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.fleet.local import LocalExecutor
from graphspec.fleet.places import Place
from graphspec.fleet.plan import DEFAULT_SECONDS
from graphspec.fleet.report import State
from graphspec.fleet.run import FleetProgress, run_fleet
from graphspec.fleet.task import Resources


def states(report):
    return {job.job.unit: job.state for job in report.jobs}


def test_equal_keys_are_one_job_and_a_second_run_schedules_nothing(fleet_of, inline):
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


@pytest.mark.deep
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

    executor, pids = LocalExecutor(2), []

    class Interrupts(FleetProgress):
        def ended(self, report):
            if report.job.unit == "quick":
                pids.extend(worker._process.pid for worker in executor._workers)
                raise KeyboardInterrupt

    report = fleet.run(executor=lambda: executor, progress=Interrupts())
    assert report.cancelled
    assert states(report)["waits"] is State.CANCELLED
    assert "cancelled" in report.findings[-1]
    assert not any(thread.is_alive() for thread in executor._threads)
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert "waits" in {job.unit for job in fleet.plan().missing}
    stored = {job.unit for job in fleet.plan().jobs if job.place is Place.SHARED}
    assert "quick" in stored


def test_a_full_store_is_a_finding_for_each_unit_that_did_not_fit(fleet_of, mounted, inline):
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


def test_a_worker_with_another_key_says_which_factor_differs(fleet_of, monkeypatch, inline):
    """A node whose environment changes code compiles nothing under a key that is not its own."""
    fleet = fleet_of("a")
    plan = fleet.plan()
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    report = run_fleet(plan, inline)
    (job,) = report.jobs
    assert job.state is State.DIFFERS
    assert "TORCHINDUCTOR_FREEZING" in job.reason
    assert not fleet.compiled


def test_the_longest_expected_unit_comes_first(fleet_of, inline):
    """Stored entries tell what a unit of the same name takes. Without any, all units are expected to take the same."""
    fleet = fleet_of("tp_a", "b")
    assert {job.expected_seconds for job in fleet.plan().jobs} == {DEFAULT_SECONDS}
    fleet.run("tp=1")
    planned = fleet_of("tp_a", "tp_c").plan("tp=1,2")
    assert [(job.unit, job.expected_from) for job in planned.missing] == [
        ("tp_a", "stored entries of this unit"),
        ("tp_c", "stored entries of other units"),
        ("tp_c", "stored entries of other units"),
    ]
    assert {job.expected_seconds for job in planned.missing} == {1.0}


def test_a_busy_worker_takes_the_longest_expected_task_next(fleet_of):
    """Whatever the order in which they came: a task that is tried again does not go to the end."""
    jobs = fleet_of("a", "b", "c").plan().jobs
    seconds = {"a": 1.0, "b": 9.0, "c": 5.0}
    executor = LocalExecutor(1)
    # As if its one worker were busy.
    executor._threads.append(threading.Thread())
    for job in jobs:
        executor.submit(attrs.evolve(job.task, expected_seconds=seconds[job.unit]))
    assert [executor._next().unit for _ in jobs] == ["b", "c", "a"]


def test_what_only_the_own_folder_holds_is_published_and_not_compiled(fleet_of, tmp_path, inline):
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


@pytest.mark.parametrize(
    "axis",
    [
        'cache.remote=["file:/mnt/one"],["file:/mnt/two"]',
        'cache.remote=[],["file:/mnt/two"]',
        "cache.enabled=true,false",
        "cache.trust=null,/keys/one.pub",
        "cache.signing_key=/keys/one.pem,/keys/two.pem",
    ],
)
def test_variants_that_keep_entries_in_different_places_are_refused(fleet_of, axis):
    """A shared unit is stored once, so one of the two would not find it."""
    fleet = fleet_of("a")
    with pytest.raises(SpecError) as raised:
        fleet.plan(axis)
    (problem,) = raised.value.problems
    assert problem.where.endswith(": " + axis.partition("=")[0])
    assert "/mnt/" not in problem.found
    assert "/keys/" not in problem.found


def test_limits_of_the_cache_may_differ_between_variants(fleet_of):
    """They change nothing about where an entry is."""
    fleet = fleet_of("a")
    assert len(fleet.plan("cache.max_entries=10,20").jobs) == 1
