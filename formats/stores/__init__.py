"""Where the files of a set lie: local disk, object stores, HTTP."""

from .local import LocalStore
from .opening import is_remote, local_path, open_store
from .retry import Failure, Retry
from .store import Entry, Store, check_object_name

__all__ = ["Entry", "Failure", "LocalStore", "Retry", "Store", "check_object_name", "is_remote", "local_path", "open_store"]
