"""A fixture with small file systems that are really mounted. A conftest imports it for the tests of its folder."""

from contextlib import ExitStack
from itertools import count

import pytest

from support.bad_disks import tmpfs


@pytest.fixture
def mounted(tmp_path):
    """Makes a small tmpfs with the given options, and unmounts it afterwards."""
    with ExitStack() as mounts:
        numbers = count()

        def mount(options):
            folder = tmp_path / f"mount{next(numbers)}"
            # Private to this user, or the cache would refuse it.
            return mounts.enter_context(tmpfs(folder, f"mode=0700,{options}"))

        yield mount
