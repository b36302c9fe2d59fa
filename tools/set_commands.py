"""`headway verify`, `convert`, `merge`, `repair`: whole sets checked, rewritten, joined, mended from a second copy."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import human_bytes, human_time, plain, report, say
from .progress import Bar

if TYPE_CHECKING:
    from ..formats.manifest import Manifest
    from ..formats.verify import VerifyReport

__all__ = ["register"]


class _Format(StrEnum):
    ARROW = "arrow"
    TAR = "tar"


SetArgument = Annotated[str, typer.Argument(metavar="SET", help="Folder of a packed set, or its URL (s3://…).")]
FolderArgument = Annotated[Path, typer.Argument(metavar="SET", help="Folder of a packed set.")]
Destination = Annotated[str, typer.Argument(metavar="DST", help="Where the new set goes: a new or empty folder, or a URL.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the set at DST once the new one stands.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the `headway` group."""
    app.command(
        help="Check every byte of a set: files, chunks, payloads, row order, set id. Exit code 4 if anything is wrong.",
        epilog="Example: headway verify sets/mini --quick",
    )(verify)
    app.command(
        help="Write a set again with the other kind of shards: same payload bytes, same set id, so loader states stay valid.",
        epilog="Example: headway convert sets/mini sets/mini-tar --format tar",
    )(convert)
    app.command(
        help="Put several sets of one schema into one; payloads are copied as they are. Drive names must differ.",
        epilog="Example: headway merge sets/monday sets/tuesday sets/week",
    )(merge)
    app.command(
        help="Make a damaged set whole, then verify it: with --from out of a second copy, without loss; else what can be rebuilt "
        "is, and what is beyond help is dropped and listed (exit code 7).",
        epilog="Example: headway repair sets/mini --from /backup/sets/mini",
    )(repair)


def verify(
    location: SetArgument,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out payload bytes: manifest, index, columns, set id.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run `headway verify`."""
    from ..formats.verify import verify_set

    started = time.monotonic()
    with Bar() as bar:
        found = verify_set(location, quick=quick, progress=bar)
    _tell_verdict(found, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(found.exit_code)


def convert(
    location: SetArgument,
    destination: Destination,
    format: Annotated[_Format, typer.Option(help="Kind of shards to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Run `headway convert`."""
    from ..formats.convert import convert_set

    with Bar() as bar:
        manifest = convert_set(location, destination, format=format.value, overwrite=overwrite, progress=bar)
    _tell_written(manifest, destination)


def merge(
    locations: Annotated[list[str], typer.Argument(metavar="SET SET … DST", help="Two or more sets, then the new one.")],
    overwrite: Overwrite = False,
) -> None:
    """Run `headway merge`."""
    from ..formats.merge import merge_sets

    with Bar() as bar:
        manifest = merge_sets(locations[:-1], locations[-1], overwrite=overwrite, progress=bar)
    _tell_written(manifest, locations[-1])


def repair(
    location: FolderArgument,
    copy: Annotated[
        Path | None, typer.Option("--from", metavar="COPY", help="Take intact files from this second copy: loses nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run `headway repair`."""
    from ..formats.repair import repair_set
    from ..formats.verify import verify_set
    from ._mend import mend_set

    started, code = time.monotonic(), 0
    if copy is not None:
        for name in mend_set(location, copy):
            report(f"replaced  {plain(name)}")
    else:
        done = repair_set(location)
        code = done.exit_code
        for label, problems in (("rebuilt", done.rebuilt), ("lost", done.dropped)):
            for problem in problems:
                report(f"{label:9} {plain(problem)}")
    with Bar() as bar:
        found = verify_set(location, progress=bar)
    _tell_verdict(found, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(found.exit_code or code)


def _tell_verdict(found: VerifyReport, seconds: float, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "location": found.location,
            "ok": found.ok,
            "set_id": found.set_id,
            "payloads": found.payloads,
            "bytes": found.bytes,
            "errors": [
                {"path": p.path, "reason": p.reason, "sensor": p.sensor, "stamp": p.stamp_ns, "code": p.code}
                for p in found.errors
            ],
        }
        say(json.dumps(facts, indent=1))
        return
    for problem in found.errors:
        say(f"damaged   {plain(problem)}")
    verdict = "intact" if found.ok else f"{len(found.errors)} errors"
    say(f"{verdict:9} {found.payloads:,} payloads, {human_bytes(found.bytes)} read in {human_time(seconds)}")
    if found.set_id:
        say(f"set id    {found.set_id}")


def _tell_written(manifest: Manifest, destination: str) -> None:
    say(
        f"written   {len(manifest.drives)} drives, {manifest.frames:,} frames, {human_bytes(manifest.stored_bytes)} in "
        f"{len(manifest.shards)} {manifest.kind} shards to {plain(destination)}"
    )
    say(f"set id    {manifest.set_id}")
    say(f"manifest  {manifest.digest}")
