"""Servers for tests of remote tiers: a real Redis, and servers that misbehave on purpose."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator

from graphspec.cache.tiers.breaker import TierError
from graphspec.cache.tiers.redis_blobs import RedisAddress
from graphspec.cache.tiers.remote import Blob

SECRET = "wJalrXUtnFEMI0secret0never0shown"
NO_REDIS = "needs redis-server: apt-get install redis-server"


class MemoryBlobs:
    """The simplest right `Blobs`. `fault` is raised by every call while it is set, and `calls` counts them."""

    where = "memory://"

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.fault: Exception | None = None
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        """Nothing to make ready."""

    def get(self, name: str, limit: int) -> bytes | None:
        self._called("get")
        data = self.data.get(name)
        if data is not None and len(data) > limit:
            raise TierError(f"{len(data)} bytes, at most {limit} are fetched", counts=False)
        return data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._called("put")
        with self._lock:
            if name in self.data:
                return False
            self.data[name] = data
            return True

    def list(self) -> Iterator[Blob]:
        self._called("list")
        yield from (Blob(name=n, size=len(d)) for n, d in self.data.items())

    def delete(self, name: str) -> None:
        self._called("delete")
        self.data.pop(name, None)

    def close(self) -> None:
        pass

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.fault is not None:
            raise self.fault


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port of this machine that refuses connections for as long as the block lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield listening.getsockname()[1]


class ScriptedServer:
    """Answers each request with the next of `answers`, the last one for ever, and closes the connection.

    An answer is raw bytes, or None for closing without one. `requests` holds what came.
    """

    def __init__(self, answers: "list[bytes | None]", ends: bytes = b"\r\n\r\n") -> None:
        self._answers = answers
        self._ends = ends
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while self._ends not in request:
            more = connection.recv(65536)
            if not more:
                return
            request += more
        number = min(len(self.requests), len(self._answers) - 1)
        self.requests.append(request)
        answer = self._answers[number]
        if answer is not None:
            connection.sendall(answer)
            # A close with unread bytes would reset the connection before the answer is read.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


def http(status: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    """An HTTP answer; `length` is the promised size of the body where it is not the real one."""
    size = len(body) if length is None else length
    return (
        f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


class RedisServer:
    """A real Redis on a free port, with nothing on disk."""

    def __init__(self, *arguments: str) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None, NO_REDIS
        self.folder = tempfile.TemporaryDirectory(prefix="graphspec-redis-")
        with refused_port() as port:
            self.port = port
        self._command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                         "--dir", self.folder.name, "--daemonize", "no", *arguments]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Starts the process and waits until it says that it is ready."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "Ready to accept connections" in line:
                return
        raise AssertionError("".join(said))

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Ends the process and removes its folder."""
        self.kill()
        self.folder.cleanup()

    def address(self, **changes: object) -> RedisAddress:
        """Its address."""
        return RedisAddress(host="127.0.0.1", port=self.port, **changes)  # type: ignore[arg-type]
