"""A run on a device leaves one JSON report: the machine, and of each test how it ended, why, and how long it took."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest
import torch

REPORT = "device_report"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("device")
    group.addoption("--device-report", metavar="FILE", help="write a JSON report of this run")
    group.addoption(
        "--device-seconds",
        type=float,
        metavar="S",
        help="begin no test later than this; those that are left fail, so that the report says which",
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--device-report", default=None)
    limit = config.getoption("--device-seconds", default=None)
    if file or limit:
        config.pluginmanager.register(_Report(file, limit), REPORT)


class _Report:
    def __init__(self, file: str | None, limit: float | None) -> None:
        self._file, self._limit = file, limit
        self._began = time.perf_counter()
        self._tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._limit is not None and time.perf_counter() - self._began > self._limit:
            pytest.fail(f"not begun: the run's {self._limit:.0f} s were over", pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] += report.duration
        if report.outcome != "passed":
            test["outcome"] = report.outcome
            test["reason"] = _reason(report)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._file is None:
            return
        outcomes = [t["outcome"] for t in self._tests.values()]
        content = {
            "machine": _machine(),
            "exit_status": int(exitstatus),
            "seconds": time.perf_counter() - self._began,
            "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
            "tests": self._tests,
        }
        Path(self._file).write_text(json.dumps(content, indent=2) + "\n")


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)[-2000:]


def _machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    facts = torch.cuda.get_device_properties(0) if cuda else None
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": facts.name if facts else None,
        "capability": list(torch.cuda.get_device_capability(0)) if cuda else None,
        "memory_bytes": facts.total_memory if facts else None,
        "triton": _version_of("triton"),
        "cpus": os.cpu_count(),
    }


def _version_of(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
