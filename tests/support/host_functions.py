"""A kernel of two small functions, which numba compiles in a second."""

from typing import Any

from numba import int64

from graphspec.kernels.host_code import HostCode


def tiny() -> HostCode:
    """A group that nothing was compiled of yet."""
    code = HostCode("tiny", __name__)

    @code.inner(int64(int64, int64))
    def plus(a: Any, b: Any) -> Any:
        return a + b

    @code.entry(int64(int64[::1], int64))
    def total(values: Any, extra: Any) -> Any:
        found = extra
        for value in values:
            found = plus(found, value)
        return found

    return code
