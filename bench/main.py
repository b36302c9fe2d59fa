"""The `headway bench` group: one command a bench, each ending with the JSON of `result`. Benches measure, never assert."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..formats import UsageError
from ..tools.console import human_bytes, human_time, report, say
from ..tools.progress import Bar
from .node_commands import image_size, register
from .peer_commands import CacheOption, cache_of

__all__ = ["app"]

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure what this node can sustain. Each bench prints its numbers and, with --json, writes them with machine, "
    "versions and conditions.",
)

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result here as JSON (bench/result.py says which).")
]


class _Name(StrEnum):
    W1 = "W1"
    W2 = "W2"
    W3 = "W3"
    W4 = "W4"


@app.callback()
def _group() -> None:
    """Keep `bench` a group however few commands it has."""


@app.command(
    "make-data",
    epilog="Example: headway bench make-data W1 /tmp/w1 --samples 40",
    help="Write a synthetic workload with the statistics of a real one. W1: six 1600×900 cameras, LiDAR, trajectory, boxes. "
    "W2: pictures and labels. W3: trajectories. W4: LiDAR sweeps. The same seed gives the same bytes.",
)
def _make_data(
    name: Annotated[_Name, typer.Argument(metavar="W1|W2|W3|W4", help="Which workload.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Empty, or holding the same workload, finished or not.")],
    samples: Annotated[int | None, typer.Option(help="Samples to describe; by default 400, 4,000, 200,000 or 1,000.")] = None,
    cameras: Annotated[int | None, typer.Option(help="Images a sample (W1, W2).")] = None,
    image: Annotated[str | None, typer.Option(metavar="HxW", help="Image size, such as 450x800 (W1, W2).")] = None,
    points: Annotated[int | None, typer.Option(help="Points of the largest sweep (W1, W4).")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed gives other samples of the same kind.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Images made at once.")] = 2,
    json_path: JsonOption = None,
) -> None:
    from .machine import NoiseMeter
    from .make_data import make_data
    from .result import Result, write_result
    from .workloads import workload

    load = workload(
        name.value, samples=samples, cameras=cameras, image=image_size(image) if image else None, points=points, seed=seed
    )
    report(f"making {load.name}: {load.samples:,} samples, {load.distinct_images} images, {load.distinct_sweeps} sweeps")
    started = time.monotonic()
    with NoiseMeter() as meter, Bar("files") as bar:
        stored = make_data(load, directory, threads=threads, progress=bar)
    wall = time.monotonic() - started
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    images = [path.stat().st_size for path in (directory / "images").glob("*.jpg")]
    summary = {"samples": len(stored), "bytes": size, "mean_image_bytes": round(sum(images) / len(images)) if images else None}
    say(f"{load.name}: {len(stored):,} samples, {human_bytes(size)} in {str(directory)!r}, {human_time(wall)}")
    if json_path is not None:
        conditions = dict(stored.parameters)
        row = {"workload": load.name, "files": len(images) + load.distinct_sweeps + 2, **summary}
        write_result(
            Result(bench="make-data", rows=[row], conditions=conditions, summary=summary, wall_s=wall, noise=meter.noise),
            json_path,
        )


@app.command(
    "points",
    epilog="Example: headway bench points samples/LIDAR_TOP/*.pcd.bin",
    help="Size and one-core speed of LiDAR sweeps under each points codec, beside zstd and, where installed, blosc2 and pcodec.",
)
def _points(
    sweeps: Annotated[list[Path], typer.Argument(metavar="SWEEP…", help="Raw sweeps: nuScenes' .pcd.bin, KITTI's .bin.")],
    repeats: Annotated[int, typer.Option(min=1, help="Decodes a row; the best counts.")] = 50,
    json_path: JsonOption = None,
) -> None:
    from .machine import NoiseMeter
    from .points import measure_points, read_sweep
    from .result import Result, Value, write_result

    started, rows = time.monotonic(), list[dict[str, Value]]()
    say(f"{'sweep':<24} {'codec':<24} {'ratio':>6} {'encode':>8} {'decode MB/s':>12} {'max error':>10}")
    with NoiseMeter() as meter:
        for path in sweeps:
            for row in measure_points(path.name, read_sweep(path), repeats=repeats):
                rows.append(row)
                error = f"{float(str(row['max_error_m'])) * 1000:.2f} mm" if row["max_error_m"] else "exact"
                speeds = f"{row['encode_mb_s']:>8} {row['decode_mb_s']:>12}"
                say(f"{path.name[:24]:<24} {row['codec']:<24} {row['ratio']:>6} {speeds} {error:>10}")
    if json_path is not None:
        settings: dict[str, Value] = {"repeats": repeats, "files": [str(path) for path in sweeps]}
        wall = time.monotonic() - started
        write_result(Result(bench="points", rows=rows, conditions=settings, wall_s=wall, noise=meter.noise), json_path)


@app.command(
    "arrays",
    epilog="Example: headway bench arrays poses.npy",
    help="Size and one-core speed of generic arrays under zstd's levels, plain and byte-shuffled.",
)
def _arrays(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE…]", help=".npy, .npz or text; by default typical ones.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Decodes a row; the best counts.")] = 20,
    json_path: JsonOption = None,
) -> None:
    from .arrays import measure_array, read_arrays, typical_arrays
    from .machine import NoiseMeter
    from .result import Result, Value, write_result

    started, rows = time.monotonic(), list[dict[str, Value]]()
    arrays = {name: array for path in files for name, array in read_arrays(path).items()} if files else typical_arrays()
    say(f"{'array':<24} {'bytes':>9} {'codec':<18} {'ratio':>7} {'encode':>7} {'decode MB/s':>12}")
    with NoiseMeter() as meter:
        for name, array in arrays.items():
            for row in measure_array(name, array, repeats=repeats):
                rows.append(row)
                rates = f"{row['encode_mb_s']:>7} {row['decode_mb_s']:>12}"
                say(f"{name[:24]:<24} {row['bytes']:>9} {row['codec']:<18} {row['ratio']:>7} {rates}")
    if json_path is not None:
        settings: dict[str, Value] = {"repeats": repeats, "files": [str(path) for path in files or ()]}
        wall = time.monotonic() - started
        write_result(Result(bench="arrays", rows=rows, conditions=settings, wall_s=wall, noise=meter.noise), json_path)


@app.command(
    "pack",
    epilog="Example: headway bench pack /tmp/w1 --json pack.json",
    help="Pack rate of headway beside WebDataset's TarWriter, MosaicML's MDSWriter and `cp -r` of the same bytes, interleaved; "
    "with --sweep also the size of real LiDAR sweeps under each codec.",
)
def _pack(
    data: Annotated[Path | None, typer.Argument(metavar="[DATA]", help="A workload of make-data; by default a small W1.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with every writer in each; the median counts.")] = 3,
    scratch: Annotated[Path | None, typer.Option(metavar="DIR", help="Disk to write on; by default the temporary one.")] = None,
    sweeps: Annotated[list[Path] | None, typer.Option("--sweep", metavar="FILE", help="A raw sweep to size, repeatable.")] = None,
    cache: CacheOption = None,
    json_path: JsonOption = None,
) -> None:
    import tempfile

    from .machine import NoiseMeter
    from .make_data import make_data
    from .pack import PackTime, contenders, measure_pack, payload_bytes, summarise
    from .points import measure_points, read_sweep
    from .result import Result, Value, write_result
    from .workloads import workload

    started, times = time.monotonic(), list[PackTime]()
    with tempfile.TemporaryDirectory(dir=scratch, prefix="headway-bench-") as name, NoiseMeter() as meter:
        if data is None:
            data = Path(name, "data")
            make_data(workload("W1", samples=100), data)
        writers, absent = contenders(data, Path(name), cache_of(cache) / "environments", say=report)
        for each in measure_pack(writers, Path(name), rounds=rounds):
            times.append(each)
            report(f"{each.name:<28} {each.wall_s:7.2f} s, {each.cpu_s:6.2f} s of CPU")
        size = payload_bytes(data)
    rows = summarise(times, size)
    say(f"{'writer':<28} {'MB/s':>8} {'CPU s':>7} {'× TarWriter':>12} {'× cp':>6}")
    for row in rows:
        say(f"{row['writer']:<28} {row['mb_s']:>8} {row['cpu_s']:>7} {row['times_tarwriter']!s:>12} {row['times_cp']:>6}")
    for missing, reason in absent.items():
        say(f"{missing:<28} {reason}")
    sizes = [row for path in sweeps or () for row in measure_points(path.name, read_sweep(path), repeats=1)]
    for row in sizes:
        say(f"{row['sweep']!s:<28} {row['codec']!s:<24} {row['bytes']:>9} bytes, ratio {row['ratio']}")
    if json_path is not None:
        settings: dict[str, Value] = {"data": str(data), "rounds": rounds, "payload_bytes": size, "absent": sorted(absent)}
        wall = time.monotonic() - started
        write_result(Result(bench="pack", rows=[*rows, *sizes], conditions=settings, wall_s=wall, noise=meter.noise), json_path)


@app.command(
    "plan",
    epilog="Example: headway bench plan --json",
    help="What planning an epoch of 10⁹ items over 1,024 ranks costs, and how well each setting mixes drives, beside other "
    "published shuffles at equal items held.",
)
def _plan(
    items: Annotated[int, typer.Option(min=1000, help="Items of the epoch whose planning is timed.")] = 10**9,
    batch_size: Annotated[int, typer.Option(min=1, help="Global batch.")] = 8192,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks; they share the batch evenly.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    import json

    from .machine import NoiseMeter
    from .plan import measure
    from .plan import report as plan_report
    from .result import Result

    if batch_size % ranks:
        raise UsageError(f"--batch-size {batch_size} does not divide over --ranks {ranks}; give a multiple")
    started = time.monotonic()
    with NoiseMeter() as meter:
        found = measure(items=items, batch_size=batch_size, ranks=ranks)
    about = Result(bench="plan", rows=[], wall_s=time.monotonic() - started, noise=meter.noise).to_json()
    say(json.dumps({**about, **found}) if as_json else plan_report(found))


@app.command(
    "decode",
    epilog="Example: headway bench decode --json samples/",
    help="Whether all decoders of this machine give the same picture, which images each hands on, and how fast they are. "
    "Without files, pictures of every common coding are made.",
)
def _decode(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE|DIR…", help="Images, or folders of them.", exists=True)
    ] = None,
    image: Annotated[str, typer.Option(metavar="HxW", help="Training size.")] = "256x704",
    repeats: Annotated[int, typer.Option(min=1, help="Timed batches a decoder; the best counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON result instead of the tables.")] = False,
) -> None:
    from ..gpu_decode import capabilities
    from .decode import (
        camera_images,
        cost_of_policy,
        find_images,
        made_images,
        measure_equality,
        measure_speed,
        usable_decoders,
    )
    from .machine import NoiseMeter
    from .result import Result, Value, write_result

    started, size = time.monotonic(), image_size(image) if image else (256, 704)
    images = find_images(paths) if paths else made_images()
    decoders = usable_decoders()
    with NoiseMeter() as meter:
        equality = measure_equality(images, decoders, size=size)
        speed = measure_speed(images, decoders, size=size, batch=6, repeats=repeats)
        policy = cost_of_policy(images if paths else camera_images(), size=size, repeats=repeats)
    able: list[dict[str, Value]] = [{"name": each.name, "usable": each.usable, "why": each.why} for each in capabilities()]
    if as_json:
        rows = [
            {"table": name, **row}
            for name, table in (("equality", equality), ("speed", speed), ("policy", policy))
            for row in table
        ]
        settings: dict[str, Value] = {"image": image, "repeats": repeats, "images": len(images), "capabilities": able}
        wall = time.monotonic() - started
        write_result(Result(bench="decode", rows=rows, conditions=settings, wall_s=wall, noise=meter.noise), None)
        return
    for each in able:
        say(f"{each['name']:<18} {'usable' if each['usable'] else 'no':<7} {each['why']}")
    say(f"\n{'image':<44} {'look':<9} {'decoder':<16} {'status':<8} {'PSNR':>7} {'max':>4}  handed on")
    for row in equality:
        psnr = "exact" if row.get("max_error") == 0 else row.get("psnr_db") or ""
        say(
            f"{str(row['image'])[-44:]:<44} {row.get('look', ''):<9} {row['decoder']:<16} {row['status']:<8} {psnr!s:>7} "
            f"{row.get('max_error', '')!s:>4}  {row.get('handed_on', '')}"
        )
    say("")
    for row in speed:
        say(f"{row['decoder']:<18} {row['images_per_s']:>8} images/s on one thread, batches of {row['batch']} at {image}")
    for row in policy:
        share = f"  ({float(str(row['share_over_plain'])):+.1%} over plain decode)" if "share_over_plain" in row else ""
        say(f"{row['what']:<26} {row['ms_a_sample']:>8} CPU ms a sample of 6 images and a sweep{share}")


@app.command(
    "gpu",
    epilog="Example: headway bench gpu --json gpu.json --markdown gpu.md",
    help="Everything a GPU machine must show: decode rates, copies, passes, overlap with a training step, the gpu tests.",
)
def _gpu(
    device: Annotated[str, typer.Option(help="cuda; or cpu, which only rehearses the bench and says so.")] = "cuda",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs a row; the best counts.")] = 5,
    json_path: JsonOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables here.")] = None,
) -> None:
    from .gpu import as_markdown, measure_gpu
    from .machine import NoiseMeter
    from .result import Result, write_result

    started = time.monotonic()
    small = {"sizes": ((180, 320),), "batches": (2,)} if device == "cpu" else {}
    with NoiseMeter() as meter:
        rows = measure_gpu(device, repeats=repeats, **small)  # type: ignore[arg-type]  # the two tuples above
    table = as_markdown(rows)
    say(table)
    if markdown is not None:
        markdown.write_text(table, "utf-8")
    if json_path is not None:
        wall = time.monotonic() - started
        result = Result(bench="gpu", rows=rows, conditions={"device": device, "repeats": repeats}, wall_s=wall, noise=meter.noise)
        write_result(result, json_path)


@app.command(
    "ledger",
    epilog="Example: headway bench ledger SET --batch-size 1 --rounds 9",
    help="What booking every wait costs, as a share of the loader's processor time: off, on, and with files written, in turns.",
)
def _ledger(
    location: Annotated[Path, typer.Argument(metavar="SET", help="A packed set.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step; small ones make the ledger's share larger.")] = 4,
    steps: Annotated[int, typer.Option(min=4, help="Steps a run, at most an epoch's.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with all cases in each; medians count.")] = 9,
    threads: Annotated[int | None, typer.Option(min=0, help="Decode threads; default: chosen.")] = None,
    image: Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")] = "256x704",
    json_path: JsonOption = None,
) -> None:
    from .ledger import measure_ledger, open_for_bench, summarise
    from .machine import NoiseMeter
    from .result import Result, Value, write_result

    started, rows = time.monotonic(), list[dict[str, Value]]()
    dataset = open_for_bench(location, image_size(image) if image else (256, 704))
    with NoiseMeter() as meter:
        for row in measure_ledger(dataset, batch_size=batch_size, steps=steps, rounds=rounds, threads=threads):
            rows.append(dict(row))
            say(
                f"round {row['round']:.0f}: {row['off_cpu_us']:,.0f} µs a step; ledger {row['ledger_cost']:+.2%}, "
                f"with files {row['files_cost']:+.2%} (wall {row['ledger_wall_cost']:+.2%}, {row['files_wall_cost']:+.2%})"
            )
    found = summarise(rows)
    say(f"median of {found['off_cpu_us']:,.0f} µs a step: ledger {found['ledger_cost']:+.2%}, files {found['files_cost']:+.2%}")
    for name in ("booking", "writing"):
        say(f"{name} a step takes {found[f'{name}_us']:.1f} µs by itself, {found[f'{name}_share']:.2%} of it")
    if json_path is not None:
        settings: dict[str, Value] = {"set": str(location), "batch_size": batch_size, "steps": steps, "rounds": rounds}
        wall = time.monotonic() - started
        result = Result(bench="ledger", rows=rows, conditions=settings, summary=found, wall_s=wall, noise=meter.noise)
        write_result(result, json_path)


register(app)
