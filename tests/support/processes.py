"""Python code in a process of its own, with the tests' helpers on its path."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


def run_python(code: str, **variables: str) -> str:
    """What `code` prints, stripped. `variables` are added to its environment. Fails the test when the code fails."""
    path = os.pathsep.join(p for p in (str(TESTS), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def as_user_without_a_name(uid: int) -> list[str]:
    """What to put before a command, so that it runs as a user id that no passwd file has, and without root's powers.

    A user namespace: the files of the user who runs the tests are the stranger's own. Skips where the system forbids it.
    """
    prefix = ["unshare", "--user", f"--map-user={uid}", f"--map-group={uid}"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine forbids user namespaces: {tried.stderr}")
    return prefix
