"""Commands of `headway bench` that run other loaders: their rates, and what their states are worth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..formats import UsageError
from ..formats.cache_directory import cache_directory
from ..tools.console import report
from .machine import NoiseMeter
from .result_output import HtmlOption, JsonOption, finish

__all__ = ["peers", "resume"]

CacheOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where environments, data and packed files are kept (tens of GB for all).")
]
PeersOption = Annotated[str, typer.Option("--peers", metavar="A,B", help="Which peers; by default all. headway always runs.")]


def peers(
    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="A packed set, or a workload as `headway bench make-data` writes it.")
    ] = None,
    workload: Annotated[
        str, typer.Option(metavar="W1|W2|W3|W4", help="In place of DATA: this workload, made in the cache.")
    ] = "",
    names: PeersOption = "",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians count.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.2, help="Window of a run.")] = 4.0,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples of the workload, or frames of the set.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="End after about this long with the rounds there are; packing is not counted.")
    ] = None,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only install and pack what is missing.")] = False,
    cache: CacheOption = None,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """The same batches from other loaders, each in its own environment, in interleaved rounds."""
    from .peer_rounds import PeerBench, PeerStore
    from .peers.registry import load_peer
    from .peers.samples import Stored

    place = cache_of(cache)
    where = _data(data, workload, samples, place)
    name = Stored(where).name
    wanted = wanted_peers(names)
    started = time.monotonic()
    limit_s = None if minutes is None else minutes * 60
    bench = PeerBench(name, where, place, seconds=seconds, limit_s=limit_s, say=report)
    with NoiseMeter() as meter:
        found = bench.prepare(wanted) if prepare else bench.run(wanted, rounds=rounds)
    rows: list[dict[str, Any]] = [{"workload": name, **row.to_json()} for row in found]
    conditions: dict[str, Any] = {"data": str(where), "of_set": str(data) if data else None, "rounds": rounds, "seconds": seconds}
    rates = {row["peer"]: row["samples_per_s"] for row in rows if row["samples_per_s"]}
    best = max((rate for peer, rate in rates.items() if peer != "headway"), default=None)
    for row in rows:
        row["ratio_to_best_peer"] = row["samples_per_s"] / best if best and row["samples_per_s"] else None
        row["ratio_to_torch"] = row["samples_per_s"] / rates["torch"] if row["samples_per_s"] and "torch" in rates else None
    ours = rates.get("headway")
    limit = None
    if ours:
        limit, conditions["limits"] = _limit(name, PeerStore(name, where, place).packed(load_peer("headway")))
    shown = ("samples_per_s", "spread", "cpu_s_per_1000", "first_batch_s", "anon_mib", "setting", "cannot")
    summary = {
        "workload": name,
        "best_peer": next((peer for peer, rate in rates.items() if rate == best), None),
        "ratio_to_best_peer": ours / best if ours and best else None,
        "ratio_to_torch": ours / rates["torch"] if ours and "torch" in rates else None,
        "limit": limit,
        "fraction_of_limit": ours / limit if ours and limit else None,
        "peers": {row["peer"]: {key: row[key] for key in shown} for row in rows},
    }
    finish("peers", rows, conditions, summary, started, meter, json_path, html_path)


def resume(
    location: Annotated[
        Path,
        typer.Argument(metavar="SET|W3", help="A packed set; or W3 of make-data, over which peers that keep a state run too."),
    ],
    names: PeersOption = "",
    batch_size: Annotated[int, typer.Option(min=1, help="For a set.")] = 4,
    batches: Annotated[int, typer.Option(min=1, help="Compared after each restore.")] = 100,
    cache: CacheOption = None,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """Restore at 1 %, 50 % and 99 % of an epoch, in new processes; the next batches are compared one by one."""
    from .node import has_images
    from .peer_resume import measure_peers_resume, peers_with_state
    from .resume import measure_resume
    from .set_workload import is_workload

    started = time.monotonic()
    conditions: dict[str, Any] = {"set": str(location), "batches": batches}
    rows: list[dict[str, Any]]
    with NoiseMeter() as meter:
        if is_workload(location):
            wanted = wanted_peers(names) if names else peers_with_state()
            rows = measure_peers_resume(wanted, location, cache_of(cache), batches=batches, say=report)
        else:
            conditions["batch_size"] = batch_size
            cameras = "*" if has_images(location) else ""
            rows = measure_resume(location, batch_size=batch_size, cameras=cameras, batches=batches, say=report)
    ours = [row for row in rows if row["peer"] == "headway" and "exact" in row]
    summary = {
        "slowest_first_batch_s": max((row["first_batch_s"] for row in ours), default=None),
        "exact": bool(ours) and all(row["exact"] for row in ours),
        "exact_peers": sorted({row["peer"] for row in rows} - {row["peer"] for row in rows if not row.get("exact")}),
    }
    finish("resume", rows, conditions, summary, started, meter, json_path, html_path)


def cache_of(given: Path | None) -> Path:
    """Return where the bench keeps what is made once."""
    place = given or cache_directory("peers")
    if place is None:
        raise UsageError("no cache directory can be made here; give --cache DIR")
    return place


def wanted_peers(names: str) -> list[str]:
    """Return the peers that a comma-separated list names, or all; headway first, so that no time limit leaves it out."""
    from .peers.registry import PEERS

    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(PEERS)
    return ["headway", *(name for name in wanted if name != "headway")]


def _data(data: Path | None, name: str, samples: int | None, cache: Path) -> Path:
    """Return the workload to measure: the one given, one made of the set given, or one made anew."""
    from .make_data import make_data
    from .set_workload import is_workload, workload_of_set
    from .workloads import workload

    if (data is None) == (not name):
        raise UsageError("bench peers runs over a workload or a set: give DATA, or --workload W1, W2, W3 or W4")
    if data is None:
        load = workload(name, samples=samples)
        place = cache / "data" / f"{name}-{load.samples}"
        report(f"{name}: {load.samples:,} samples in {str(place)!r}")
        return make_data(load, place).directory
    return data if is_workload(data) else workload_of_set(data, cache / "data", samples=samples)


def _limit(workload: str, location: Path) -> tuple[float | None, list[dict[str, Any]]]:
    """Return the samples/s that the slowest stage alone would allow here, and the ceilings it was computed from."""
    from ..formats.packed_set import open_set
    from .limits import measure_limits
    from .peers.headway_loader import look_of
    from .roofline import roofline

    look = look_of(workload)
    with open_set(location) as packed:
        ceilings = measure_limits(packed, target=look["size"], augment=look["augment"])
        stages = roofline(packed, ceilings, image=look["size"])
    return (stages[0].samples_per_s if stages else None), [stage.to_json() for stage in stages]
