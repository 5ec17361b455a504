"""F37: a cache travels. Exported on one path by one user, imported at another by another, it compiles nothing; nor does
a folder that was moved."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from graphspec.cli import _root
from graphspec.cli.common import run
from support import toy
from support.checkpoints import TINY, write_checkpoint
from support.processes import as_user_without_a_name
from support.warmups import TESTS, outcomes, warm

STRANGER = 31337
LOADED = {"scale": ("hit", False), "mix": ("hit", False)}


class User:
    """Somebody with a folder of his own, who runs `graphspec` from there, with that as his home."""

    def __init__(self, home, prefix=(), **how):
        self.home = home
        self._prefix = prefix
        self._how = how
        home.mkdir()

    def graphspec(self, *arguments):
        """Exit code, the printed object, and standard error."""
        command = [*self._prefix, sys.executable, "-P", "-m", "graphspec", *map(str, arguments)]
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "GRAPHSPEC_"))},
            "HOME": str(self.home),
            "PYTHONPATH": str(TESTS),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [*command, "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
            env=environment,
            timeout=300,
            **self._how,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.fixture(scope="module")
def open_folder():
    """A folder that every user can look into: pytest's own are for their owner alone."""
    folder = Path(tempfile.mkdtemp(prefix="graphspec-f37-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def config(open_folder, shared_cache):
    """The toy program's config, beside a checkpoint, both for everybody to read. Its units are in the shared cache."""
    model = {"source": str(write_checkpoint(open_folder / "model", TINY)), "max_model_len": 128}
    path = open_folder / "engine.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": model,
                "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32},
                "kv_cache": {"block_size": 8, "num_blocks": 128},
                "speculative": {"method": "ngram", "num_speculative_tokens": 2},
                "program": toy.NAME,
            }
        )
    )
    code, _, err = warm(path, shared_cache)
    assert code == 0, err
    return path


@pytest.fixture
def stranger(open_folder):
    """Another user, without a name, a home or root's powers."""
    home = open_folder / "stranger's home"
    really = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    if os.getuid() == 0 and can_import(really):
        user = User(home, **really)
        os.chown(home, STRANGER, STRANGER)
        return user
    # Without root's powers, or below a folder that is root's alone, the stranger lives in a namespace of his own.
    return User(home, as_user_without_a_name(STRANGER))


def can_import(user):
    """Whether that user may run this interpreter and read this checkout."""
    command = [sys.executable, "-P", "-c", "import graphspec.cache.folder.disk, support.toy"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    try:
        done = subprocess.run(command, check=False, capture_output=True, env=environment, **user)
    except PermissionError:
        return False
    return done.returncode == 0


@pytest.mark.slow
def test_F37_exported_by_one_user_and_imported_by_another_nothing_compiles(
    open_folder, stranger, config, shared_cache, capsys
):
    """Other path, other user id, other home, other working directory: each unit is a hit."""
    bundle = open_folder / "units.bundle"
    arguments = ["cache", "export", bundle, "--config", config, "--cache-dir", shared_cache]
    assert run(_root, [*map(str, arguments), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 2
    assert bundle.stat().st_mode & 0o444 == 0o444

    code, taken, err = stranger.graphspec("cache", "import", bundle)
    assert code == 0, err or taken
    assert taken["imported"] == 2
    assert taken["folder"] == str(stranger.home / ".cache" / "graphspec")
    code, report, err = stranger.graphspec("warmup", "--config", config)
    assert code == 0, err
    assert (outcomes(report), report["compiled"]) == (LOADED, 0)


@pytest.mark.slow
def test_F37_a_folder_that_was_moved_compiles_nothing(tmp_path, config, shared_cache):
    """Copied and renamed, with a config file of another name, the folder serves each unit as before."""
    shutil.copytree(shared_cache / "entries", tmp_path / "copy" / "entries")
    (tmp_path / "new place").mkdir()
    cache = (tmp_path / "copy").rename(tmp_path / "new place" / "cache ü")
    moved = shutil.copy(config, tmp_path / "new place" / "other name.yaml")
    code, report, err = warm(moved, cache)
    assert code == 0, err
    assert (outcomes(report), report["compiled"]) == (LOADED, 0)
