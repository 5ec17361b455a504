"""S3 as a tier: whatever the store or the network does, a lookup ends in a reason, soon, and without a secret."""

import logging
import re
import threading
import time

import pytest

from graphspec.cache.entry import pack
from graphspec.cache.store import Outcome
from graphspec.cache.tiers.breaker import Breaker, TierError
from graphspec.cache.tiers.remote import RemoteStore, name_of
from graphspec.cache.tiers.s3 import S3Blobs
from support.entries import entry_of, key_of
from support.servers import SECRET, ScriptedServer, http, refused_port, silent_port

pytest_plugins = ("support.server_fixtures",)
BUCKET = "graphspec-tests"
NAME = name_of(key_of("a"))


@pytest.fixture
def at(aws):
    """Makes blobs at a port of this machine, and closes them in the end."""
    made = []

    def make(port, **options):
        blobs = S3Blobs(
            BUCKET, "p", endpoint=f"http://127.0.0.1:{port}", region="us-east-1", **options
        )
        made.append(blobs)
        return blobs

    yield make
    for blobs in made:
        blobs.close()


def error(status, code):
    return http(status, f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode())


ANSWERS = {
    "no bucket": (error(404, "NoSuchBucket"), "the bucket does not exist: 404 NoSuchBucket"),
    "access denied": (error(403, "AccessDenied"), "access is denied (also for missing objects"),
    "unknown key": (error(403, "InvalidAccessKeyId"), "the credentials are refused: 403"),
    "wrong secret": (error(403, "SignatureDoesNotMatch"), "the credentials are refused: 403"),
    "expired": (error(400, "ExpiredToken"), "the credentials have expired"),
    "clock": (error(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    "overloaded": (error(503, "SlowDown"), "the store answered with an error: 503 SlowDown"),
    "own trouble": (http(500), "the store answered with an error: 500 "),
    "proxy page": (http(502, b"<html>bad gateway</html>"), "502"),
    "odd code": (
        error(400, SECRET + "\n!"),
        "the store answered with an error: 400 without a code",
    ),
    "redirect": (error(301, "PermanentRedirect"), "301 PermanentRedirect"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n\r\n", "without an answer"),
    "no answer": (None, "the connection was closed without an answer"),
    "broken off": (http(200, b"12345", length=100), "broke off"),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 9, "the size of the object is not told"),
}


@pytest.mark.parametrize(("answer", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_a_bad_answer_ends_in_a_reason(at, answer, reason):
    """Get and put say what is wrong and where, in our words: nothing of the store's free text is repeated."""
    with ScriptedServer([answer]) as server:
        store = RemoteStore(at(server.port))
        found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert found.reason.startswith(f"s3://{BUCKET}/p at http://127.0.0.1:{server.port}: ")
    assert reason in found.reason
    assert SECRET not in found.reason


@pytest.mark.parametrize("name", ["no bucket", "access denied", "overloaded", "no answer"])
def test_a_bad_answer_to_a_put_ends_in_a_reason(at, name):
    """A put that is refused has failed, with the same words."""
    answer, reason = ANSWERS[name]
    with ScriptedServer([answer]) as server:
        stored = RemoteStore(at(server.port)).put(entry_of("a"))
    assert stored.failed
    assert reason in stored.reason


@pytest.mark.parametrize("status", [500, 503, None])
def test_a_busy_store_is_asked_a_second_time_and_not_a_third(at, status):
    """What passes by itself is tried again at once; twice is the bound."""
    busy = None if status is None else http(status)
    with ScriptedServer([busy, http(200, pack(entry_of("a")))]) as server:
        assert RemoteStore(at(server.port)).get(key_of("a")).outcome is Outcome.HIT
    with ScriptedServer([busy]) as server:
        assert RemoteStore(at(server.port)).get(key_of("a")).outcome is Outcome.ERROR
    assert len(server.requests) == 2


def test_a_refusal_is_not_asked_a_second_time(at):
    """What will not change by itself costs one request."""
    with ScriptedServer([error(403, "AccessDenied")]) as server:
        RemoteStore(at(server.port)).get(key_of("a"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_proxy_that_redirects_everything_is_asked_twice(at, status):
    """A login page in place of the store ends in a reason after the call and one question for the bucket's region."""
    with ScriptedServer([http(status, b"<html>log in</html>")]) as server:
        found = RemoteStore(at(server.port)).get(key_of("a"))
    assert f"the store answered with an error: {status} " in found.reason
    assert len(server.requests) == 2


def test_a_write_at_the_same_time_is_tried_again(at):
    """S3 answers 409 to a writer whose rival has not finished; after it, the name is taken."""
    with ScriptedServer([error(409, "ConditionalRequestConflict"), http(412)]) as server:
        assert at(server.port).put_if_absent(NAME, b"x") is False
    assert len(server.requests) == 2


def test_a_put_asks_for_absence(at):
    """The condition is in the request that stores, so nothing can come between."""
    with ScriptedServer([http(200)]) as server:
        assert at(server.port).put_if_absent(NAME, b"x")
    assert re.search(rb"\r\nIf-None-Match: \*\r\n", server.requests[0])


def test_a_refused_connection_ends_in_a_reason_and_then_costs_nothing(at):
    """Three tries reach the port, and the tier is off."""
    with refused_port() as port:
        store = RemoteStore(at(port))
        found = [store.get(key_of(str(n))) for n in range(10)]
        assert store.put(entry_of("a")).failed
    assert "no connection: refused, or the name is unknown" in found[0].reason
    assert all("switched off" in f.reason for f in found[3:])


def test_a_store_that_never_answers_costs_about_one_timeout(at):
    """Forty lookups and forty puts against a port that takes connections and says nothing: one wait."""
    with silent_port() as port:
        store = RemoteStore(at(port, timeout_s=1.0), breaker=lambda: Breaker(patience_s=0.8))
        store._blobs.open()
        began = time.monotonic()
        found = [store.get(key_of(str(n))) for n in range(40)]
        stored = [store.put(entry_of(str(n))) for n in range(40)]
        took = time.monotonic() - began
    assert "no answer in time" in found[0].reason
    assert all("switched off" in f.reason for f in found[1:])
    assert all(s.failed for s in stored)
    assert 0.9 < took < 10.0


def test_a_put_that_is_never_answered_ends(at):
    """A write has the same limit as a read."""
    with silent_port() as port:
        stored = RemoteStore(at(port, timeout_s=0.3)).put(entry_of("a", bytes(100_000)))
    assert "no answer in time" in stored.reason


def test_a_store_that_answers_too_slowly_is_given_up(at, monkeypatch):
    """A transfer has an end of its own, since bytes that keep trickling never let a wait run out."""
    data = pack(entry_of("a", bytes(3 << 20)))
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr("graphspec.cache.tiers.s3.time.monotonic", lambda: next(now))
    with ScriptedServer([http(200, data)]) as server, pytest.raises(TierError, match="too slow"):
        at(server.port).get(NAME, 1 << 30)


def test_an_object_beyond_the_limit_is_refused_by_its_promised_size(at):
    """A huge promise costs no memory and no time: the body is not read."""
    with ScriptedServer([http(200, b"x" * 1000, length=1 << 40)]) as server:
        found = RemoteStore(at(server.port)).get(key_of("a"))
    assert found.outcome is Outcome.ERROR
    assert f"the object has {1 << 40} bytes, at most {256 << 20} are fetched" in found.reason


def test_a_server_that_is_killed_in_the_middle_ends_in_a_reason(s3_endpoint, aws):
    """A store that worked and went away: the next lookup says so, and what was read before stays good."""
    data = pack(entry_of("a"))
    server = ScriptedServer([http(200, data)])
    with server:
        blobs = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{server.port}", region="us-east-1")
        store = RemoteStore(blobs)
        found = store.get(key_of("a"))
    assert found.outcome is Outcome.HIT
    assert store.get(key_of("a")).outcome is Outcome.ERROR
    assert bytes(found.entry.payload) == entry_of("a").payload
    blobs.close()


def test_a_missing_bucket_of_a_real_server_is_named(s3_endpoint, aws):
    """The reason names bucket and endpoint, which is what a person has to look at."""
    blobs = S3Blobs("no-such-bucket", endpoint=s3_endpoint, region="us-east-1")
    store = RemoteStore(blobs)
    expected = f"s3://no-such-bucket/ at {s3_endpoint}: the bucket does not exist: 404 NoSuchBucket"
    assert store.get(key_of("a")).reason == expected
    assert store.put(entry_of("a")).reason == expected
    assert store.problem() == expected
    blobs.close()


def test_wrong_credentials_are_refused_by_a_real_server(s3_blobs, s3_endpoint):
    """A server that checks signatures does not know this key."""
    from moto.core import set_initial_no_auth_action_count

    store = RemoteStore(s3_blobs)
    ask = set_initial_no_auth_action_count(0)(lambda: store.get(key_of("a")))
    found = ask()
    assert found.outcome is Outcome.ERROR
    assert "the credentials are refused: 403 InvalidAccessKeyId" in found.reason


def test_missing_credentials_end_in_a_reason(at, monkeypatch):
    """A process with nothing in boto3's chain: one reason, no request."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(boto3.session, "Session", boto3.Session)
    with ScriptedServer([http(200)]) as server:
        found = RemoteStore(at(server.port)).get(key_of("a"))
    assert found.reason.endswith(f":{server.port}: no credentials were found")
    assert server.requests == []


def test_no_secret_is_in_a_log_or_a_repr(at, caplog):
    """With every logger at its most talkative, the secret key is in no record, no reason and no repr."""
    caplog.set_level(logging.DEBUG)
    with ScriptedServer([error(403, "SignatureDoesNotMatch")]) as server:
        blobs = at(server.port)
        store = RemoteStore(blobs)
        found, stored = store.get(key_of("a")), store.put(entry_of("a"))
    assert len(caplog.records) > 10
    ours = [
        repr(blobs),
        repr(store),
        str(vars(store)),
        found.reason,
        stored.reason,
        store.problem(),
    ]
    # boto3 logs the store's answer, in which this server repeats the secret. What was sent has none.
    sent = [r.getMessage() for r in caplog.records if "Message" not in r.getMessage()]
    assert [text for text in ours + sent if SECRET in text] == []


def test_a_long_list_is_read_page_by_page(s3_blobs, monkeypatch):
    """More objects than fit in one answer are all listed, once each."""
    for number in range(7):
        s3_blobs.put_if_absent(str(number), b"x")
    real, pages = s3_blobs._call, []

    def small(operation, **parameters):
        pages.append(operation)
        return real(operation, MaxKeys=2, **parameters)

    monkeypatch.setattr(s3_blobs, "_call", small)
    assert sorted(b.name for b in s3_blobs.list()) == list("0123456")
    assert len(pages) == 4


def test_a_prefix_is_a_folder(s3_blobs, s3_bucket):
    """Neighbours whose names begin with the prefix are not in it."""
    s3_bucket.put_if_absent("a/prefix2/x", b"x")
    s3_blobs.put_if_absent("y", b"yy")
    assert [b.name for b in s3_blobs.list()] == ["y"]
    assert {b.name for b in s3_bucket.list()} == {"a/prefix/y", "a/prefix2/x"}


def test_a_forked_process_has_a_client_of_its_own(at):
    """Sockets of the parent are not used by the child."""
    with ScriptedServer([http(404)]) as server:
        blobs = at(server.port)
        assert blobs.get(NAME, 10) is None
        mine = blobs._client()
        pid, _ = blobs._opened
        blobs._opened = (pid + 1, mine)
        assert blobs._client() is not mine
        assert blobs._client() is blobs._client()
        mine.close()


def test_many_threads_share_one_store(s3_blobs):
    """Lookups of several units at once are all right."""
    store = RemoteStore(s3_blobs)
    for number in range(4):
        store.put(entry_of(str(number), bytes([number]) * 1000))
    found = {}

    def look(number):
        found[number] = bytes(store.get(key_of(str(number))).entry.payload)

    threads = [threading.Thread(target=look, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {n: bytes([n]) * 1000 for n in range(4)}
