"""The checks of ``graphspec doctor``. Each looks at one thing and says what it found."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import attrs

_LEAST_FREE_BYTES = 1 << 30


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    hint: str = ""


def run_checks(cache_dir: str | None) -> Sequence[Check]:
    """Every check, in the order in which a problem would stop a warmup."""
    return (
        _python(),
        _torch(),
        _compiler(),
        _gpu(),
        environment(os.environ),
        *_packages(),
        *_cache(cache_dir),
    )


def environment(environ: Mapping[str, str]) -> Check:
    """Variables that change code or captured graphs, and those that look as if they did and are not known."""
    from graphspec.keys.environment import (
        capture_environment,
        code_environment,
        shown,
        unknown_variables,
    )

    acting = shown({**code_environment(environ), **capture_environment(environ)})
    unknown = unknown_variables(environ)
    told = ", ".join(f"{name}={value}" for name, value in acting.items())
    parts = [f"acting: {told}" if told else "no variable changes code or graphs"]
    if unknown:
        parts.append(f"not known: {', '.join(unknown)}")
    return Check(
        name="environment",
        ok=not unknown,
        found="; ".join(parts),
        hint="an unknown variable does not reach the compiler; unset it, or check its spelling",
    )


def _python() -> Check:
    return Check(
        name="python",
        ok=sys.version_info >= (3, 11),
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        hint="graphspec needs Python 3.11 or newer",
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Check:
    found = _version("torch")
    ok = found is not None and tuple(map(int, found.split("+")[0].split(".")[:2])) >= (2, 11)
    return Check(
        name="torch",
        ok=ok,
        found=found or "not installed",
        hint="install torch 2.11 or newer: pip install torch",
    )


def _compiler() -> Check:
    path = shutil.which("g++")
    if path is None:
        return Check(
            name="C++ compiler",
            ok=False,
            found="no g++ on PATH",
            hint="needed to compile what the cache does not hold: apt install g++",
        )
    out = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check(
        name="C++ compiler",
        ok=out.returncode == 0,
        found=(out.stdout.splitlines() or [path])[0],
        hint=out.stderr,
    )


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check(name="GPU", ok=True, found="torch is not there to ask")
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check(
        name="GPU", ok=True, found=", ".join(names) or "none; graphs are captured on the tape"
    )


def _packages() -> Sequence[Check]:
    needs = {
        "gguf": "reads .gguf models: pip install 'graphspec-engine[gguf]'",
        "tokenizers": "reads vocabularies: pip install 'graphspec-engine[gguf]'",
        "safetensors": "reads Hugging Face folders: pip install 'graphspec-engine[safetensors]'",
    }
    return [
        Check(
            name=f"package {name}",
            ok=_version(name) is not None,
            found=_version(name) or "not installed",
            hint=hint,
        )
        for name, hint in needs.items()
    ]


def _cache(cache_dir: str | None) -> Sequence[Check]:
    from graphspec.cache.opened import open_cache
    from graphspec.config.cache import CacheConfig

    cache = open_cache(CacheConfig(), cache_dir)
    root, problem = cache.root, cache.why_not_stored()
    checks = [
        Check(
            name="cache folder",
            ok=not problem,
            found=problem or cache.note or f"{root} takes entries",
            hint="choose another with --cache-dir or GRAPHSPEC_CACHE_DIR",
        )
    ]
    if os.path.isdir(root):
        free = shutil.disk_usage(root).free
        checks.append(
            Check(
                name="cache disk",
                ok=free >= _LEAST_FREE_BYTES,
                found=f"{free / 2**30:.1f} GiB free",
                hint="a model's entries take a few MiB, its compiler's working files several hundred",
            )
        )
    return checks
