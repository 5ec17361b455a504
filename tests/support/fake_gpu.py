"""A Triton driver of a GPU that is not there: it says what it is, takes modules, and launches nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeDriver:
    """As much of Triton's driver as compiling and loading ask for. `loaded` has the name and bytes of each module."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.loaded: list[tuple[str, bytes]] = []
        self.utils = self
        self.launcher_cls = lambda source, metadata: lambda *arguments: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        self.loaded.append((name, binary))
        return object(), object(), 32, 0, 1024


@contextmanager
def fake_gpu(target: Any) -> Iterator[FakeDriver]:
    """Triton sees one GPU of this kind, and forgets what kernels it had for any before."""
    from triton.runtime.driver import driver

    from graphspec.kernels.variants import all_variants

    made = FakeDriver(target)
    for variant in all_variants():
        variant.kernel.device_caches.clear()
    driver.set_active(made)
    try:
        yield made
    finally:
        # Not reset_active: it asks for a real device.
        driver._active = None
        for variant in all_variants():
            variant.kernel.device_caches.clear()
