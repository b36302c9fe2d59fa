"""`pack-dataset KIND SRC DST`: other people's data in, a set out, and a report of what became of everything.

The subcommands are the rows of `adapter_commands`. Errors are one clear line and a documented exit code; nothing
half-written stays behind.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..formats import UsageError
from ._pack_flags import COMMON, SENSORS, SPLIT
from .adapter_commands import ADAPTERS, AdapterRow, flags_of, option_values, options_class, with_flags
from .console import human_bytes, human_time, plain, report, run_app, say
from .progress import Bar

if TYPE_CHECKING:
    from ..formats import ImageEdit
    from ..formats.adapters import SourceSpec
    from ..formats.manifest import Manifest
    from ..formats.packer import PackReport

__all__ = ["build_app", "main", "parse_size"]

_FEW = 3


def build_app(argv: Sequence[str]) -> typer.Typer:
    """Return the command line; only the adapter that `argv` asks for is imported."""
    app = typer.Typer(
        name="pack-dataset",
        no_args_is_help=True,
        add_completion=False,
        help="Pack driving and robotics data into a set that headway.DataLoader streams.\n\n"
        "Pick the kind of source; `pack-dataset KIND --help` shows its options and an example. "
        "`pack-dataset inspect SRC` guesses the kind and lists what is there.",
        epilog="Exit codes: 0 done, 2 usage, 3 the source has problems and nothing was written, 5 I/O, 7 packed with rejects, "
        "8 no space, 130 interrupted.",
    )
    asked = next((word for word in argv if not word.startswith("-")), "")
    for row in ADAPTERS:
        _add(app, row, loaded=row.kind == asked)

    @app.command("inspect", help="Say what kind of source SRC is, and list its drives, sensors and problems. Writes nothing.")
    def _inspect(
        source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder or file to look at.")],
        kind: Annotated[str | None, typer.Option(help="Kind to read it as; by default guessed.", show_default=False)] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        from .inspect_source import inspect_source

        inspect_source(source, kind=kind, as_json=as_json)

    return app


def _add(app: typer.Typer, row: AdapterRow, *, loaded: bool) -> None:
    """Register one adapter's subcommand; with all its flags only if it is the one asked for."""
    flags: list[inspect.Parameter] = []
    options: type[Any] | None = None  # Any: each adapter's own dataclass
    if loaded:
        options = options_class(row)
        flags = flags_of(options)
        if all(flag.name != "sensors" for flag in flags):
            flags.append(SENSORS)
        if all(flag.name != "split" for flag in flags):
            flags.append(SPLIT)

    def command(**given: Any) -> None:  # Any: what typer parsed, by flag
        assert options is not None
        _pack(row, options, given)

    with_flags(command, [*COMMON.values(), *(flag for flag in flags if flag.name not in COMMON)])
    app.command(row.kind, help=row.help, epilog=f"Example: pack-dataset {row.kind} {row.example}")(command)


def _pack(row: AdapterRow, options: type[Any], given: dict[str, Any]) -> None:  # Any: as in `command`
    from ..formats.adapters import SourceSpec
    from ..formats.pack_options import PackOptions
    from ..formats.packer import pack
    from ..formats.split import split_spec
    from .limited_source import limited

    names = set(inspect.signature(options).parameters)
    values = option_values(options, given)
    # An adapter that encodes JPEGs itself takes the quality: encoding what it made once more would only lose, unless pixels move.
    moves = given["camera_scale"] != 1 or given["camera_crop"] is not None
    quality = given["jpeg_quality"] if moves or "jpeg_quality" not in names else None
    # "train=0.8,val=0.2" divides the drives; anything else is the adapter's own choice of a split the source has.
    shares = given["split"] if "=" in (given["split"] or "") or "split" not in names else None
    if shares:
        values.pop("split", None)
    spec = SourceSpec(kind=row.kind, path=str(given["source"]), options=values)
    if shares:
        spec = split_spec(spec, shares, by=given["split_by"])
    if given["limit"] is not None:
        spec = limited(spec, given["limit"])
    precision = given["lidar_precision"]
    pack_options = PackOptions(
        format=given["format"].value,
        shard_bytes=parse_size(given["shard_size"]),
        workers=given["workers"],
        engine=given["engine"].value,
        overwrite=given["overwrite"],
        resume=given["resume"],
        bad_images=given["bad_images"].value,
        check_images=given["check_images"].value,
        image_edit=(edit := _image_edit(given, quality)),
        edit_sensors=None if edit is None else _matching(spec, given["camera_sensors"], "--camera-sensors"),
        points_codec=None if precision is None else "points-quantised",
        precision_mm=1 if precision is None else int(precision.value.removesuffix("mm")),
        drop_nan=given["drop_nan"],
        sensors=None if "sensors" in names else _sensors(spec, given["sensors"]),
    )
    if given["dry_run"]:
        from .inspect_source import describe_plan

        describe_plan(spec, pack_options, as_json=given["json_report"])
        return
    report(f"checking {plain(given['source'])}, then packing it into {plain(given['destination'])}")
    started = time.monotonic()
    try:
        with Bar() as bar:
            done = pack(spec, given["destination"], pack_options, bar)
    except KeyboardInterrupt:
        kept = "finished shards are kept; the same command goes on from there"
        report(kept if given["resume"] else "what was packed is removed; with --resume, finished shards are kept")
        raise
    facts = _facts(done, bar.total, time.monotonic() - started)
    if given["json_report"]:
        say(json.dumps(facts, indent=1))
    else:
        _print(done, facts, list_ignored=given["list_ignored"])
    raise typer.Exit(done.exit_code)


