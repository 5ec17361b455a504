"""`open_cache`: the stores that a cache section asks for, and what each of them refuses."""

import os
from pathlib import Path

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.opened import open_cache
from graphspec.cache.signing import PublicKey, SigningKey
from graphspec.cache.store import Outcome
from graphspec.config.cache import CacheConfig
from graphspec.errors import UntrustedError
from support.entries import entry_of, key_of


@pytest.fixture
def root(tmp_path):
    """A cache folder that is not there yet."""
    return str(tmp_path / "cache")


@pytest.fixture
def keys(tmp_path):
    """A private key's file, and a trust file that names it."""
    key = SigningKey.generate()
    key.save(str(tmp_path / "key"))
    trusted = tmp_path / "trusted"
    trusted.write_text(f"{PublicKey(key.public_key, 'the builder')}\n")
    trusted.chmod(0o600)
    return str(tmp_path / "key"), str(trusted)


def test_an_open_cache_stores_and_finds(root):
    """By default: a private folder, counted."""
    cache = open_cache(CacheConfig(), root)
    assert cache.why_not_stored() == ""
    assert cache.store.put(entry_of("a")).written
    assert cache.store.get(key_of("a")).outcome is Outcome.HIT
    assert cache.look(key_of("a")).outcome is Outcome.HIT
    counts = cache.counters.snapshot()
    assert (counts.lookups, counts.puts, counts.problem()) == (1, 1, "")


def test_nothing_is_created_before_the_first_put(root):
    """Opening and looking leave no folder behind."""
    cache = open_cache(CacheConfig(), root)
    cache.store.get(key_of("a"))
    assert not os.path.exists(root)


def test_a_cache_that_is_switched_off_is_disabled(root):
    """Whatever lies there."""
    assert DiskStore(root).put(entry_of("a")).written
    cache = open_cache(CacheConfig(enabled=False), root)
    assert cache.store.get(key_of("a")).outcome is Outcome.DISABLED
    assert not cache.store.put(entry_of("b")).failed
    assert cache.problem == ""


def test_a_folder_that_others_may_write_to_is_disabled_with_its_mode(root):
    """Its entries are not read, and a put has failed."""
    assert DiskStore(root).put(entry_of("a")).written
    os.chmod(root, 0o777)
    cache = open_cache(CacheConfig(), root)
    assert cache.store.get(key_of("a")).outcome is Outcome.DISABLED
    assert cache.store.put(entry_of("b")).failed
    assert "0777" in cache.problem
    assert cache.why_not_stored() == cache.problem


def test_a_shared_folder_serves_what_is_signed_whatever_its_mode(root, keys):
    """Whoever has the key stores signed entries; whoever trusts it reads them."""
    private, trusted = keys
    builder = open_cache(CacheConfig(trust=trusted, signing_key=private), root)
    assert builder.store.put(entry_of("a")).written
    os.chmod(root, 0o777)
    reader = open_cache(CacheConfig(trust=trusted), root)
    assert reader.store.get(key_of("a")).outcome is Outcome.HIT


def test_without_a_key_nothing_is_stored_or_moved_in_a_shared_folder(root, keys):
    """An unsigned entry is refused where it lies: a reader with the wrong trust file must not empty the folder."""
    _, trusted = keys
    assert DiskStore(root).put(entry_of("a")).written
    reader = open_cache(CacheConfig(trust=trusted), root)
    found = reader.store.get(key_of("a"))
    assert found.outcome is Outcome.CORRUPT
    assert "signed" in found.reason
    assert os.path.exists(DiskStore(root).path_of(key_of("a")))
    stored = reader.store.put(entry_of("b"))
    assert stored.failed
    assert "cache.signing_key" in stored.reason


def test_a_trust_file_that_is_not_there_is_an_error(root, tmp_path):
    """Not a cache that trusts everybody, nor one that trusts nobody."""
    with pytest.raises(UntrustedError, match="missing"):
        open_cache(CacheConfig(trust=str(tmp_path / "missing")), root)


def test_the_limits_of_the_config_hold(root):
    """A second entry beyond the number of entries takes the place of the first."""
    cache = open_cache(CacheConfig(max_entries=1), root)
    for name in "ab":
        assert cache.store.put(entry_of(name)).written
    assert len(list(DiskStore(root).entries())) == 1


def test_a_remote_folder_fills_an_empty_one(root, tmp_path):
    """What another machine stored there is a hit here, and lies here afterwards."""
    remote = f"file://{tmp_path}/remote"
    there = open_cache(CacheConfig(remote=(remote,)), str(tmp_path / "there"))
    assert there.store.put(entry_of("a")).written
    here = open_cache(CacheConfig(remote=(remote,)), root)
    assert here.store.get(key_of("a")).outcome is Outcome.HIT
    assert open_cache(CacheConfig(), root).store.get(key_of("a")).outcome is Outcome.HIT


def test_B57_a_run_of_tests_has_a_default_folder_of_its_own(tmp_path_factory):
    """Whatever the environment names and the user's folder holds: the default lies among the run's temporary files."""
    assert Path(open_cache(CacheConfig()).root).is_relative_to(tmp_path_factory.getbasetemp())
