"""From a location as users write it (a path, `file://`, `s3://` …) to the store that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import UsageError
from .local import LocalStore
from .retry import Retry
from .store import Store

__all__ = ["open_store"]


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
