"""S3, GCS, Azure and HTTP through obstore, with our own retry by deadline and every failure put into one of seven classes.

Ranges are read with If-Match against the version seen at `head`, so that an object replaced under a reader is refused and
never spliced. Uploads above `part_bytes` go in parts; a conditional put is one request, which object stores make atomic.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..errors import MissingExtra, StoreError, UsageError
from .retry import Failure, Retry
from .store import Entry, check_object_name

__all__ = ["SCHEMES", "RemoteStore", "classify"]

SCHEMES = ("s3", "gs", "az", "https", "http")

_CHUNK_BYTES = 128 << 10  # of an answer under way: what a reset loses at most, and how often Python looks at it
_PART_BYTES = 16 << 20  # S3 wants parts of 5 MiB to 5 GiB and at most 10,000 of them: 16 MiB reaches 160 GB
_ERRNO: dict[Failure, int] = {
    "missing": errno.ENOENT,
    "auth": errno.EACCES,
    "changed": errno.ESTALE,
    "exists": errno.EEXIST,
    "permanent": errno.EIO,
    "transient": errno.EIO,
    "throttled": errno.EIO,
}
# A client's message names object, URL and time before it comes to the answer; only the answer's own wording says what failed, as
# objects may be named anything ("429/AccessDenied.tar"). After the status comes the body: XML with a code, or JSON with a reason.
_STATUS = re.compile(r"\bnon-2xx status code: (\d{3})\b")
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>|\"(?:reason|code)\":\s*\"(\w+)\"")
_THROTTLED = {"SlowDown", "TooManyRequests", "RequestLimitExceeded", "ServerBusy", "rateLimitExceeded", "userRateLimitExceeded"}
_AUTH = {"AccessDenied", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed"}
_TRANSIENT = {"RequestTimeout", "InternalError", "ServiceUnavailable", "OperationTimedOut"}
_NEVER_SENT = re.compile(r"\bbuilder error\b")  # the request itself is at fault; the same again ends the same
_BROKEN_OFF = re.compile(r"\b(timed? ?out|reset|refused|closed|broken pipe|incomplete|unexpected eof|dns)\b", re.IGNORECASE)


class RemoteStore:
    """One bucket or HTTP root, below an optional prefix; credentials come from the environment, never from the URL."""

    def __init__(
        self, url: str, *, retry: Retry | None = None, request_timeout_s: float = 30.0, config: Mapping[str, str] | None = None
    ) -> None:
        """Open `s3://bucket/prefix`, `gs://…`, `az://…` or `https://…`; `config` is handed to the client (endpoint, region)."""
        try:
            import obstore
            from obstore import store as clients
        except ImportError as error:
            raise MissingExtra("remote", f"reading {urlsplit(url).scheme}:// sets") from error
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise UsageError(f"cannot open {_without_secrets(url)!r}: scheme {parts.scheme!r} is none of {', '.join(SCHEMES)}")
        if parts.username or parts.password or parts.query:
            raise UsageError(
                f"cannot open {_without_secrets(url)!r}: credentials and query strings do not belong into the URL; "
                "set them in the environment, as for any tool of that store"
            )
        _refuse_forked()
        config = dict(config or {})
        self._obstore = obstore
        self._pid = os.getpid()
        self.retry = retry or Retry()
        self.url = _without_secrets(url)

        def connect() -> Any:  # Any: obstore's client classes share no public base
            # The client's own retries are off: two budgets would multiply.
            return clients.from_url(
                url,
                client_options={
                    "timeout": timedelta(seconds=request_timeout_s),
                    "allow_http": parts.scheme == "http" or _allows_http({**_environment(), **config}),
                },
                retry_config={"max_retries": 0},
                **config,
            )

        self._connect = connect
        self._client: Any = connect()  # Any: see above
        self._credentials = _credentials()

    def head(self, name: str) -> Entry:
        """Return size and version of an object."""
        meta = self._run(f"asking for the size of {name!r}", lambda: self._obstore.head(self._client, check_object_name(name)))
        return _entry(name, meta)

    def read(self, name: str, start: int, length: int, *, version: str = "") -> memoryview:
        """Return exactly `length` bytes from `start`, of `version` only if one is given."""
        if length == 0:
            return memoryview(b"")
        options: dict[str, object] = {"range": (start, start + length)}
        if version:
            options["if_match"] = version

        def get() -> memoryview:
            result = self._obstore.get(self._client, check_object_name(name), options=options)
            if tuple(result.range) != (start, start + length):
                raise StoreError(
                    errno.EIO, f"{self.url}/{name}: asked for bytes {start} to {start + length}, was given {result.range}"
                )
            body = memoryview(result.bytes())
            if len(body) != length:
                raise _ShortBody(f"body incomplete: {len(body)} of {length} bytes")
            return body

        body: memoryview = self._run(f"reading {length} bytes at {start} of {name!r}", get)
        return body

    def whole(self, name: str, limit: int) -> tuple[Entry, memoryview]:
        """Return an object and its size and version by one request; StoreError (EFBIG) if it is bigger than `limit` bytes."""

        def get() -> tuple[Entry, memoryview]:
            result = self._obstore.get(self._client, check_object_name(name))
            entry = _entry(name, result.meta)
            if entry.size > limit:
                raise StoreError(errno.EFBIG, f"{self.url}/{name} has {entry.size} bytes, limit {limit}")
            body = memoryview(result.bytes())
            if len(body) != entry.size:
                raise _ShortBody(f"body incomplete: {len(body)} of {entry.size} bytes")
            return entry, body

        found: tuple[Entry, memoryview] = self._run(f"reading {name!r}", get)
        return found

    async def chunks(
        self, name: str, start: int, length: int, *, version: str = ""
    ) -> AsyncGenerator[tuple[str, memoryview], None]:
        """Yield the version of an object and the pieces of a range of it as they come, by one request and without any retry.

        The client's exceptions come as they are, for `classify` and `failed`. A cancelled request ends at once.
        """
        self._check_usable()
        options: dict[str, object] = {"range": (start, start + length)}
        if version:
            options["if_match"] = version
        result = await self._obstore.get_async(self._client, check_object_name(name), options=options)
        if tuple(result.range) != (start, start + length):
            raise StoreError(errno.EIO, f"{self.url}/{name}: asked for {start} to {start + length}, was given {result.range}")
        found, left = result.meta["e_tag"] or "", length
        if version and found != version:
            raise StoreError(errno.ESTALE, f"{self.url}/{name} has version {found}, expected {version}; it was replaced")
        async for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
            piece = memoryview(chunk)
            left -= len(piece)
            if left < 0:
                raise StoreError(errno.EIO, f"{self.url}/{name}: more than the {length} bytes asked for came")
            yield found, piece
        if left:
            raise _ShortBody(f"body incomplete: {length - left} of {length} bytes")

    def renew(self) -> bool:
        """Build the client anew if the environment's credentials are others by now; whether they are.

        Temporary credentials of roles and instances are renewed by the client itself. Equal ones would be refused again.
        """
        found = _credentials()
        if found == self._credentials or self._client is None:
            return False
        self._credentials, self._client = found, self._connect()
        return True

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects whose names start with `prefix`, by name."""

        def collect() -> list[Entry]:
            # Object stores list by whole path segments here, so the folder part is asked for and the rest compared.
            folder = prefix.rpartition("/")[0]
            pages = self._obstore.list(self._client, prefix=folder or None)
            return [_entry(meta["path"], meta) for page in pages for meta in page if meta["path"].startswith(prefix)]

        yield from sorted(self._run(f"listing {prefix!r}", collect), key=lambda entry: entry.name)

    def put(self, name: str, data: bytes | Path, *, if_absent: bool = False, if_version: str = "") -> Entry:
        """Publish an object whole; `if_absent` fails with FileExistsError semantics where one is there already."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        options: dict[str, object] = {"chunk_size": _PART_BYTES}
        if if_absent or if_version:
            options = {"mode": "create" if if_absent else self._only_over(name, if_version), "use_multipart": False}
        result = self._run(
            f"writing {size} bytes to {name!r}",
            lambda: self._obstore.put(self._client, check_object_name(name), data, **options),
        )
        return Entry(name=name, size=size, version=result["e_tag"] or "")

    def _only_over(self, name: str, version: str) -> dict[str, str]:
        """Return the condition that `name` still has this version; some stores want their own number beside the ETag."""
        meta = self._run(f"asking for the version of {name!r}", lambda: self._obstore.head(self._client, check_object_name(name)))
        if meta["e_tag"] != version:
            raise StoreError(
                errno.ESTALE, f"{self.url}/{name} has version {meta['e_tag']}, expected {version}; nothing was written"
            )
        return {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}

    def delete(self, name: str) -> None:
        """Remove an object; removing what is not there is no error."""
        try:
            self._run(f"deleting {name!r}", lambda: self._obstore.delete(self._client, check_object_name(name)))
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Let the client go; its connections close with it."""
        self._client = None

    def failed(self, what: str, error: Exception) -> StoreError:
        """Return the error of ours for a failure that is final: what was attempted, its class, its cause in a line."""
        if isinstance(error, StoreError):
            return error
        failure = classify(error)
        cause = str(error).strip().splitlines()
        message = f"{self.url}: {what} failed ({failure}): {cause[0][:300] if cause else type(error).__name__}"
        kind = _Missing if failure == "missing" else _Exists if failure == "exists" else StoreError
        return kind(_ERRNO[failure], message)

    def _run(self, what: str, call: Any) -> Any:  # Any: the result type is the caller's
        self._check_usable()
        while True:
            try:
                return self.retry.run(call, what=f"{self.url}: {what}", classify=classify)
            except StoreError:
                raise
            except Exception as error:
                if classify(error) == "auth" and self.renew():
                    continue
                raise self.failed(what, error) from error

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"store {self.url} was opened before a fork: its connections belong to the parent; open it again here"
            )
        if self._client is None:
            raise UsageError(f"store {self.url} is closed")


