"""The seal over Triton's compiler: closed when an engine is ready, it counts or refuses what would be compiled."""

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from graphspec.capture import warmup as warmup_module
from graphspec.capture.kernel_binaries import seal_kernels
from graphspec.config.device import DeviceConfig, Target
from graphspec.config.engine import EngineConfig
from graphspec.errors import KernelError
from graphspec.kernels.seal import KernelSeal, compiling_is_meant
from support.graphs import Steps


def launched(module, name):
    """What Triton tells before it compiles a kernel for a launch."""
    from triton import knobs

    return knobs.runtime.jit_cache_hook(
        fn=SimpleNamespace(module=module, name=name),
        compile={"signature": {"x": "*i32"}, "constants": {(1,): 4}},
    )


OURS, THEIRS = ("graphspec.kernels.ngram_gpu", "scan"), ("flash", "attention")


def test_seals_may_be_opened_in_any_order_and_leave_who_watched_before(monkeypatch):
    """Each sees what was launched while it was closed, and the hook that was there first is called all the time."""
    from triton import knobs

    told = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **told_of: told.append(told_of))
    before, first, second = knobs.runtime.jit_cache_hook, KernelSeal(strict=False), KernelSeal()
    first.close()
    launched(*OURS)
    second.close()
    with pytest.raises(KernelError, match="nothing was compiled ahead for"):
        launched(*OURS)
    first.open()
    launched(*THEIRS)
    second.open()
    second.open()
    assert knobs.runtime.jit_cache_hook is before
    assert (len(first.seen), len(second.seen), len(second.ours), len(told)) == (2, 2, 1, 2)


def test_a_seal_looks_away_while_another_engine_warms_up():
    """What a warmup compiles is meant to be compiled."""
    with KernelSeal() as seal:
        with compiling_is_meant():
            launched(*OURS)
        assert seal.seen == []
        with pytest.raises(KernelError):
            launched(*OURS)


def test_an_engine_for_a_gpu_is_sealed_when_it_is_ready_and_its_kernels_are_counted():
    """Counted, or with strict refused; for a CPU nothing is watched, since no kernel can run."""
    gpu = SimpleNamespace(device=DeviceConfig(target=Target.CUDA))
    for strict in (False, True):
        with seal_kernels(gpu, strict=strict) as seal:
            with pytest.raises(KernelError) if strict else contextlib.nullcontext():
                launched(*OURS)
            assert (seal.strict, len(seal.ours)) == (strict, 1)
    assert seal_kernels(SimpleNamespace(device=DeviceConfig(target=Target.CPU))) is None


def test_ready_carries_the_seal_and_a_warmup_alone_leaves_none(monkeypatch, tiny_config, tmp_path):
    """It is closed last, when the graphs are sealed; what compiles before is meant."""
    program = SimpleNamespace(units=tuple, start=lambda artifacts: Steps())
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)

    def warm(spec, cache, strict):
        launched(*OURS)
        return ()

    def seal(spec, strict):
        return seal_kernels(SimpleNamespace(device=DeviceConfig(target=Target.CUDA)), strict=strict)

    monkeypatch.setattr(warmup_module, "warm_kernels", warm)
    monkeypatch.setattr(warmup_module, "seal_kernels", seal)
    spec = EngineConfig.from_dict(tiny_config()).resolve()
    with KernelSeal() as other:
        ready = warmup_module.make_ready(spec, cache_dir=str(tmp_path), strict=True)
        assert ready.manager.state.value == "sealed"
        warmup_module.warmup(spec, cache_dir=str(tmp_path))
        assert other.seen == []
        with pytest.raises(KernelError), ready.kernel_seal:
            launched(*OURS)
        assert len(ready.kernel_seal.seen) == len(other.seen) == 1
