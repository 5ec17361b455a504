"""Addresses of remote tiers: a good one is a store, a bad one is every problem that it has, and no secret is shown."""

import importlib.util

import pytest

from graphspec.cache.tiers.remote import MAX_ENTRY_BYTES, RemoteStore
from graphspec.cache.tiers.remote_url import remote_store
from graphspec.cache.tiers.shared_folder import SharedFolder
from graphspec.errors import EnvironmentProblem, SpecError
from support.processes import run_python
from support.servers import SECRET


def trusted(seal):
    return ""


GOOD = {
    "s3://bucket": "s3://bucket/",
    "s3://my.bucket-1/a/b/": "s3://my.bucket-1/a/b",
    "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=eu-west-1&timeout=2.5&max_entry_bytes=1000": (
        "s3://bucket/p at http://127.0.0.1:9000"
    ),
    "s3://bucket?endpoint=https%3A%2F%2Fstore.example": "s3://bucket/ at https://store.example",
    "redis://host": "redis://host:6379/0 (graphspec:v3:*)",
    "redis://host:7000/5?prefix=team/a&ttl=3600": "redis://host:7000/5 (team/a:v3:*)",
    "rediss://user:p%40ss@[::1]:7000": "rediss://[::1]:7000/0 (graphspec:v3:*)",
}


@pytest.mark.parametrize(("url", "where"), GOOD.items(), ids=GOOD)
def test_a_good_address_is_a_store_there(url, where):
    """Its place for messages is the address without login and options; nothing is connected."""
    store = remote_store(url)
    assert isinstance(store, RemoteStore)
    assert store.where == where
    assert store.writable


def test_a_folder_is_a_store_there():
    """Any of the three ways to write a file address of this machine, with percent signs decoded."""
    for url in (
        "file:///mnt/my%20share/x",
        "file:/mnt/my%20share/x",
        "file://localhost/mnt/my%20share/x",
    ):
        store = remote_store(url)
        assert isinstance(store, SharedFolder)
        assert store.where == "/mnt/my share/x"


def test_options_reach_the_store():
    """Each option has an effect, and the defaults are those of the docs."""
    s3 = remote_store(
        "s3://b-c/p?endpoint=http://h:1&region=eu-west-1&timeout=2.5&max_entry_bytes=1000&write=no"
    )
    blobs = s3._blobs
    assert s3._reads._patience_s == 0.8 * 2.5
    assert (s3.writable, s3._max_entry_bytes) == (False, 1000)
    assert (blobs._endpoint, blobs._region, blobs._timeout_s) == ("http://h:1", "eu-west-1", 2.5)
    redis = remote_store("redis://u:p%40ss@h:7000/5?prefix=x&ttl=60&timeout=1")
    address = redis._blobs._address
    assert (address.host, address.port, address.db, address.tls) == ("h", 7000, 5, False)
    assert (address.username, address.password) == ("u", "p@ss")
    assert (redis._blobs._ttl_s, redis._blobs._timeout_s, redis._blobs._prefix) == (
        60,
        1.0,
        "x:v3:",
    )
    assert remote_store("rediss://h")._blobs._address.tls
    plain = remote_store("redis://h")
    assert (plain._max_entry_bytes, plain._blobs._timeout_s, plain._blobs._ttl_s) == (
        MAX_ENTRY_BYTES,
        5.0,
        None,
    )
    group = remote_store("file:///m/x?access=group&durable=no&write=no", trust=trusted)
    assert (group._disk.folder_mode, group._disk._durable, group.writable) == (0o2770, False, False)
    private = remote_store("file:///m/x")
    assert (private._disk.folder_mode, private._disk._durable, private.writable) == (
        0o700,
        True,
        True,
    )


