"""Private mode: a folder that others could have written to, or could put another one in place of, is not trusted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphspec.cache import trust
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cache.trust import PrivateStore, file_problem, folder_problem, require_private
from graphspec.errors import UntrustedError
from support.entries import entry_of, key_of
from support.processes import as_user_without_a_name, run_python

OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def base(tmp_path):
    """A folder whose mode and owner a test may change; those above it are trusted."""
    folder = tmp_path / "base"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def root(base):
    """A cache folder with one entry, private all through."""
    folder = base / "cache"
    assert DiskStore(str(folder)).put(entry_of("a")).written
    return folder


def private_store(root):
    disk = DiskStore(str(root))
    return PrivateStore(disk, disk.path_of)


def entries_of(root):
    return next(p for p in (root / "entries").iterdir())


def test_what_the_store_makes_is_trusted(root):
    """The folder as the first put leaves it, and an entry in it."""
    assert folder_problem(str(root)) == ""
    require_private(str(root))
    (entry,) = entries_of(root).iterdir()
    assert file_problem(entry.stat()) == ""


GID = os.getegid()
REFUSED = {
    0o777: f"mode 0777: group {GID} and others may write",
    0o770: f"mode 0770: group {GID} may write",
    0o702: "mode 0702: others may write",
    0o1777: f"mode 1777: group {GID} and others may write",
}


@pytest.mark.parametrize("mode", REFUSED, ids="{:04o}".format)
def test_a_folder_that_others_can_write_to_is_refused_with_its_mode(root, mode):
    """A sticky bit does not help the folder itself: others could still add entries."""
    root.chmod(mode)
    assert folder_problem(str(root)) == f"{root}: {REFUSED[mode]}"
    with pytest.raises(UntrustedError) as caught:
        require_private(str(root))
    (problem,) = caught.value.problems
    assert REFUSED[mode] in problem.found
    assert "chmod" in problem.hint
    assert "signed entries" in problem.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o500, 0o555], ids="{:04o}".format)
def test_a_folder_that_others_can_only_read_is_trusted(root, mode):
    """Reading does no harm."""
    root.chmod(mode)
    assert folder_problem(str(root)) == ""


@pytest.mark.parametrize("name", ["entries", "tmp", "entries/ab"])
def test_a_folder_inside_that_others_can_write_to_is_refused(root, name):
    """It is where an entry would be replaced. Where nobody else can pass through the root, it is out of reach."""
    inside = entries_of(root) if name.endswith("ab") else root / name
    inside.chmod(0o777)
    root.chmod(0o755)
    assert folder_problem(str(root)) == f"{inside}: {REFUSED[0o777]}"
    root.chmod(0o700)
    assert folder_problem(str(root)) == ""


def test_a_folder_above_that_others_can_write_to_is_refused(base, root):
    """They could rename the cache and put another in its place, however private it is itself."""
    base.chmod(0o777)
    assert folder_problem(str(root)) == f"{base}: {REFUSED[0o777]}"
    base.chmod(0o1777)
    assert folder_problem(str(root)) == "", "sticky, as /tmp is: only owners rename"


def test_a_group_of_the_users_own_may_write_above(base, root, monkeypatch):
    """Many systems give each user a group of the same name and a umask that lets it write. Any other group is refused."""
    base.chmod(0o775)
    monkeypatch.setattr(trust, "_is_own_group", lambda gid, user: gid == GID)
    assert folder_problem(str(root)) == ""
    monkeypatch.setattr(trust, "_is_own_group", lambda gid, user: False)
    assert folder_problem(str(root)) == f"{base}: mode 0775: group {GID} may write"


def test_the_group_of_the_folder_itself_may_not_write_even_if_it_is_the_users_own(root):
    """graphspec makes its folder for the user alone: a mode that is wider was given on purpose."""
    root.chmod(0o770)
    assert "may write" in folder_problem(str(root))


def test_own_groups_are_told_from_others():
    """Root's is one; a number without a name is not, for whatever user."""
    assert trust._is_own_group(0, 0)
    assert not trust._is_own_group(1, 0)
    assert not trust._is_own_group(OTHER, 0)
    assert not trust._is_own_group(0, OTHER)


@needs_root
def test_a_folder_of_another_user_is_refused(root):
    """Its owner can write to it whatever its mode says, also when this process is root."""
    os.chown(root, OTHER, OTHER)
    assert folder_problem(str(root)) == f"{root}: owned by uid {OTHER}, and this process is uid 0"
    assert folder_problem(str(root), uid=OTHER) == ""


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o1777], ids="{:04o}".format)
def test_a_folder_above_of_another_user_is_refused(base, root, mode):
    """Its owner can rename what is in it, sticky or not."""
    os.chown(base, OTHER, OTHER)
    base.chmod(mode)
    assert folder_problem(str(root)) == f"{base}: owned by uid {OTHER}, and this process is uid 0"


@needs_root
def test_what_root_owns_is_trusted_by_everybody(root):
    """A build job of root's fills a folder, and every user reads it. Root could do anything anyway."""
    root.chmod(0o755)
    assert folder_problem(str(root), uid=OTHER) == ""
    (entry,) = entries_of(root).iterdir()
    assert file_problem(entry.stat(), uid=OTHER) == ""


def test_a_linked_folder_is_looked_at_where_it_leads(base, root, tmp_path):
    """A symbolic link to a private folder is as good as the folder, also through other links and relative ones."""
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "again").symlink_to("link")
    (tmp_path / "around").symlink_to("base/../again")
    for name in ("link", "again", "around"):
        assert folder_problem(str(tmp_path / name)) == ""
    root.chmod(0o777)
    for name in ("link", "again", "around"):
        assert folder_problem(str(tmp_path / name)) == f"{root}: {REFUSED[0o777]}"


