"""Python code in a process of its own, with the tests' helpers on its path."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def run_module(
    module: str, *arguments: str, read: Callable[[str], Any] = json.loads, **variables: str
) -> Any:
    """What `read` makes of what a module prints that is run with arguments. Fails the test when the module fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS), **variables},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read(done.stdout)