def _sensors(spec: SourceSpec, patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Resolve --sensors for adapters that do not choose themselves; the reference always comes along."""
    return _matching(spec, patterns, "--sensors", with_reference=True)


def _matching(
    spec: SourceSpec, patterns: Sequence[str] | None, flag: str, *, with_reference: bool = False
) -> tuple[str, ...] | None:
    """Return the source's sensors that patterns name, None without patterns."""
    if not patterns:
        return None
    from ..formats.adapters import open_source

    schema = open_source(spec).schema
    chosen = {schema.reference} if with_reference else set()
    for pattern in (part.strip() for item in patterns for part in item.split(",")):
        found = fnmatch.filter(schema.by_name, pattern)
        if not found:
            raise UsageError(f"{flag} {pattern!r} matches nothing; the source has: {', '.join(schema.by_name)}")
        chosen.update(found)
    return tuple(sorted(chosen))


def _image_edit(given: dict[str, Any], quality: int | None) -> ImageEdit | None:  # Any: as in `command`
    """Return what the flags ask to be done to images, None for nothing."""
    from ..formats import ImageEdit

    crop = (0, 0, 0, 0)
    if given["camera_crop"] is not None:
        try:
            top, bottom, left, right = (int(part) for part in given["camera_crop"].split(","))
        except ValueError:
            raise UsageError(
                f"--camera-crop {given['camera_crop']!r} is not four whole numbers of pixels: TOP,BOTTOM,LEFT,RIGHT"
            ) from None
        crop = (top, bottom, left, right)
    edit = ImageEdit(crop=crop, scale=given["camera_scale"], jpeg_quality=quality)
    if edit != ImageEdit():
        return edit
    if given["camera_sensors"]:
        raise UsageError("--camera-sensors names sensors to change, and nothing is to be changed; add --camera-scale or the like")
    return None


def parse_size(text: str) -> int:
    """Return bytes of "256MB", "1.5 GB", "64MiB" or "1000000"."""
    units = {"": 1, "b": 1}
    for power, letter in enumerate("kmgt", 1):
        units |= {letter: 1000**power, f"{letter}b": 1000**power, f"{letter}ib": 1024**power}
    number = text.strip().lower().rstrip("bikmgt ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"size {text!r} is not a number of bytes; write for example 64MB, 256MB or 1GiB") from None


def _facts(done: PackReport, source_bytes: int, seconds: float) -> dict[str, Any]:  # Any: JSON
    manifest = done.manifest
    return {
        "location": done.location,
        "set_id": manifest.set_id,
        "manifest_sha256": manifest.digest,
        "format": manifest.kind,
        "drives": len(manifest.drives),
        "frames": manifest.frames,
        "payloads": done.packed,
        "shards": len(manifest.shards),
        "source_bytes": source_bytes,
        "bytes": manifest.stored_bytes,
        "rejected": [str(problem) for problem in done.rejected],
        "kept": [str(problem) for problem in done.kept],
        "dropped_points": done.dropped_points,
        "ignored": [{"path": item.path, "reason": item.reason} for item in done.ignored],
        "splits": _splits(manifest),
        "split_gaps": [dataclasses.asdict(gap) for gap in done.split_gaps],
        "resumed_shards": done.resumed,
        "seconds": round(seconds, 3),
    }


def _splits(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Drives and frames of each split."""
    found: dict[str, dict[str, int]] = {}
    for drive in manifest.drives:
        if "split" in drive.attributes:
            counts = found.setdefault(str(drive.attributes["split"]), {"drives": 0, "frames": 0})
            counts["drives"] += 1
            counts["frames"] += sum(part.frames for part in drive.parts)
    return dict(sorted(found.items()))


def _print(done: PackReport, facts: dict[str, Any], *, list_ignored: bool) -> None:  # Any: JSON
    rate = facts["source_bytes"] / max(facts["seconds"], 1e-6)
    say(
        f"packed    {facts['drives']} drives, {facts['frames']:,} frames, {facts['payloads']:,} payloads, "
        f"into {facts['shards']} shards"
    )
    say(
        f"bytes     {human_bytes(facts['source_bytes'])} in, {human_bytes(facts['bytes'])} out"
        f" (ratio {facts['source_bytes'] / max(facts['bytes'], 1):.2f}), {human_time(facts['seconds'])}, {human_bytes(rate)}/s"
    )
    for name, counts in facts["splits"].items():
        say(f"split     {plain(name)}: {counts['drives']} drives, {counts['frames']:,} frames")
    for gap in done.split_gaps:
        say(f"apart     {plain(gap)}")
    if done.resumed:
        say(f"resumed   {done.resumed} finished shards were kept")
    for label, problems in (("rejected", done.rejected), ("kept bad", done.kept)):
        if problems:
            say(f"{label:9} {len(problems)} payloads:")
            for problem in problems:
                say(f"            {plain(problem)}")
    if done.dropped_points:
        say(f"dropped   {done.dropped_points:,} points without a finite position")
    if done.ignored:
        shown = done.ignored if list_ignored else done.ignored[:_FEW]
        say(f"ignored   {len(done.ignored)} files of the source are not part of it{':' if shown else ''}")
        for item in shown:
            say(f"            {plain(item.path)}: {plain(item.reason)}")
        if len(shown) < len(done.ignored):
            say(f"            … {len(done.ignored) - len(shown)} more (--list-ignored)")
    say(f"set id    {facts['set_id']}")
    say(f"manifest  {facts['manifest_sha256']}  (pin it with expect_digest=)")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `pack-dataset`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    run_app(lambda: build_app(arguments), "pack-dataset", arguments)


if __name__ == "__main__":
    main()
