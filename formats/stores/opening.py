"""From a location as users write it (a path, `file://`, `s3://` …) to the store that serves it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import UsageError
from .local import LocalStore
from .retry import Retry
from .store import Store

__all__ = ["is_remote", "local_path", "open_store"]

# What pathlib makes of a URL: "s3://bucket" becomes "s3:/bucket".
_FLATTENED = re.compile(r"(s3|gs|az|https?|file):/[^/]")


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a URL of an object store or an HTTP server, not a local folder."""
    text = os.fspath(location)
    if _FLATTENED.match(text):
        raise UsageError(f"location {text!r} was a URL and lost a slash, as pathlib does it; give URLs as text")
    return "://" in text and urlsplit(text).scheme not in ("", "file")


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the path of a local location, given as such or as a `file://` URL."""
    text = os.fspath(location)
    return Path(unquote(urlsplit(text).path)) if text.startswith("file://") else Path(text)


def open_store(location: str | Path, *, retry: Retry | None = None, config: Mapping[str, str] | None = None) -> Store:
    """Return the store at `location`; `config` (endpoint, region …) is for remote ones."""
    text = str(location)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("", "file"):
        if config:
            raise UsageError(f"a local folder takes no store options, got {sorted(config)}")
        return LocalStore(unquote(urlsplit(text).path) if scheme else text)
    from .remote import RemoteStore  # obstore is an extra

    return RemoteStore(text, retry=retry, config=config)