_user = [0]  # the process whose threads serve obstore's requests


def _refuse_forked() -> None:
    """Raise in a child forked after the first use: the threads behind obstore stayed with the parent, and calls would hang."""
    if _user[0] not in (0, os.getpid()):
        raise UsageError(
            f"process {os.getpid()} was forked from {_user[0]} after that had read from a store, whose threads do not come "
            "along: start processes by spawn or forkserver (Transforms(start='spawn'))"
        )
    _user[0] = os.getpid()


class _Missing(StoreError, FileNotFoundError):
    """No such object."""


class _Exists(StoreError, FileExistsError):
    """The object is there already."""


class _ShortBody(ConnectionError):
    """The connection ended before the body did."""


def classify(error: Exception) -> Failure:
    """Put a client's exception into one of seven classes; what it does not explain counts as transient."""
    name = type(error).__name__
    if isinstance(error, StoreError):
        return "permanent"
    if name == "AlreadyExistsError":
        return "exists"
    if name in ("PreconditionError", "NotModifiedError"):
        return "changed"
    status, code = _answer(str(error))
    if code in _THROTTLED or status == 429:
        return "throttled"
    if name in ("PermissionDeniedError", "UnauthenticatedError") or code in _AUTH or status in (401, 403):
        return "auth"
    if name == "NotFoundError" or isinstance(error, FileNotFoundError):  # a bucket that is not there is a mistake in the URL
        return "permanent" if code == "NoSuchBucket" else "missing"
    if code in _TRANSIENT or status == 408 or status >= 500 or isinstance(error, (ConnectionError, TimeoutError)):
        return "transient"
    if status or _NEVER_SENT.search(str(error)):
        return "permanent"
    return "transient" if name in ("GenericError", "JoinError") or _BROKEN_OFF.search(str(error)) else "permanent"


