"""Configs and specs of the tiny model without torch: resolving reads its config.json and no weights."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphspec.config.engine import EngineConfig
from graphspec.resolve.spec import EngineSpec
from support.checkpoints import TINY

ROOT = Path(__file__).resolve().parents[2]


def config_folder(folder: Path, config: Mapping[str, Any] = TINY) -> Path:
    """Writes `config` as config.json into `folder`, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return folder


def plain_config(folder: Path, **sections: Any) -> dict[str, Any]:
    """The config of the tiny model as plain data; keyword arguments replace whole sections."""
    return {
        "model": {"source": str(folder), "max_model_len": 128},
        "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
        "kv_cache": {"block_size": 8, "num_blocks": 128},
        "speculative": {"method": "ngram", "num_speculative_tokens": 2},
        **sections,
    }


def plain_spec(folder: Path, **sections: Any) -> EngineSpec:
    """The spec that `plain_config` resolves to."""
    return EngineConfig.from_dict(plain_config(config_folder(folder), **sections)).resolve()


def run_python(
    code: str, *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter that imports this checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
