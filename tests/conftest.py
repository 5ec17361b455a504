"""Fixtures for all tests: Hypothesis profiles, private cache folders, a tiny checkpoint, specs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from graphspec.config.engine import EngineConfig
from graphspec.resolve.spec import EngineSpec
from support.checkpoints import TINY, write_checkpoint

_SLOW = [HealthCheck.too_slow]
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile("deep", max_examples=5000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session", autouse=True)
def private_default_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The default cache folder is a run's own: what the user's holds decides no test, and no test writes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRAPHSPEC_CACHE_DIR", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "user-cache"))
        yield


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all tests and all workers of this run: what one test compiles, the others load."""
    base = tmp_path_factory.getbasetemp()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return (base.parent if worker else base) / "shared-cache"


@pytest.fixture(scope="session", autouse=True)
def host_code_kept(shared_cache: Path) -> Iterator[None]:
    """What numba compiles for the first test of a run that needs it, the others load, in every worker."""
    from graphspec.kernels.host_code import HostCode, keep_host_code

    def keep(group: HostCode) -> None:
        from graphspec.cache.opened import open_cache
        from graphspec.capture.host_kernels import load_or_compile_host_code
        from graphspec.config.cache import CacheConfig

        load_or_compile_host_code(group, open_cache(CacheConfig(), str(shared_cache)))

    before = keep_host_code(keep)
    yield
    keep_host_code(before)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a two-layer Llama of random weights, the same in every run."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"), TINY)


@pytest.fixture
def tiny_config(tiny_checkpoint: Path) -> Callable[..., dict[str, Any]]:
    """Makes the config of the tiny model as plain data; keyword arguments replace whole sections."""

    def make(**sections: Any) -> dict[str, Any]:
        return {
            "model": {"source": str(tiny_checkpoint), "max_model_len": 128},
            "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
            "kv_cache": {"block_size": 8, "num_blocks": 128},
            "speculative": {"method": "ngram", "num_speculative_tokens": 2},
            **sections,
        }

    return make


@pytest.fixture
def tiny_spec(tiny_config: Callable[..., dict[str, Any]]) -> EngineSpec:
    """The resolved spec of the tiny model."""
    return EngineConfig.from_dict(tiny_config()).resolve()