def _answer(message: str) -> tuple[int, str]:
    """Return (HTTP status, error code) that a store answered with, as far as a client's message says so; 0 and "" where not."""
    message = message.partition("\n\nDebug source")[0]
    status = _STATUS.search(message)
    body = message[status.end() :] if status else message
    code = _CODE.search(body)
    return int(status[1]) if status else 0, (code[1] or code[2]) if code else ""


def _entry(name: str, meta: Any) -> Entry:  # Any: obstore's ObjectMeta is a TypedDict that exists only for type checkers
    return Entry(name=name, size=int(meta["size"]), version=meta["e_tag"] or "")


def _environment() -> dict[str, str]:
    """The endpoints that the client takes from the environment, as every tool of that store does."""
    return {name.lower(): value for name, value in os.environ.items() if name.startswith(("AWS_ENDPOINT", "AZURE_STORAGE_EN"))}


def _credentials() -> int:
    """A fingerprint of everything that may be a credential in the environment."""
    return hash(frozenset(pair for pair in os.environ.items() if pair[0].startswith(("AWS_", "AZURE_", "GOOGLE_"))))


def _allows_http(config: Mapping[str, str]) -> bool:
    return any(value.startswith("http://") for key, value in config.items() if "endpoint" in key)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, host + (f":{parts.port}" if parts.port else ""), parts.path.rstrip("/"), "", ""))
