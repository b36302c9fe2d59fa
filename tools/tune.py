"""`headway tune`: what each knob gives and costs on this node, tried on a sample of the set.

One knob at a time against the set as it is: sizes and codecs chosen when packing (the sample is packed anew), decode threads,
and the blocks shuffled together (bytes held open against how well drives mix; worked out from the plan, not run).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import human_bytes, report, say

if TYPE_CHECKING:
    from ..formats.pack_options import PackOptions
    from ..formats.packed_set import PackedSet

__all__ = ["Trial", "tune_command"]

_WORTH = 0.9  # an image stored at nine tenths of its size or more saves too little to be worth a trial
_MIXED_ITEMS = 40_000  # of the plan, looked at for how drives mix: a second's work
_SPANS = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting of one knob."""

    knob: str
    setting: str
    samples_per_s: float | None = None
    """Of this node, as fast as the loader goes; None: not run."""
    gain: float | None = None
    """Against the set as it is."""
    stall_share: float | None = None
    """Of a consumer with the stated step, all ranks of the node together."""
    bytes_a_sample: float | None = None
    costs: str = ""


def tune_command(
    location: Annotated[Path, typer.Argument(metavar="SET", help="Folder of a packed set.")],
    step_ms: Annotated[float, typer.Option(min=0, help="What a training step takes without waiting for input.")] = 100.0,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of this node.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a rank and step.")] = 4,
    image: Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")] = "256x704",
    frames: Annotated[int, typer.Option(min=4, help="Frames of the sample that is packed anew.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each setting is run.")] = 2.0,
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the sample goes; by default a temporary folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try what matters on a sample of the set, and print what each setting gives and costs."""
    from ..bench.machine import NoiseMeter
    from ..bench.node_commands import image_size
    from ..formats import UsageError
    from ..formats.packed_set import open_set
    from .progress import Bar

    size = image_size(image)
    if ranks * batch_size > frames:
        raise UsageError(f"a sample of {frames} frames does not fill a step of {ranks} × {batch_size}; raise --frames")

    def stall(rate: float) -> float:
        """Return the share of its time that a consumer waits, given the node's rate."""
        step_s, batch_s = step_ms / 1e3, ranks * batch_size / rate
        return max(0.0, 1 - step_s / batch_s)

    trials: list[Trial] = []
    with (
        tempfile.TemporaryDirectory(prefix="headway-tune-", dir=scratch) as name,
        open_set(location) as packed,
        NoiseMeter() as meter,
        Bar("settings") as bar,
    ):
        knobs = [*_pack_knobs(packed, size), *_thread_knobs(ranks)]
        bar.begin("trying", len(knobs))
        plain: _Ran | None = None
        for knob in knobs:
            ran = _try(location, Path(name), knob, frames, ranks=ranks, batch_size=batch_size, image=size, seconds=seconds)
            bar.advance(1)
            plain = plain or ran
            trials.append(
                Trial(
                    knob=knob.name,
                    setting=knob.setting,
                    samples_per_s=ran.samples_per_s,
                    gain=ran.samples_per_s / plain.samples_per_s - 1,
                    stall_share=stall(ran.samples_per_s),
                    bytes_a_sample=ran.bytes_a_sample,
                    costs=knob.costs,
                )
            )
        trials += _order_knobs(packed, global_batch=ranks * batch_size, bytes_a_sample=plain.bytes_a_sample if plain else 0.0)
    if as_json:
        about = {"set": str(location), "step_ms": step_ms, "ranks": ranks, "batch_size": batch_size, "quiet": meter.noise.quiet}
        say(json.dumps({**about, "trials": [asdict(trial) for trial in trials]}))
        return
    _print(trials, step_ms)
    if not meter.noise.quiet:
        report(f"others used {meter.noise.others:.1f} cores of this node meanwhile: repeat it on a quiet one before you decide")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knob:
    name: str
    setting: str
    pack: PackOptions | None = None
    """How the sample is packed; None: as the first one was."""
    threads: int | None = None
    costs: str = ""
    place: str = "as-it-is"
    """Folder of the sample."""


@dataclass(frozen=True, slots=True)
class _Ran:
    samples_per_s: float
    bytes_a_sample: float


def _pack_knobs(packed: PackedSet, target: tuple[int, int]) -> Iterator[_Knob]:
    """Yield the set as it is, then what could be changed when packing."""
    from ..formats.pack_options import PackOptions
    from ..formats.schema import ImageEdit

    yield _Knob(name="as it is", setting="", pack=PackOptions())
    scale = _scale(packed, target)
    if scale < _WORTH:
        edit = ImageEdit(scale=scale)
        costs = "images are stored anew at quality 95; larger training sizes and tighter crops lose detail"
        yield _Knob(
            name="pack-dataset",
            setting=f"--camera-scale {scale:g}",
            pack=PackOptions(image_edit=edit),
            costs=costs,
            place="scaled",
        )
    codecs = {sensor.codec for sensor in packed.schema.sensors if sensor.kind == "points"} - {None}
    if codecs:
        if codecs != {"points-raw"}:
            options = PackOptions(points_codec="points-raw")
            yield _Knob(name="points codec", setting="raw", pack=options, costs="about twice the bytes", place="raw")
        if codecs != {"points-lossless"}:
            options, costs = PackOptions(points_codec="points-lossless"), "CPU a sweep; every bit comes back"
            yield _Knob(name="points codec", setting="lossless", pack=options, costs=costs, place="lossless")
        if codecs != {"points-quantised"}:
            options = PackOptions(points_codec="points-quantised", precision_mm=1)
            costs = "positions are off by up to 0.5 mm"
            yield _Knob(name="pack-dataset", setting="--lidar-precision 1mm", pack=options, costs=costs, place="quantised")


def _thread_knobs(ranks: int) -> Iterator[_Knob]:
    """Yield numbers of decode threads other than the chosen one."""
    from ..loader.cores import decode_threads, usable_cores

    chosen = decode_threads(ranks)
    for threads in sorted({1, chosen // 2, chosen + 1, 2 * chosen} - {0, chosen}):
        if threads <= usable_cores():
            yield _Knob(name="num_workers", setting=str(threads), threads=threads, costs=f"{chosen} are chosen by default")


def _scale(packed: PackedSet, target: tuple[int, int]) -> float:
    """Return the smallest scale, in twentieths, at which no camera is stored smaller than the target."""
    import math

    from ..formats.image_header import image_size

    needed = 0.0
    for sensor in packed.schema.sensors:
        if sensor.kind == "image" and sensor.codec in ("jpeg", "png") and len(packed.timeline(sensor.name)):
            width, height = image_size(bytes(packed.timeline(sensor.name).payload(0)), sensor.codec)
            needed = max(needed, target[0] / height, target[1] / width)
    return min(1.0, math.ceil(needed * 20 - 1e-9) / 20) if needed else 1.0


def _try(
    location: Path,
    place: Path,
    knob: _Knob,
    frames: int,
    *,
    ranks: int,
    batch_size: int,
    image: tuple[int, int],
    seconds: float,
) -> _Ran:
    """Pack the sample as the knob says, unless it is there, and stream it with real ranks."""
    from ..bench.node import NodeBench, NodeOptions
    from ..formats.packed_set import open_set
    from ..formats.packer import pack
    from ._set_source import sample_of

    target = place / ("as-it-is" if knob.pack is None else knob.place)
    if knob.pack is not None and not target.exists():
        report(f"packing {frames} frames: {knob.name} {knob.setting}")
        pack(sample_of(str(location), frames), target, knob.pack)
    with open_set(target) as packed:
        size = sum(stats.bytes for stats in packed.manifest.sensors.values()) / len(packed)
    options = NodeOptions(ranks=ranks, batch_size=batch_size, seconds=seconds, image=image, threads=knob.threads)
    rows = NodeBench(target).run(options)
    return _Ran(sum(float(row["samples_per_s"]) for row in rows), size)


def _order_knobs(packed: PackedSet, *, global_batch: int, bytes_a_sample: float) -> Iterator[Trial]:
    """Yield how well drives mix, and what stays open for it, by the number of blocks shuffled together."""
    import numpy as np

    from ..bench.shuffles import headway, quality
    from ..loader.sampler import ViewInfo
    from ..loader.shuffled import Shuffled, default_block_items

    starts = np.asarray(packed.frame_starts)
    count = min(len(packed), _MIXED_ITEMS)
    starts = np.append(starts[starts < count], count)
    view = ViewInfo(view_id="sample", items=count, drive_starts=starts)
    if count < 2 * global_batch or len(starts) < 3:
        return
    block = default_block_items(view)
    drive = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for span in _SPANS:
        order = headway(view, batch_size=global_batch, sampler=Shuffled(block_items=block, span_blocks=span), seed=0)
        found = quality(order, batch_size=global_batch, drive=drive, unit_items=block)
        held = global_batch * span * block * bytes_a_sample
        yield Trial(
            knob="Shuffled",
            setting=f"span_blocks={span}" + (" (default)" if span == Shuffled().span_blocks else ""),
            costs=f"{human_bytes(held)} open on this node's ranks for {found.distinct_drives[2]:.0f} drives in 16 batches",
        )


def _print(trials: list[Trial], step_ms: float) -> None:
    say(f"{'knob':<14} {'setting':<26} {'samples/s':>10} {'gain':>7} {f'stall at {step_ms:g} ms':>16} {'a sample':>9}  costs")
    for trial in trials:
        size = "" if trial.bytes_a_sample is None else human_bytes(trial.bytes_a_sample)
        say(
            f"{trial.knob:<14} {trial.setting:<26} {_number(trial.samples_per_s, ',.1f'):>10} {_number(trial.gain, '+.0%'):>7} "
            f"{_number(trial.stall_share, '.1%'):>16} {size:>9}  {trial.costs}"
        )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
