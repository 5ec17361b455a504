"""The report of a run on a device says of every test how it ended, also on a machine without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]


def ran(tmp_path, *options):
    file = tmp_path / "report.json"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    chosen = ["-m", "gpu", "-k", "error_in_a_capture or released_graphs", str(TESTS / "gpu")]
    done = subprocess.run(
        [*command, *chosen, "--device-report", str(file), *options],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        check=False,
    )
    return done, json.loads(file.read_text())


def test_every_test_has_an_outcome_and_a_reason(tmp_path):
    """What was skipped for want of a device is in the report as skipped, never as passed."""
    done, report = ran(tmp_path)
    assert done.returncode == 0, done.stdout
    wanted = "passed" if torch.cuda.is_available() else "skipped"
    assert report["outcomes"] == {wanted: len(report["tests"])}
    assert len(report["tests"]) >= 2
    assert report["machine"]["torch"] == str(torch.__version__)
    for test in report["tests"].values():
        assert test["outcome"] == "passed" or test["reason"] == "needs a CUDA device"


@pytest.mark.deep
def test_a_run_that_is_out_of_time_fails_with_what_it_left(tmp_path):
    """A run under a limit ends with a report instead of being killed without one."""
    done, report = ran(tmp_path, "--device-seconds", "0")
    assert done.returncode == 1
    assert report["outcomes"] == {"failed": len(report["tests"])}
    assert all("not begun" in test["reason"] for test in report["tests"].values())