def test_a_link_that_others_could_replace_is_refused(root, tmp_path):
    """The folder that the link lies in counts, and those that the path passes on the way."""
    (open_to_all := tmp_path / "open").mkdir()
    (open_to_all / "link").symlink_to(root)
    open_to_all.chmod(0o777)
    assert folder_problem(str(open_to_all / "link")) == f"{open_to_all}: {REFUSED[0o777]}"
    (tmp_path / "again").symlink_to(open_to_all / "link")
    assert folder_problem(str(tmp_path / "again")) == f"{open_to_all}: {REFUSED[0o777]}"


def test_links_in_a_circle_are_a_problem_and_no_endless_walk(tmp_path):
    """Nothing can be read there, and the reason is said."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert folder_problem(str(tmp_path / "one")) == (
        f"{tmp_path / 'one'}: symbolic links lead in a circle"
    )


def test_a_folder_that_is_not_there_is_as_good_as_those_above_it(base):
    """It will be made for this user alone; unless somebody else can make it first, or rename what is made."""
    assert folder_problem(str(base / "not" / "there")) == ""
    base.chmod(0o777)
    assert folder_problem(str(base / "not" / "there")) == f"{base}: {REFUSED[0o777]}"


def test_a_relative_path_is_that_of_the_working_directory(base, root, monkeypatch):
    """What is checked is what will be opened."""
    monkeypatch.chdir(base)
    base.chmod(0o777)
    assert folder_problem("cache") == f"{base}: {REFUSED[0o777]}"


def test_it_costs_a_look_at_each_folder_on_the_way_and_none_at_the_entries(root, monkeypatch):
    """A private folder of any size: as many calls as its path has parts. Nobody else can reach what is in it."""
    for i in range(100):
        assert DiskStore(str(root)).put(entry_of(f"entry {i}")).written
    calls = []
    real = os.stat

    def count(path, **named):
        calls.append(path)
        return real(path, **named)

    monkeypatch.setattr(os, "stat", count)
    assert folder_problem(str(root)) == ""
    assert len(calls) == len(Path(os.path.realpath(root)).parts)


FILES = {
    0o600: "",
    0o644: "",
    0o660: f"mode 0660: group {GID} may write",
    0o606: "mode 0606: others may write",
}


@pytest.mark.parametrize("mode", FILES, ids="{:04o}".format)
def test_an_entry_that_others_could_have_written_is_set_aside_unread(root, mode):
    """In the folder nobody else can make files, and into this file somebody may have written."""
    (entry,) = entries_of(root).iterdir()
    entry.chmod(mode)
    store = private_store(root)
    looked = store.look(key_of("a"))
    assert entry.exists()
    found = store.get(key_of("a"))
    assert (looked.outcome, looked.reason) == (found.outcome, found.reason)
    assert found.reason == FILES[mode]
    assert found.outcome is (Outcome.CORRUPT if FILES[mode] else Outcome.HIT)
    assert store.put(entry_of("a")).written is bool(FILES[mode])
    assert store.get(key_of("a")).outcome is Outcome.HIT


@needs_root
def test_an_entry_of_another_user_is_set_aside_and_replaced(root):
    """Its owner could have changed it at any time, through a name elsewhere."""
    (entry,) = entries_of(root).iterdir()
    os.chown(entry, OTHER, OTHER)
    store = private_store(root)
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert found.reason == f"owned by uid {OTHER}, and this process is uid 0"
    (note,) = (root / "quarantine").glob("*.reason")
    assert note.read_text() == found.reason + "\n"
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written
    store.set_aside(key_of("a"), "its library does not load")
    assert store.get(key_of("a")).outcome is Outcome.MISS


@needs_root
def test_in_a_container_the_owners_outside_are_trusted_above_and_nowhere_else(
    base, root, monkeypatch
):
    """The system's folders seem to be of one user whom nobody knows. The cache itself must be its user's, or root's."""
    monkeypatch.setattr(trust, "_outside", lambda: OTHER)
    os.chown(base, OTHER, OTHER)
    assert folder_problem(str(root)) == ""
    base.chmod(0o777)
    assert folder_problem(str(root)) == f"{base}: mode 0777: group {OTHER} and others may write"
    base.chmod(0o755)
    os.chown(root, OTHER, OTHER)
    assert folder_problem(str(root)) == f"{root}: owned by uid {OTHER}, and this process is uid 0"


def test_the_number_of_the_owners_outside_is_known_in_a_container_and_only_there():
    """Where every user is known, none is outside."""
    code = "from graphspec.cache.trust import _outside; print(_outside())"
    prefix = as_user_without_a_name(OTHER)
    overflow = Path("/proc/sys/kernel/overflowuid").read_text().strip()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code],
        cwd=Path(trust.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == overflow
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        assert run_python(code) == "None"


@needs_root
def test_another_user_sees_the_same_from_its_own_process(base, root):
    """As uid 12345: root's folder is trusted, its own is, and that of a third user is refused."""
    base.chmod(0o755)
    root.chmod(0o755)
    for name, owner in (("own", OTHER), ("third", OTHER + 1)):
        (base / name).mkdir(mode=0o755)
        os.chown(base / name, owner, owner)
    for folder in base.parents[:4]:
        # Pytest's own folders are closed to others; what they hold is nobody's secret.
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    printed = run_python(
        f"""
        import os
        from graphspec.cache.trust import folder_problem
        os.setgid({OTHER}), os.setuid({OTHER})
        for name in ("cache", "own", "third"):
            print(folder_problem(os.path.join({str(base)!r}, name)) or "trusted")
        """
    )
    assert printed.splitlines() == [
        "trusted",
        "trusted",
        f"{base / 'third'}: owned by uid {OTHER + 1}, and this process is uid {OTHER}",
    ]
