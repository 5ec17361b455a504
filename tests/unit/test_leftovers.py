"""Temporary files: whose they are can be read from their names, and only what the dead left is swept."""

import os
import subprocess
import time

import pytest

from graphspec.cache.leftovers import sweep, unique_name

DAY_S = 24 * 3600.0


def up_s():
    """Seconds since this machine started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def dead_pid():
    """The id of a process that has ended and been waited for."""
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


def name_with(**changes):
    """A name as this process makes them, with some of its parts replaced."""
    places = {"mark": 0, "host": 1, "boot": 2, "pid": 3}
    parts = unique_name().split(".")
    for place, value in changes.items():
        parts[places[place]] = value
    return ".".join(parts)


def swept(folder, name, idle_s=0.0):
    """True when a file of that name, last written so long ago, is removed by a sweep, which leaves nothing of its own."""
    path = folder / name
    path.write_text("")
    written = time.time() - idle_s
    os.utime(path, (written, written))
    count = sweep(str(folder))
    kept = os.listdir(folder)
    assert kept == ([] if count else [name])
    path.unlink(missing_ok=True)
    return count == 1


def test_names_are_unique_and_of_six_parts():
    """No two names are equal, and each tells host, boot and process."""
    names = {unique_name() for _ in range(1000)}
    assert len(names) == 1000
    assert {len(n.split(".")) for n in names} == {6}
    assert {n.split(".")[3] for n in names} == {str(os.getpid())}


def test_a_file_of_a_dead_process_is_swept(tmp_path):
    """What a killed process left is removed."""
    assert swept(tmp_path, name_with(pid=dead_pid()))


def test_a_file_of_before_the_last_boot_is_swept(tmp_path):
    """After a reboot no process of before lives, whatever has its number now."""
    name = name_with(boot="0123456789ab", pid=str(os.getpid()))
    assert swept(tmp_path, name, idle_s=up_s() + 60)


def test_a_file_of_another_machine_with_this_name_is_kept(tmp_path):
    """Two machines can have one name: a file of another boot that was written since this one began is somebody's."""
    assert not swept(tmp_path, name_with(boot="0123456789ab", pid=dead_pid()))
    assert not swept(tmp_path, name_with(boot="0123456789ab"), idle_s=min(up_s(), DAY_S) / 2)


def test_a_file_of_a_living_process_is_kept(tmp_path):
    """A file that is being written stays, this process's and another's alike."""
    assert not swept(tmp_path, unique_name())
    assert not swept(tmp_path, name_with(pid=str(os.getppid())))


def test_a_file_of_another_users_process_is_kept(tmp_path, monkeypatch):
    """A process that may not be signalled lives."""

    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not swept(tmp_path, name_with(pid="12345"))


STRANGERS = {
    "host": {"host": "elsewhere"},
    "host and boot": {"host": "elsewhere", "boot": "0123456789ab"},
    "container": {"boot": unique_name().split(".")[2].split("-")[0] + "-4026539999"},
}


@pytest.mark.parametrize("parts", STRANGERS.values(), ids=STRANGERS)
def test_a_file_of_another_host_or_container_is_kept_for_two_days(tmp_path, parts):
    """Whether a process lives cannot be known elsewhere, not even when its number is free here: only age tells."""
    name = name_with(pid=dead_pid(), **parts)
    assert not swept(tmp_path, name)
    assert not swept(tmp_path, name, idle_s=2 * DAY_S - 60)
    assert swept(tmp_path, name, idle_s=2 * DAY_S + 60)


@pytest.mark.parametrize("hours", [-1000, 1000])
def test_age_is_measured_by_the_folders_own_clock(tmp_path, monkeypatch, hours):
    """This host's clock may be wrong by weeks: what decides is the time that the file system gives a new file."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    name, path = name_with(host="elsewhere"), tmp_path / name_with(host="elsewhere")
    path.write_text("")
    assert sweep(str(tmp_path)) == 0
    (tmp_path / name).write_text("")
    written = real() - 3 * DAY_S
    os.utime(tmp_path / name, (written, written))
    assert sweep(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_of_another_user_is_kept(tmp_path, monkeypatch):
    """In a folder that several users share, each sweeps what is his own."""
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert not swept(tmp_path, name_with(pid=dead_pid()))


def test_a_link_with_such_a_name_is_removed_and_not_followed(tmp_path):
    """A link is removed as a link: what it leads to stays."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("")
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / name_with(pid=dead_pid())).symlink_to(tmp_path / "target")
    assert sweep(str(tmp_path / "swept")) == 1
    assert (tmp_path / "target" / "file").exists()


def test_a_folder_of_a_dead_process_is_swept_with_its_content(tmp_path):
    """A build folder that a killed compiler left is removed as a whole."""
    folder = tmp_path / name_with(pid=dead_pid())
    (folder / "unit").mkdir(parents=True)
    (folder / "unit" / "unit.cpp").write_text("")
    assert sweep(str(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "graphspec", "graphspec.a.b.c.d.e", "a.b.c.1.e.f", "graphspec.1.2.3"]
)
def test_what_others_made_is_kept(tmp_path, name):
    """A file whose name is not ours stays."""
    assert not swept(tmp_path, name)


@pytest.mark.parametrize("pid", ["²", "1" * 30, "", "-1", "0", "٣"])
def test_odd_process_numbers_do_not_break_the_sweep(tmp_path, pid):
    """Digits that are no decimal number, and numbers that no process can have, are handled."""
    (tmp_path / name_with(pid=pid)).write_text("")
    assert sweep(str(tmp_path)) in (0, 1)


def test_a_folder_that_is_not_there_is_swept_clean():
    """Nothing to sweep is not an error."""
    assert sweep("/nonexistent/graphspec") == 0


def test_what_cannot_be_removed_does_not_stop_the_sweep(tmp_path, monkeypatch):
    """One file that stays does not keep the others."""
    pid = dead_pid()
    first, second = name_with(pid=pid), name_with(pid=pid)
    for name in (first, second):
        (tmp_path / name).write_text("")
    real = os.unlink

    def unlink(path):
        if path.endswith(first):
            raise PermissionError
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    assert sweep(str(tmp_path)) == 1
    assert [p.name for p in tmp_path.iterdir()] == [first]
