"""`S3Blobs`: blocks of bytes in a bucket of an S3-compatible object store. Needs the package `boto3`.

Credentials come from boto3's own chain (variables, profiles, roles) and are never held here. What the store says in free
text is never repeated: it could quote a request. Reasons have our words, and the store's error code.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.cache.tiers.breaker import TierError
from graphspec.cache.tiers.remote import Blob

_CHUNK_BYTES = 256 << 10
_SLOWEST_BYTES_PER_S = 1 << 20
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_AGAIN = frozenset({409, 500, 502, 503, 504})
"""What passes by itself: a write at the same time (409), and the store's own trouble."""


class _AnswerError(TierError):
    """The store answered with an error."""

    def __init__(self, status: int, code: str) -> None:
        # A missing object is told by 403, not 404, to those who may not list the bucket.
        words = {
            "NoSuchBucket": "the bucket does not exist",
            "AccessDenied": "access is denied (also for missing objects, without the right to list the bucket)",
            "InvalidAccessKeyId": "the credentials are refused",
            "SignatureDoesNotMatch": "the credentials are refused",
            "InvalidToken": "the credentials are refused",
            "ExpiredToken": "the credentials have expired",
            "RequestTimeTooSkewed": "the clock of this machine is wrong",
        }
        super().__init__(f"{words.get(code, 'the store answered with an error')}: {status} {code}")
        self.status = status
        self.code = code

    @property
    def missing(self) -> bool:
        """There is no such object, but there is the bucket."""
        return self.status == 404 and self.code != "NoSuchBucket"


class S3Blobs:
    """Blocks of bytes below a prefix of a bucket.

    A connection, and each wait for bytes, may take `timeout_s` seconds, and a transfer as much again and a second for
    each MiB. A call is tried a second time when the store is busy or drops the connection, and never after a timeout.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._endpoint = endpoint
        self._region = region
        self._timeout_s = timeout_s
        self._opened: tuple[int, Any] | None = None

    def __repr__(self) -> str:
        return f"S3Blobs({self.where})"

    @property
    def where(self) -> str:
        at = f" at {self._endpoint}" if self._endpoint else ""
        return f"s3://{self._bucket}/{self._prefix.rstrip('/')}{at}"

    def open(self) -> None:
        try:
            self._client()
        except Exception as error:
            raise _failure(error) from None

    def get(self, name: str, limit: int) -> memoryview | None:
        try:
            answer = self._call("get_object", Key=self._prefix + name)
        except _AnswerError as error:
            if error.missing:
                return None
            raise
        body, size = answer["Body"], answer.get("ContentLength")
        try:
            if size is None:
                raise TierError("the size of the object is not told")
            if size > limit:
                reason = f"the object has {size} bytes, at most {limit} are fetched"
                raise TierError(reason, counts=False)
            return self._read(body, size)
        finally:
            body.close()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            self._call("put_object", Key=self._prefix + name, Body=data, IfNoneMatch="*")
        except _AnswerError as error:
            if error.status == 412:
                return False
            raise
        return True

    def list(self) -> Iterator[Blob]:
        more: Mapping[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=self._prefix, **more)
            for found in page.get("Contents", ()):
                name = found["Key"].removeprefix(self._prefix)
                yield Blob(name=name, size=found["Size"])
            if not page.get("NextContinuationToken"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, name: str) -> None:
        self._call("delete_object", Key=self._prefix + name)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()

    def _read(self, body: Any, size: int) -> memoryview:
        data = bytearray(size)
        done = 0
        latest = time.monotonic() + self._timeout_s + size / _SLOWEST_BYTES_PER_S
        while done < size:
            try:
                chunk = body.read(min(_CHUNK_BYTES, size - done))
            except Exception as error:
                raise _failure(error) from None
            if not chunk:
                raise TierError(f"the object broke off after {done} of {size} bytes")
            data[done : done + len(chunk)] = chunk
            done += len(chunk)
            if time.monotonic() > latest:
                raise TierError(f"too slow: {done} of {size} bytes came in time")
        return memoryview(data).toreadonly()

    def _call(self, operation: str, **parameters: Any) -> Any:
        try:
            return self._call_once(operation, parameters)
        except TierError as error:
            if not _passes(error):
                raise
        return self._call_once(operation, parameters)

    def _call_once(self, operation: str, parameters: Mapping[str, Any]) -> Any:
        try:
            return getattr(self._client(), operation)(Bucket=self._bucket, **parameters)
        except Exception as error:
            # What boto3 raises depends on its version and on what the other side sends.
            raise _failure(error) from None

    def _client(self) -> Any:
        # A client made before a fork would share its sockets with the parent.
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            opened = self._opened = (os.getpid(), self._new_client())
        return opened[1]

    def _new_client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=self._timeout_s,
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
            # Entries have their own digests, and not every compatible store knows the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if self._endpoint else None,
        )
        session = boto3.session.Session()
        client = session.client(
            "s3", endpoint_url=self._endpoint, region_name=self._region, config=config
        )
        client.meta.events.register("before-call.s3.HeadBucket", _end_redirects)
        return client


def _end_redirects(context: Any, **_: Any) -> None:
    # botocore asks a redirected call's bucket for its region, and a redirect of that question for it again, until Python's
    # stack is full: a proxy that redirects everything, to its login page, would be asked dozens of times.
    context.setdefault("s3_redirect", {})["redirected"] = True


class _DroppedError(TierError):
    """The connection ended without an answer."""


def _passes(error: TierError) -> bool:
    return isinstance(error, _DroppedError) or (
        isinstance(error, _AnswerError) and error.status in _AGAIN
    )


def _failure(error: Exception) -> TierError:
    """The reason for what boto3 raised, without anything of its text."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "ClientError" in kinds:
        return _answer(error)
    if "ConnectionClosedError" in kinds:
        return _DroppedError("the connection was closed without an answer")
    words = {
        "ConnectTimeoutError": "no connection in time",
        "ReadTimeoutError": "no answer in time",
        "EndpointConnectionError": "no connection: refused, or the name is unknown",
        "ProxyConnectionError": "no connection to the proxy",
        "SSLError": "no trusted TLS connection",
        "NoCredentialsError": "no credentials were found",
        "PartialCredentialsError": "the credentials are incomplete",
        "ProfileNotFound": "the profile of the credentials does not exist",
        "IncompleteReadError": "the object broke off",
        "ResponseStreamingError": "the object broke off",
        "ResponseParserError": "the answer is not S3's",
    }
    for kind in type(error).__mro__:
        if kind.__name__ in words:
            return TierError(words[kind.__name__])
    return TierError(f"it failed ({type(error).__name__})")


def _answer(error: Any) -> _AnswerError:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(error.response.get("Error", {}).get("Code", ""))
    return _AnswerError(status, code if _CODE.fullmatch(code) else "without a code")
