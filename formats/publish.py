"""Putting a finished set in place so that a reader sees the old set, the new one, or none, never a mix.

New files are staged in a directory beside their final place. Publishing renames them in, makes that durable, and only then
renames the manifest in: that is the commit. What the old manifest named and the new one does not, goes after it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from .errors import NotASet, SetError, UsageError
from .limits import DEFAULT_LIMITS, Limits
from .manifest import MANIFEST_NAME, Manifest
from .pack_worker import PackedShards
from .publish_remote import RemoteStaging
from .receipts import read_receipt, write_receipt
from .schema import Schema
from .set_files import ATTACHED_FILE, SHARD_FILE, STAGING_NAME, set_files
from .stores import is_remote, local_path
from .synced_file import write_synced

__all__ = ["SHARD_FILE", "STAGING_NAME", "Staging", "StagingPlace", "set_files", "staged"]

_LOCK_NAME = "lock"


class StagingPlace(Protocol):
    """Where a set is prepared before it is published: `Staging` for a folder, `RemoteStaging` for an object store."""

    path: Path
    """Local directory that shards and attachments are written into."""

    def find(self, number: int, fingerprint: str) -> PackedShards | None:
        """Return the result of a task that an earlier run finished, if it fits and its files still are what they were."""
        ...

    def keep(self, number: int, fingerprint: str, done: PackedShards, schema: Schema) -> None:
        """Take over the files of a finished task, so that a later run can find them."""
        ...

    def publish(self, manifest: Manifest) -> Manifest:
        """Put the set in place, and return its manifest with its digest."""
        ...

    def open(self, *, keep: bool) -> None:
        """Prepare; with `keep`, what an earlier run finished counts."""
        ...

    def clear(self) -> None:
        """Remove everything that was not published."""
        ...

    def release(self) -> None:
        """Leave what is finished for a later run."""
        ...


class Staging:
    """The directory in which a set is prepared, locked against a second packer.

    `publish` commits. `clear` removes everything not published. Left alone after a kill, `open` finds it again.
    """

    def __init__(self, destination: Path, *, overwrite: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self.destination = destination
        self.path = destination / STAGING_NAME
        self.overwrite = overwrite
        self.limits = limits
        self._lock: int | None = None
        self._made_destination = False

    def open(self, *, keep: bool) -> None:
        """Create and lock the directory; what an earlier run left in it is removed unless `keep`."""
        self._check_destination()
        self._made_destination = not self.destination.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            for entry in list(self.path.iterdir()):
                if entry.name != _LOCK_NAME and (not keep or entry.suffix == ".tmp"):
                    _remove(entry)
        except OSError:
            if self._lock is not None and not keep:
                self.clear()
            else:
                self.release()
                self._forget_empty()
            raise

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise UsageError(
                f"cannot pack into {str(self.destination)!r}: another packer is at work there; wait for it or go elsewhere"
            ) from error

    def find(self, number: int, fingerprint: str) -> PackedShards | None:
        """Return the result of a finished task, as its receipt has it."""
        return read_receipt(self.path, number, fingerprint)

    def keep(self, number: int, fingerprint: str, done: PackedShards, schema: Schema) -> None:
        """Write the receipt of a finished task; its files stand in `path` already."""
        write_receipt(self.path, number, fingerprint, done, schema)

    def publish(self, manifest: Manifest) -> Manifest:
        """Move the staged files that `manifest` names into place, commit it, and return it with its digest."""
        wanted, old = set_files(manifest), self._old_files()
        moved: list[Path] = []
        try:
            data = self._move_in(manifest, wanted, moved)
        except BaseException:
            if self._is_committed(manifest):  # an interrupt, or a late refusal, of a rename that took place
                raise
            for path in moved:
                if str(path.relative_to(self.destination)) not in old:
                    path.unlink(missing_ok=True)
            for directory in {(self.destination / name).parent for name in wanted} - {self.destination}:
                with suppress(OSError):  # it holds files of the old set
                    directory.rmdir()
            raise
        # The set stands; what the system refuses from here on is swept by the next publication.
        with suppress(OSError):
            _sync_directory(self.destination)
            self._sweep(wanted)
        self.clear()
        return Manifest.decode(data, limits=self.limits)

    def _is_committed(self, manifest: Manifest) -> bool:
        try:
            return (self.destination / MANIFEST_NAME).read_bytes() == manifest.encode()
        except OSError:
            return False

    def _move_in(self, manifest: Manifest, wanted: set[str], moved: list[Path]) -> bytes:
        """Move files in and commit the manifest; `moved` lists what an error leaves to undo."""
        directories = {self.destination}
        for name in sorted(wanted):
            staged, final = self.path / name, self.destination / name
            directories.add(final.parent)
            if staged.exists():
                final.parent.mkdir(exist_ok=True)
                os.replace(staged, final)
                moved.append(final)
        data = manifest.encode()
        temporary = self.path / (MANIFEST_NAME + ".tmp")
        write_synced(temporary, data, mode="wb")
        for directory in sorted(directories):
            _sync_directory(directory)
        os.replace(temporary, self.destination / MANIFEST_NAME)
        return data

    def _sweep(self, wanted: set[str]) -> None:
        """Remove what older or interrupted publications left: only names that are ours by their form."""
        found = [entry for entry in self.destination.iterdir() if SHARD_FILE.fullmatch(entry.name)]
        attachments = self.destination / "attachments"
        if attachments.is_dir():
            found += [entry for entry in attachments.iterdir() if ATTACHED_FILE.fullmatch(entry.name)]
        for entry in found:
            if str(entry.relative_to(self.destination)) not in wanted:
                entry.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the staging directory, and the destination too if this run made it and nothing is in it."""
        for _ in range(2):  # what the system refused once it may allow now; what stays is swept by the next run
            shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        self._forget_empty()

    def _forget_empty(self) -> None:
        """Remove directories this run made, as far as nothing is in them."""
        for directory in (self.path, self.destination) if self._made_destination else (self.path,):
            with suppress(OSError):
                directory.rmdir()

    def release(self) -> None:
        """Give up the lock and leave the staged files for a later run to resume."""
        if self._lock is not None:
            with suppress(OSError):  # given up whatever the system answers; a published set stands
                os.close(self._lock)
            self._lock = None

    def _check_destination(self) -> None:
        if self.destination.exists() and not self.destination.is_dir():
            raise UsageError(f"cannot pack into {str(self.destination)!r}: it is a file; name a directory")
        if not self.destination.exists():
            return
        if (self.destination / MANIFEST_NAME).exists():
            if not self.overwrite:
                raise UsageError(
                    f"cannot pack into {str(self.destination)!r}: a set is there already; choose another place, or --overwrite"
                )
            return
        strangers = sorted(entry.name for entry in self.destination.iterdir() if not _ours(entry))
        if strangers:
            raise UsageError(
                f"cannot pack into {str(self.destination)!r}: it is not empty ({', '.join(strangers[:3])}"
                f"{', …' if len(strangers) > 3 else ''}) and holds no set; choose an empty or new directory"
            )

    def _old_files(self) -> set[str]:
        """Files of the set that is being replaced; of one whose manifest is damaged, everything that could be its."""
        try:
            return set_files(Manifest.load(self.destination, limits=self.limits))
        except NotASet:
            return set()
        except SetError:
            return {entry.name for entry in self.destination.iterdir()}


@contextmanager
def staged(
    destination: str | os.PathLike[str], *, overwrite: bool, resume: bool, limits: Limits = DEFAULT_LIMITS
) -> Iterator[StagingPlace]:
    """Open a staging place for a folder or a store's URL; whatever goes wrong inside, nothing of it stays.

    One exception: an interrupted run that was asked to `resume` keeps its finished shards, for it is asked to go on later.
    """
    staging: StagingPlace
    if is_remote(destination):
        staging = RemoteStaging(str(destination), overwrite=overwrite, limits=limits)
    else:
        staging = Staging(local_path(destination), overwrite=overwrite, limits=limits)
    staging.open(keep=resume)
    try:
        yield staging
    except BaseException as error:
        if resume and isinstance(error, KeyboardInterrupt):
            staging.release()
        else:
            staging.clear()
        raise
    staging.release()


def _ours(entry: Path) -> bool:
    """Whether an unpublished run may have left this in the destination."""
    if entry.name in (STAGING_NAME, "attachments"):
        return entry.is_dir()
    return SHARD_FILE.fullmatch(entry.name) is not None


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
