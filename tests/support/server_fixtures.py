"""Fixtures with servers of remote tiers. A module that uses them names this one in `pytest_plugins`: a run starts each once."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from graphspec.cache.tiers.redis_blobs import RedisBlobs
from graphspec.cache.tiers.s3 import S3Blobs
from support.servers import NO_REDIS, SECRET, MemoryBlobs, RedisServer

BUCKET = "graphspec-tests"


def in_turn(application: Callable[..., object]) -> Callable[..., object]:
    """The same WSGI application, one request at a time.

    moto looks whether an object is there and stores it in two steps. S3 does both in one, and so does this.
    """
    lock = threading.Lock()

    def answer(environ: object, start_response: object) -> "list[bytes]":
        with lock:
            return list(application(environ, start_response))  # type: ignore[call-overload]

    return answer


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """moto's S3 server in this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    server._server.app = in_turn(server._server.app)
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    server._server.server_close()


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Credentials for boto3's chain, and nothing of this machine's own. One boto3 session for all clients.

    A session reads its 5 MB of service descriptions once; each new one would do so again.
    """
    import boto3

    folder = tmp_path_factory.mktemp("aws")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", str(folder / "no-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no-credentials"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        session = boto3.session.Session()
        patch.setattr(boto3.session, "Session", lambda: session)
        yield


@pytest.fixture(scope="session")
def s3_bucket(s3_endpoint: str, aws: None) -> Iterator[S3Blobs]:
    """A bucket, seen from its top."""
    blobs = S3Blobs(BUCKET, endpoint=s3_endpoint, region="us-east-1")
    blobs._client().create_bucket(Bucket=BUCKET)
    yield blobs
    blobs.close()


@pytest.fixture
def s3_blobs(s3_bucket: S3Blobs, s3_endpoint: str) -> Iterator[S3Blobs]:
    """An empty prefix of the bucket."""
    blobs = S3Blobs(BUCKET, "a/prefix", endpoint=s3_endpoint, region="us-east-1")
    yield blobs
    blobs.close()
    for blob in s3_bucket.list():
        s3_bucket.delete(blob.name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the tests that leave it running."""
    if shutil.which("redis-server") is None:
        pytest.skip(NO_REDIS)
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_blobs(redis_server: RedisServer) -> Iterator[RedisBlobs]:
    """An empty database."""
    blobs = RedisBlobs(redis_server.address(), "te*st")
    blobs._call(lambda client: client.flushdb())
    yield blobs
    blobs.close()


@pytest.fixture
def memory_blobs() -> MemoryBlobs:
    """Nothing stored, nothing called."""
    return MemoryBlobs()