BAD = {
    "": "of another kind",
    "/mnt/share": "of another kind",
    "http://host/x": "of another kind",
    "S4://bucket": "of another kind",
    "redis://[::1": "of another kind",
    "file://mnt/share": "a host, or a path with two slashes",
    "file:///": "no path of a folder",
    "file:share": "no path of a folder",
    "file:///mnt/%00": "no path of a folder",
    "file:///mnt?access=all": "found 'all' (a string); wanted one of private or group",
    "file:///mnt?access=group": "a group that may write, and entries need no signature",
    "file:///mnt?durable=maybe": "option durable",
    "file:///mnt?timeout=3": "an option 'timeout'",
    "s3:///prefix": "no right bucket",
    "s3://B": "no right bucket",
    f"s3://KEY:{SECRET}@bucket": "a user or password",
    f"s3://KEY:{SECRET}/x": "no right bucket",
    "s3://bucket/a b": "a prefix with other characters",
    "s3://bucket?regoin=x": "did you mean",
    "s3://bucket?region=EU": "option region",
    "s3://bucket?endpoint=host:9000": "option endpoint",
    f"s3://bucket?endpoint=http://u:{SECRET}@host": "option endpoint",
    "s3://bucket?endpoint=http://host:99999": "option endpoint",
    "s3://bucket?timeout=0": "option timeout",
    "s3://bucket?timeout=nan": "option timeout",
    "s3://bucket?timeout=1e9": "option timeout",
    "s3://bucket?max_entry_bytes=-1": "option max_entry_bytes",
    "s3://bucket?region=a&region=b": "the option twice",
    "s3://bucket#x": "a # and what follows it",
    "redis://": "no host",
    "redis:///0": "no host",
    "redis://host:0": "no right port",
    "redis://host:70000": "no right port",
    "redis://host/x": "no database",
    "redis://host?ttl=0": "option ttl",
    "redis://host?ttl=1.5": "option ttl",
    "redis://host?prefix=a:b": "option prefix",
    f"redis:u:{SECRET}@host": "no host",
    f"redis://u:a#{SECRET}@host": "a # and what follows it",
    f"redis://u:a/{SECRET}@host": "no right port",
    f"redis://u:a?{SECRET}@host": "an option of no right name",
}


@pytest.mark.parametrize(("url", "found"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_address_is_a_problem_without_its_secret(url, found):
    """The message says what is wrong in a config's words, and repeats nothing that may be a password."""
    with pytest.raises(SpecError) as refused:
        remote_store(url)
    text = str(refused.value)
    assert found in text
    assert "cache.remote" in text
    assert SECRET not in text


def test_all_problems_of_an_address_are_told_together():
    """Four mistakes, four problems."""
    with pytest.raises(SpecError) as refused:
        remote_store("s3://B?endpoint=x&timeout=never&colour=red")
    assert len(refused.value.problems) == 4


def test_a_group_folder_with_trusted_signatures_is_fine():
    """What a group may write is used where signatures say whose entries are good."""
    assert remote_store("file:///mnt/x?access=group", trust=trusted).where == "/mnt/x"


@pytest.mark.parametrize(("package", "url"), [("boto3", "s3://bucket"), ("redis", "redis://host")])
def test_a_missing_package_is_told_with_the_extra_that_brings_it(monkeypatch, package, url):
    """Before anything is looked up, with the command to run."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == package else real(n))
    with pytest.raises(EnvironmentProblem, match=r"pip install 'graphspec-engine\[(s3|redis)\]'"):
        remote_store(url)


def test_nothing_is_imported_before_the_first_call():
    """Stores that are made and not asked load no client: a hit in the cache folder does not pay for it."""
    code = f"""
        import sys
        from graphspec.cache.tiers.remote_url import remote_store
        print(remote_store("s3://bucket/p"), remote_store("redis://user:{SECRET}@host"))
        print([n for n in ("boto3", "botocore", "redis", "urllib3") if n in sys.modules])
    """
    stores = "RemoteStore(s3://bucket/p) RemoteStore(redis://host:6379/0 (graphspec:v3:*))"
    assert run_python(code) == f"{stores}\n[]"
