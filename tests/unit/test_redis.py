"""Redis as a tier: whatever the server or the network does, a lookup ends in a reason, soon, and without a secret."""

import logging
import shutil
import time

import pytest

from graphspec.cache.entry import pack
from graphspec.cache.store import Outcome
from graphspec.cache.tiers.breaker import Breaker, TierError
from graphspec.cache.tiers.redis_blobs import MAX_VALUE_BYTES, RedisAddress, RedisBlobs
from graphspec.cache.tiers.remote import RemoteStore, name_of
from support.entries import entry_of, key_of
from support.servers import (
    NO_REDIS,
    SECRET,
    RedisServer,
    ScriptedServer,
    refused_port,
    silent_port,
)

pytest_plugins = ("support.server_fixtures",)
NAME = name_of(key_of("a"))


@pytest.fixture
def own_server():
    """A server that the test may kill, with a password."""
    if shutil.which("redis-server") is None:
        pytest.skip(NO_REDIS)
    server = RedisServer("--requirepass", SECRET)
    yield server
    server.close()


def at(port, **options):
    return RedisBlobs(RedisAddress(host="127.0.0.1", port=port), **options)


def bulk(data):
    return b"$%d\r\n%s\r\n" % (len(data), data)


ANSWERS = {
    "no RESP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is not Redis'"),
    "loading": (b"-LOADING Redis is loading\r\n" * 4, "the server is loading its data"),
    "no login": (b"-NOAUTH Authentication required.\r\n" * 4, "the credentials are refused"),
    "huge promise": (b":10\r\n:1\r\n$99999999999\r\n", "no connection, or it was dropped"),
    "no answer": (None, "no connection, or it was dropped"),
}


