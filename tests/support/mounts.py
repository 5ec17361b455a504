"""A fixture with small file systems that are really mounted. A conftest imports it for the tests of its folder."""

import subprocess

import pytest


@pytest.fixture
def mounted(tmp_path):
    """Makes a small tmpfs with the given options, and unmounts it afterwards."""
    made = []

    def mount(options):
        folder = tmp_path / f"mount{len(made)}"
        folder.mkdir()
        # Private to this user, or the cache would refuse it.
        command = ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(folder)]
        ran = subprocess.run(command, check=False, capture_output=True)
        if ran.returncode:
            pytest.skip(f"this machine does not let the test mount a tmpfs: {ran.stderr!r}")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)
