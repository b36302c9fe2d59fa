"""`pack-dataset inspect` and `--dry-run`: what a source holds and how it would be packed; writes nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formats import UsageError
from ..formats.adapters import KINDS, SourceSpec, open_source
from .adapter_commands import ADAPTERS
from .console import human_bytes, plain, say

if TYPE_CHECKING:
    from ..formats import Source
    from ..formats.pack_options import PackOptions

__all__ = ["describe_plan", "guess_kind", "inspect_source"]

_FEW = 12


def inspect_source(source: Path, *, kind: str | None, as_json: bool) -> None:
    """Print what `source` holds; problems are raised as one `SourceError`, as packing would."""
    if kind is not None and kind not in KINDS and ":" not in kind:
        raise UsageError(f"--kind {kind!r} is unknown; there are {', '.join(sorted(KINDS))}")
    spec = SourceSpec(kind=kind or guess_kind(source), path=str(source))
    _print(_facts(open_source(spec)), as_json=as_json)


def describe_plan(spec: SourceSpec, options: PackOptions, *, as_json: bool) -> None:
    """Print what packing `spec` would write."""
    from ..formats.shard_plan import plan_shards
    from ..formats.split import source_tracks, split_gaps

    source = open_source(spec)
    schema = options.packed_schema(source.schema)
    listings = sorted(source.listings, key=lambda listing: listing.name)
    facts = _facts(source)
    facts["sensors"] = {name: facts["sensors"][name] for name in schema.by_name}
    gaps = split_gaps(source_tracks(source))
    facts["split_gaps"] = [asdict(gap) for gap in gaps]
    facts["shards"] = len(plan_shards(listings, options.shard_bytes))
    _print(facts, as_json=as_json)
    if not as_json:
        splits = [str(listing.attributes["split"]) for listing in listings if "split" in listing.attributes]
        for name in sorted(set(splits)):
            say(f"split     {plain(name)}: {splits.count(name)} drives")
        for gap in gaps:
            say(f"apart     {plain(gap)}")


def guess_kind(source: Path) -> str:
    """Return the kind whose marks `source` shows.

    Raises:
        UsageError: it shows none, or those of several kinds.
    """
    if not source.exists():
        raise UsageError(f"cannot inspect {str(source)!r}: no such file or folder; check the path")
    found = [row.kind for row in ADAPTERS if any(_shows(source, mark) for mark in row.marks)]
    if len(found) == 1:
        return found[0]
    kinds = ", ".join(row.kind for row in ADAPTERS)
    if not found:
        raise UsageError(f"cannot tell what {str(source)!r} is: it shows the marks of none of {kinds}; give --kind")
    raise UsageError(f"cannot tell what {str(source)!r} is: it could be {' or '.join(found)}; give --kind")


def _shows(source: Path, mark: str) -> bool:
    if source.is_file():
        return source.match(mark)
    return next(source.glob(mark), None) is not None


def _facts(source: Source) -> dict[str, Any]:  # Any: JSON
    return {
        "kind": source.kind,
        "licence": source.licence,
        "reference": source.schema.reference,
        "drives": [{"name": item.name, "source_bytes": item.source_bytes, **item.attributes} for item in source.listings],
        "source_bytes": sum(item.source_bytes for item in source.listings),
        "sensors": {sensor.name: {"kind": sensor.kind, "codec": sensor.codec} for sensor in source.schema.sensors},
        "ignored": [{"path": item.path, "reason": item.reason} for item in source.ignored],
    }


def _print(facts: dict[str, Any], *, as_json: bool) -> None:  # Any: JSON
    if as_json:
        say(json.dumps(facts, indent=1))
        return
    say(f"kind      {facts['kind']}; licence: {plain(facts['licence'] or 'not stated')}")
    say(f"drives    {len(facts['drives'])}, {human_bytes(facts['source_bytes'])} of payload files")
    for drive in facts["drives"][:_FEW]:
        say(f"            {plain(drive['name'])}  {human_bytes(drive['source_bytes'])}  {plain(drive.get('description', ''))}")
    if len(facts["drives"]) > _FEW:
        say(f"            … {len(facts['drives']) - _FEW} more")
    say(f"sensors   {len(facts['sensors'])}; {plain(facts['reference'])} defines the frames")
    for name, sensor in facts["sensors"].items():
        say(f"            {plain(name):24} {sensor['kind']:7} {sensor['codec'] or 'columns only'}")
    if facts["ignored"]:
        say(f"ignored   {len(facts['ignored'])} files, such as {plain(facts['ignored'][0]['path'])}")
    if "shards" in facts:
        say(f"shards    {facts['shards']} would be written; this was a dry run, nothing was")