@pytest.mark.parametrize(("answer", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_a_bad_answer_ends_in_a_reason(answer, reason):
    """Get says what is wrong and where, in our words: nothing of the server's free text is repeated."""
    with ScriptedServer([answer], ends=b"\r\n") as server:
        store = RemoteStore(at(server.port, timeout_s=5.0))
        found = store.get(key_of("a"))
        store.close()
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert found.reason.startswith(f"redis://127.0.0.1:{server.port}/0 (graphspec:v3:*): ")
    assert reason in found.reason
    assert SECRET not in found.reason


def test_wrong_credentials_end_in_a_reason(own_server):
    """A wrong password, an unknown user and no password at all are the same sentence, for reads and for writes."""
    for login in ({}, {"password": "wrong"}, {"username": "nobody", "password": SECRET}):
        store = RemoteStore(RedisBlobs(own_server.address(**login)))
        found, stored = store.get(key_of("a")), store.put(entry_of("a"))
        store.close()
        assert found.outcome is Outcome.ERROR
        assert "the credentials are refused, or missing" in found.reason
        assert "the credentials are refused, or missing" in stored.reason
    right = RemoteStore(RedisBlobs(own_server.address(password=SECRET)))
    assert right.put(entry_of("a")).written
    right.close()


def test_a_server_that_is_killed_in_the_middle_and_comes_back(own_server):
    """Lookups say that it is gone; a tier that is not switched off yet uses it again, though its connection is dead."""
    store = RemoteStore(RedisBlobs(own_server.address(password=SECRET)))
    assert store.put(entry_of("a")).written
    own_server.kill()
    found, stored = store.get(key_of("a")), store.put(entry_of("b"))
    assert "no connection, or it was dropped" in found.reason
    assert "no connection, or it was dropped" in stored.reason
    own_server.start()
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written
    own_server.kill()
    own_server.start()
    assert store.put(entry_of("a")).written
    store.close()


def test_no_secret_is_in_a_log_or_a_repr(own_server, caplog):
    """With every logger at its most talkative, the password is in no record, no reason and no repr."""
    caplog.set_level(logging.DEBUG)
    address = own_server.address(username="default", password=SECRET)
    blobs = RedisBlobs(address)
    store = RemoteStore(blobs)
    assert store.put(entry_of("a")).written
    wrong = RemoteStore(RedisBlobs(own_server.address(username="nobody", password=SECRET)))
    texts = [repr(address), str(address), repr(blobs), str(vars(blobs)), repr(store)]
    texts += [wrong.get(key_of("a")).reason, wrong.problem(), caplog.text]
    assert [text for text in texts if SECRET in text] == []
    store.close()
    wrong.close()


def test_a_refused_connection_ends_in_a_reason_and_then_costs_nothing():
    """Three tries reach the port, and the tier is off."""
    with refused_port() as port:
        store = RemoteStore(at(port))
        found = [store.get(key_of(str(n))) for n in range(10)]
        assert store.put(entry_of("a")).failed
    assert "no connection, or it was dropped" in found[0].reason
    assert all("switched off" in f.reason for f in found[3:])


def test_a_server_that_never_answers_costs_about_one_timeout():
    """Forty lookups and forty puts against a port that takes connections and says nothing: one wait."""
    with silent_port() as port:
        store = RemoteStore(at(port, timeout_s=1.0), breaker=lambda: Breaker(patience_s=0.8))
        began = time.monotonic()
        found = [store.get(key_of(str(n))) for n in range(40)]
        stored = [store.put(entry_of(str(n))) for n in range(40)]
        took = time.monotonic() - began
        store.close()
    assert "no answer in time" in found[0].reason
    assert all("switched off" in f.reason for f in found[1:])
    assert all(s.failed for s in stored)
    assert 0.9 < took < 10.0


def test_a_user_that_may_only_read_still_reads(redis_server, redis_blobs):
    """Puts say why they are refused, and gets are hits."""
    RemoteStore(redis_blobs).put(entry_of("a"))
    rules = ["on", f">{SECRET}", "~*", "+strlen", "+exists", "+getrange"]
    redis_blobs._call(lambda client: client.execute_command("ACL", "SETUSER", "reader", *rules))
    reader = RedisBlobs(redis_server.address(username="reader", password=SECRET), "te*st")
    store = RemoteStore(reader)
    for number in range(4):
        assert store.put(entry_of(str(number))).failed
    assert "the user may not do this" in RemoteStore(reader).put(entry_of("b")).reason
    assert store.get(key_of("a")).outcome is Outcome.HIT
    reader.close()


def test_a_database_that_is_not_there_ends_in_a_reason(redis_server):
    """The server refuses its number."""
    blobs = RedisBlobs(redis_server.address(db=99))
    assert "/99 (graphspec:v3:*): the server refused" in RemoteStore(blobs).get(key_of("a")).reason
    blobs.close()


def test_a_full_server_ends_in_a_reason(redis_blobs):
    """A server that is out of memory refuses the write, and what is there is still read."""
    store = RemoteStore(redis_blobs)
    store.put(entry_of("a"))
    redis_blobs._call(lambda client: client.config_set("maxmemory", 1))
    try:
        assert "the server is out of memory" in store.put(entry_of("b")).reason
        assert store.get(key_of("a")).outcome is Outcome.HIT
    finally:
        redis_blobs._call(lambda client: client.config_set("maxmemory", 0))


def test_a_replica_that_is_only_read_ends_in_a_reason(redis_blobs):
    """A write that reaches a replica is refused."""
    with refused_port() as port:
        redis_blobs._call(lambda client: client.replicaof("127.0.0.1", port))
        try:
            reason = RemoteStore(redis_blobs).put(entry_of("a")).reason
        finally:
            redis_blobs._call(lambda client: client.replicaof("NO", "ONE"))
    assert "the server is a replica that is only read" in reason


def test_a_value_that_grows_between_measure_and_read_is_not_read_whole(redis_blobs, monkeypatch):
    """What comes over the wire is bounded by the limit, whatever the size was a moment before."""
    redis_blobs.put_if_absent(NAME, b"small")
    real, sizes = redis_blobs._call, []

    def measured(command):
        answer = real(command)
        sizes.append(answer)
        if len(sizes) == 1:
            real(lambda client: client.set(redis_blobs._prefix + NAME, bytes(100_000)))
        return answer

    monkeypatch.setattr(redis_blobs, "_call", measured)
    with pytest.raises(TierError, match="at most 1000 are fetched") as refused:
        redis_blobs.get(NAME, 1000)
    assert not refused.value.counts
    assert len(sizes[1]) == 1001


def test_a_value_of_another_type_is_a_reason_and_no_failure_of_the_tier(redis_blobs):
    """A list under an entry's name is neither read nor replaced, and the tier stays on."""
    redis_blobs._call(lambda client: client.rpush(redis_blobs._prefix + NAME, b"x"))
    store = RemoteStore(redis_blobs)
    for _ in range(4):
        assert "no string lies under this name" in store.get(key_of("a")).reason
    assert "no string lies under this name" in store.put(entry_of("a")).reason
    assert store.put(entry_of("b")).written


def test_a_value_that_redis_cannot_hold_is_not_sent():
    """The server would drop the connection in the middle of it."""

    class Huge(bytes):
        def __len__(self):
            return MAX_VALUE_BYTES + 1

    with pytest.raises(TierError, match="a value of Redis has at most") as refused:
        at(1).put_if_absent(NAME, Huge())
    assert not refused.value.counts


@pytest.mark.parametrize("ttl", [None, 60])
def test_an_entry_lives_as_long_as_it_is_told_to(redis_server, redis_blobs, ttl):
    """With a time to live the server drops it by itself; a read does not make it longer; without, it stays."""
    blobs = RedisBlobs(redis_server.address(), "te*st", ttl_s=ttl)
    store = RemoteStore(blobs)
    store.put(entry_of("a"))
    assert store.get(key_of("a")).outcome is Outcome.HIT
    left = blobs._call(lambda client: client.ttl(blobs._prefix + NAME))
    assert left == -1 if ttl is None else 50 < left <= 60
    blobs.close()


def test_keys_have_the_prefix_and_the_format_version(redis_blobs):
    """Other formats and other users of the database have other keys; a prefix with pattern characters matches itself."""
    RemoteStore(redis_blobs).put(entry_of("a"))
    redis_blobs._call(lambda client: client.set("teXst:v3:other", b"x"))
    redis_blobs._call(lambda client: client.set("te*st:v1:other", b"x"))
    digest = key_of("a").digest
    key = f"te*st:v3:{digest[:2]}/{digest}.v3.entry".encode()
    assert redis_blobs._call(lambda client: client.get(key)) == pack(entry_of("a"))
    assert [b.name for b in redis_blobs.list()] == [NAME]


def test_a_long_list_is_read_batch_by_batch(redis_blobs):
    """More keys than fit in one answer are all listed, once each."""
    names = {f"{n:04}" for n in range(1200)}
    redis_blobs._call(
        lambda client: client.mset({f"{redis_blobs._prefix}{n}": b"x" for n in names})
    )
    found = [b.name for b in redis_blobs.list()]
    assert len(found) == 1200
    assert set(found) == names
