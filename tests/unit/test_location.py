"""Where the cache lies: what was chosen, else the user's own folder, else a temporary one that says so."""

import os
import subprocess
import sys
import textwrap

import pytest

from graphspec.cache.location import VARIABLE, cache_folder, locate
from support.processes import as_user_without_a_name

STRANGER = 1234567


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    """Neither our variable nor XDG's is set."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_the_asked_folder_comes_before_the_variable_and_that_before_the_users_own(
    tmp_path, monkeypatch
):
    """Three levels, each absolute; what was chosen never has a note."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate().folder == str(tmp_path / ".cache" / "graphspec")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "chosen"))
    assert locate().folder == str(tmp_path / "chosen")
    assert locate(str(tmp_path / "asked")).folder == str(tmp_path / "asked")
    assert locate().note == locate("asked").note == ""


def test_a_relative_choice_is_made_absolute(tmp_path, monkeypatch):
    """A later change of the working directory does not move the cache."""
    monkeypatch.chdir(tmp_path)
    assert cache_folder("here") == str(tmp_path / "here")


def test_nothing_is_created(tmp_path, monkeypatch):
    """Asking where it is makes no folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    locate()
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_a_file_gives_a_temporary_folder_with_a_note(tmp_path, monkeypatch):
    """Where the user's folder cannot be made, the note names it, the folder that is used, and how to choose."""
    home = tmp_path / "home"
    home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = locate()
    assert found.folder == str(tmp_path / f"graphspec-{os.getuid()}")
    assert str(home) in found.note
    assert VARIABLE in found.note


ASK = """
    from graphspec.cache.location import locate
    found = locate()
    print(found.folder)
    print(found.note)
"""


def as_stranger(tmp_path, **environment):
    """Folder and note for a user id without a passwd entry."""
    done = subprocess.run(
        [*as_user_without_a_name(STRANGER), sys.executable, "-P", "-c", textwrap.dedent(ASK)],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_B41_a_user_without_name_and_home_gets_a_folder_of_their_own(tmp_path):
    """Named by the number, in the temporary folder, with a note."""
    folder, note = as_stranger(tmp_path)
    assert folder == str(tmp_path / f"graphspec-{STRANGER}")
    assert "no home folder" in note


def test_B41_a_home_that_the_user_cannot_write_to_is_not_used(tmp_path):
    """The home is read-only for its user: the temporary folder is used, and the note says why."""
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    folder, note = as_stranger(tmp_path, HOME=str(home))
    assert folder == str(tmp_path / f"graphspec-{STRANGER}")
    assert str(home) in note


def test_B41_what_was_chosen_is_used_even_so(tmp_path):
    """No fallback hides a choice, good or bad: a store that cannot be made is a finding."""
    folder, *note = as_stranger(tmp_path, **{VARIABLE: "/root/of/somebody"})
    assert (folder, note) == ("/root/of/somebody", [""])
