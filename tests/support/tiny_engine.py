"""Engines on tiny checkpoints, with each unit's own function in place of a compiled one."""

from graphspec.capture.backends.tape import TapeBackend
from graphspec.capture.manager import CaptureManager
from graphspec.capture.plan import plan_capture
from graphspec.engine.executor import Executor
from graphspec.engine.generate import Generator
from graphspec.engine.llama import program
from graphspec.engine.weights import load_weights
from support.after_ready import plain


def tiny_engine(spec, **options) -> Generator:
    """A sealed engine of the contract."""
    units = {unit.name: plain(unit, spec) for unit in program(spec).units()}
    executor = Executor(spec, load_weights(spec.model, spec.device), units, debug_padding=True)
    manager = CaptureManager(plan_capture(spec), executor, TapeBackend())
    manager.warm()
    manager.capture()
    manager.seal()
    return Generator(executor, manager, **options)
