"""`run_fleet`: schedules what a plan misses, tries again what lost workers took with them, and tells the truth at the end."""

import time
from collections.abc import Callable, Sequence

import attrs

from graphspec.config.cache import CacheConfig
from graphspec.fleet.executor import Ended, Executor
from graphspec.fleet.places import Place, Places
from graphspec.fleet.plan import FleetPlan, Job, unplaced
from graphspec.fleet.report import FleetReport, JobReport, State
from graphspec.fleet.task import Resources, Task

MAX_ATTEMPTS = 3
"""Workers that one unit may take down: a machine that is lost is chance, three in a row are the unit."""


class FleetProgress:
    """Told of each step of a fleet warmup, from one thread. Override what is of interest."""

    def started(self, plan: FleetPlan, executor: str, slots: int) -> None:
        """The workers are there; nothing is scheduled yet."""

    def ended(self, report: JobReport) -> None:
        """A job ended for good."""

    def lost(self, job: Job, attempt: int, reason: str) -> None:
        """A worker was lost, and its job is tried again."""


def run_fleet(
    plan: FleetPlan,
    executor: Callable[[], Executor],
    *,
    progress: FleetProgress | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> FleetReport:
    """Compiles every missing unit of the plan once. Where nothing is missing, `executor` is not called at all.

    An interrupt ends the workers and comes back as a report that says `cancelled`; what was stored before stays. Raises
    `EnvironmentProblem` where no worker could ever take some unit.
    """
    began = time.perf_counter()
    run = _Run(plan, progress or FleetProgress(), max_attempts)
    run.publish()
    if not plan.missing:
        return FleetReport(
            plan=plan,
            jobs=run.reports(),
            executor="none",
            slots=0,
            seconds=time.perf_counter() - began,
        )
    cancelled = False
    with executor() as workers:
        _check_placed(plan.missing, workers)
        run.progress.started(plan, workers.name, workers.slots)
        began = time.perf_counter()
        try:
            run.schedule(workers)
        except KeyboardInterrupt:
            workers.cancel()
            cancelled = True
        name, slots = workers.name, workers.slots
    seconds = time.perf_counter() - began
    return FleetReport(
        plan=plan,
        jobs=run.reports(),
        executor=name,
        slots=slots,
        seconds=seconds,
        cancelled=cancelled,
    )


class _Run:
    def __init__(self, plan: FleetPlan, progress: FleetProgress, max_attempts: int) -> None:
        self._plan = plan
        self.progress = progress
        self._max_attempts = max_attempts
        self._jobs = {job.key: job for job in plan.missing}
        self._lost: dict[str, tuple[str, ...]] = {}
        self._ended: dict[str, JobReport] = {}
        self._places: dict[CacheConfig, Places] = {}

    def publish(self) -> None:
        """Gives the shared tiers what this machine's folder holds, which nobody has to compile."""
        for job in self._plan.jobs:
            if job.place is Place.HERE:
                reason = self._places_of(job).publish(job.key)
                state = State.ELSEWHERE if reason else State.PUBLISHED
                self._ended[job.key.digest] = JobReport(job=job, state=state, reason=reason)
                self.progress.ended(self._ended[job.key.digest])

    def schedule(self, workers: Executor) -> None:
        for job in self._plan.missing:
            workers.submit(job.task)
        for ended in workers.as_completed():
            again = self._take(ended)
            if again is not None:
                workers.submit(again)

    def reports(self) -> tuple[JobReport, ...]:
        """Each job of the plan as it stands now."""
        return tuple(self._report(job) for job in self._plan.jobs)

    def _report(self, job: Job) -> JobReport:
        if job.place is Place.SHARED:
            return JobReport(job=job, state=State.PRESENT)
        lost = self._lost.get(job.key.digest, ())
        unfinished = JobReport(job=job, state=State.CANCELLED, attempts=len(lost), lost=lost)
        return self._ended.get(job.key.digest, unfinished)

    def _take(self, ended: Ended) -> Task | None:
        """Notes how a task ended. What it returns is to be submitted again."""
        task = ended.task
        job, digest = self._jobs[task.key], task.key.digest
        if ended.done is None:
            self._lost[digest] = (*self._lost.get(digest, ()), ended.lost)
            if task.attempt < self._max_attempts:
                self.progress.lost(job, task.attempt, ended.lost)
                return attrs.evolve(task, attempt=task.attempt + 1)
        report = self._report_of(job, ended)
        self._ended[digest] = report
        self.progress.ended(report)
        return None

    def _report_of(self, job: Job, ended: Ended) -> JobReport:
        lost, done = self._lost.get(job.key.digest, ()), ended.done
        if done is None:
            return JobReport(job=job, state=State.LOST, attempts=ended.task.attempt, lost=lost)
        result, state, reason = done.result, State(done.verdict.value), done.reason
        if state in (State.COMPILED, State.FOUND) and (hidden := self._why_hidden(job)):
            state, reason = State.ELSEWHERE, hidden
        return JobReport(
            job=job,
            state=state,
            node=done.node,
            seconds=done.seconds,
            compile_seconds=result.seconds if result is not None and result.compiled else 0.0,
            bytes=result.bytes if result is not None else 0,
            attempts=ended.task.attempt,
            lost=lost,
            reason=reason,
        )

    def _why_hidden(self, job: Job) -> str:
        """Why this machine does not find what a worker says it stored; an empty text where it does."""
        place, reason = self._places_of(job).find(job.key)
        if place is Place.SHARED:
            return ""
        return f"{reason}; name a tier that all nodes share in cache.remote"

    def _places_of(self, job: Job) -> Places:
        config = job.task.spec.cache
        if config not in self._places:
            self._places[config] = Places(config, job.task.cache_dir)
        return self._places[config]


def _check_placed(jobs: Sequence[Job], workers: Executor) -> None:
    kinds: dict[Resources, list[str]] = {}
    for job in jobs:
        kinds.setdefault(job.task.resources, []).append(job.unit)
    for resources, names in kinds.items():
        if reason := workers.why_not(resources):
            raise unplaced(resources, reason, list(dict.fromkeys(names)))
