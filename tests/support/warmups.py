"""Warmups in processes of their own, and what they print."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import toy

TESTS = Path(toy.__file__).parents[1]


def start(
    config: Path,
    cache: Path | None,
    *more: str,
    quick: Path | None = None,
    prefix: Sequence[str] = (),
    **variables: str,
) -> "subprocess.Popen[str]":
    """A warmup that runs beside the test. With `quick`, a folder of entries stands in for the compiler."""
    module = ["graphspec"] if quick is None else ["support.quick_warmup", str(quick)]
    where = [] if cache is None else ["--cache-dir", str(cache)]
    return subprocess.Popen(
        [
            *prefix,
            sys.executable,
            "-P",
            "-m",
            *module,
            "warmup",
            "--config",
            str(config),
            *where,
            "--json",
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), **variables},
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, Any, str]:
    """Exit code, the printed object, and standard error."""
    out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out) if out else None, err


def warm(config: Path, cache: Path | None, *more: str, **options: Any) -> tuple[int, Any, str]:
    """A warmup from start to end."""
    return finish(start(config, cache, *more, **options))


def outcomes(report: Mapping[str, Any]) -> Mapping[str, tuple[str, bool]]:
    """Outcome of each unit, and whether it was compiled."""
    return {u["name"]: (u["outcome"], u["compiled"]) for u in report["units"]}


def entry_paths(cache: Path) -> list[Path]:
    """Files of all entries, in order."""
    return sorted((cache / "entries").glob("*/*.entry"))
