"""Warmup: from a spec to units that are loaded and graphs that are captured, verified and sealed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from graphspec.cache.load import load_or_compile, unusable_store
from graphspec.cache.opened import open_cache
from graphspec.capture.agreement import Facts, agree_on, others_told
from graphspec.capture.backends.base import GraphBackend
from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.host_kernels import keep_host_code_in, warm_ngram_code
from graphspec.capture.kernel_binaries import seal_kernels, warm_kernels
from graphspec.capture.left_out import left_out_of
from graphspec.capture.manager import CaptureManager
from graphspec.capture.memory_model import GraphCosts
from graphspec.capture.plan import plan_capture
from graphspec.capture.program import captures_of, load_program
from graphspec.capture.progress import Progress
from graphspec.capture.rank_sizes import rank_sizes
from graphspec.capture.ranks import OneRank, Ranks
from graphspec.capture.report import Decisions, GraphReport, WarmupReport
from graphspec.capture.sizes import Buckets
from graphspec.capture.source import StepSource
from graphspec.capture.timeline import Timeline
from graphspec.config.device import Target
from graphspec.fields import Stage
from graphspec.kernels.ngram_warm import ngram_backend, warm_ngram
from graphspec.kernels.seal import KernelSeal, compiling_is_meant
from graphspec.processors import usable_cpus
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.ngram import NgramSpeculatorConfig


@attrs.frozen(kw_only=True)
class Ready:
    """A warmed engine: its step source, its sealed graphs, and the report of how it got there.

    On a GPU `kernel_seal` counts the Triton kernels that are compiled from now on, or with `strict` refuses graphspec's. It
    watches the whole process until it is opened.
    """

    source: StepSource
    manager: CaptureManager
    report: WarmupReport
    kernel_seal: KernelSeal | None = None


def warmup(
    spec: EngineSpec,
    *,
    cache_dir: str | None = None,
    jobs: int | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    costs: GraphCosts | None = None,
    buckets: Buckets | None = None,
) -> WarmupReport:
    """Compiles or loads every unit, and on a GPU every kernel, captures every reachable graph, verifies each once; returns
    the report.

    `cache_dir`: see `graphspec.cache.location`. `jobs`: compiler processes at once; default, one per CPU that this
    process may use. `strict`: raise `CacheUnusableError` where the cache cannot take entries, and the error of the first
    graph that cannot be captured, instead of a finding. `ranks`: the processes that run each step together, all of which
    warm up. `costs`: what graphs took before, to report planned against actual memory. `buckets`: sizes by depth in place
    of the ladder's, as for `plan_capture`. Raises `OfflineMissError` for
    units that the cache lacks where the contract forbids compiling, and `CaptureError` where ranks do not agree.
    """
    ready = make_ready(
        spec,
        cache_dir=cache_dir,
        jobs=jobs,
        strict=strict,
        progress=progress,
        ranks=ranks,
        costs=costs,
        buckets=buckets,
    )
    if ready.kernel_seal is not None:
        # The engine goes with this call; a seal would watch those that come after it.
        ready.kernel_seal.open()
    return ready.report


@compiling_is_meant()
def make_ready(
    spec: EngineSpec,
    *,
    cache_dir: str | None = None,
    jobs: int | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    costs: GraphCosts | None = None,
    buckets: Buckets | None = None,
) -> Ready:
    """What `warmup` does, with the engine that came of it, ready to run steps.

    From then on, on a GPU, `Ready.kernel_seal` counts each Triton kernel that is compiled, and with `strict` a launch that
    would compile one of graphspec's is a `KernelError`. The process keeps code that numba compiles later in the same cache.
    """
    ranks = ranks or OneRank()
    told = Timeline(progress)
    clock = _Clock(told)
    program = load_program(spec)
    plan = plan_capture(spec, captures=captures_of(program), buckets=buckets)
    units = program.units()
    told.started(units, plan)
    agree_on(
        ranks,
        Facts(
            mode=spec.mode.granted.value,
            capture_hash=spec.compute_hash(Stage.CAPTURE),
            planned=plan.keys,
        ).as_texts(),
    )
    with others_told(ranks, plan.keys):
        cache = open_cache(spec.cache, cache_dir)
        if strict and (problem := cache.why_not_stored()):
            raise unusable_store(problem)
        with clock.phase("units"):
            # Named until the graphs are captured: a unit whose last reference goes while one is captured would be unloaded
            # there, and no capture survives that. Turning the collector off does not help, reference counts unload too.
            artifacts, results = load_or_compile(
                units,
                spec,
                cache.store,
                cache.locks,
                jobs=jobs or usable_cpus(),
                strict=strict,
                single_threaded=spec.device.target is Target.CUDA,
                listener=told.unit_done,
                lock_wait_seconds=spec.cache.lock_wait_seconds,
                offline=cache.offline,
            )
            results = [*results, *warm_kernels(spec, cache, strict=strict)]
        keep_host_code_in(cache)
        if _drafts_in_compiled_code(spec):
            with clock.phase("drafter"):
                results = [*results, *warm_ngram_code(cache, strict=strict)]
                warm_ngram()
        cache.record(results)
        with clock.phase("weights"):
            source = program.start(artifacts)
    manager = CaptureManager(plan, source, _backend(spec), ranks)
    with clock.phase("warm"):
        manager.warm(lambda key: told.graph_done("warm", key), strict=strict)
    with clock.phase("capture"):
        manager.capture(lambda key: told.graph_done("capture", key), strict=strict)
    with clock.phase("verify"):
        verified = manager.verify()
    told.ended()
    manager.seal()
    report = WarmupReport(
        spec_hash=spec.compute_hash(Stage.COMPILE),
        capture_hash=spec.compute_hash(Stage.CAPTURE),
        decisions=Decisions.of(spec, units),
        parallel=rank_sizes(spec.parallel),
        cache_note=cache.note,
        units=results,
        graphs=GraphReport(
            planned=len(plan.keys),
            captured=len(manager.captured),
            reachable=len(plan.reachable()),
            fallthrough=manager.plan.fallthrough(),
            memory_bytes=manager.memory_bytes,
            verified=verified,
            left_out=left_out_of(plan),
            lost=manager.lost,
            samples=manager.samples,
            costs=costs or GraphCosts(),
        ),
        phases=clock.phases,
        seconds=clock.elapsed(),
        timeline=told.spans(),
    )
    return Ready(
        source=source,
        manager=manager,
        report=report,
        kernel_seal=seal_kernels(spec, strict=strict),
    )


def _drafts_in_compiled_code(spec: EngineSpec) -> bool:
    made = spec.speculative
    if made is None or not isinstance(made.speculator, NgramSpeculatorConfig):
        return False
    return ngram_backend(spec.scheduler.max_num_seqs, spec.model.max_model_len) != "python"


def _backend(spec: EngineSpec) -> GraphBackend:
    if spec.device.target is Target.CUDA:
        from graphspec.capture.backends.cuda import CudaBackend

        return CudaBackend()
    return TapeBackend()


class _Clock:
    def __init__(self, told: Progress) -> None:
        self._told = told
        self._began = time.perf_counter()
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._told.phase(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = time.perf_counter() - began

    def elapsed(self) -> float:
        return time.perf_counter() - self._began
