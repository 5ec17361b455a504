"""Engines on tiny checkpoints, with each unit's own function in place of a compiled one."""

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import PIECES, plan_capture
from graphspec.capture.program import captures_of
from graphspec.engine.executor import Executor
from graphspec.engine.generate import Generator
from graphspec.engine.llama import program
from graphspec.engine.weights import load_weights
from graphspec.fields import evolve
from support.after_ready import plain


def tiny_engine(spec, *, pieces=False, **options) -> Generator:
    """A sealed engine of the contract, with every graph that its program can capture; only with `pieces` those of pieces,
    which are many."""
    llama = program(spec)
    units = {unit.name: plain(unit, spec) for unit in llama.units()}
    executor = Executor(spec, load_weights(spec.model, spec.device), units, debug_padding=True)
    captures = captures_of(llama) - (frozenset() if pieces else {PIECES})
    plan = plan_capture(spec, captures=captures)
    manager = CaptureManager(plan, executor, TapeBackend())
    manager.warm()
    manager.capture(strict=True)
    manager.seal()
    return Generator(executor, manager, **options)


def with_mode(spec, mode):
    """The contract as if this graph mode had been asked for and granted, for the target and the draft."""
    spec = evolve(spec, mode=evolve(spec.mode, asked=mode, granted=mode))
    if spec.speculative is None:
        return spec
    return evolve(spec, speculative=evolve(spec.speculative, draft_cudagraph_mode=mode))
