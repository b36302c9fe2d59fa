"""`make demo`: synthetic drives → `pack-dataset` → two ranks under torchrun → a table and a picture. Offline, repeatable.

What is there already is used again. Everything goes under one folder, which can be removed at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from ..formats import EGO_TO_WORLD, SetError, UsageError, WorkerDied
from ..formats.adapters import SourceSpec
from ..formats.pack_options import PackOptions
from ..formats.packed_set import PackedSet, open_set
from ..formats.packer import pack
from .console import human_bytes, human_time, report, run_app, say
from .progress import Bar

__all__ = ["main"]

RANKS: Final = 2
_STOP_S: Final = 20.0


def demo(
    directory: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("demo"),
    drives: Annotated[int, typer.Option(min=1, help="Synthetic drives to make.")] = 2,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each drive.")] = 10.0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the drives.")] = 2,
    step_ms: Annotated[float, typer.Option(min=0.0, help="Shortest training step, standing in for a GPU's.")] = 200.0,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small images and few points: the same road in seconds.")] = False,
) -> None:
    """Make drives, pack them, stream them on two ranks, draw a batch."""
    started = time.monotonic()
    _forget_other(directory, {"drives": drives, "seconds": seconds, "tiny": tiny})
    source = _make_drives(directory / "drives", drives, seconds, tiny=tiny)
    packed = _pack(source, directory / "set")
    ranks = _train(packed, directory / "run", epochs, step_ms)
    _draw(packed, directory / "overview.png")
    _table(ranks, step_ms)
    say(f"\n{directory / 'overview.png'} shows a batch; everything took {human_time(time.monotonic() - started)}")
    if len({tuple(rank["epoch_steps"]) for rank in ranks}) != 1:
        raise WorkerDied(f"the ranks made different numbers of steps: {[rank['steps'] for rank in ranks]}; please report this")


def _forget_other(directory: Path, wanted: dict[str, Any]) -> None:  # Any: JSON
    """Remove the drives and the set of a demo that was asked for something else."""
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / "demo.json"
    if note.exists() and json.loads(note.read_text()) != wanted:
        for folder in ("drives", "set"):
            shutil.rmtree(directory / folder, ignore_errors=True)
    note.write_text(json.dumps(wanted) + "\n")


def _make_drives(target: Path, drives: int, seconds: float, *, tiny: bool) -> Path:
    from .synthetic import TINY, Detail, write_nuscenes

    if target.exists() and any(target.iterdir()):
        report(f"1/4 drives   {str(target)!r} is there and used again")
        return target
    report(
        f"1/4 drives   making {drives} drives of {seconds:g} s in nuScenes' format: six cameras, LiDAR, boxes (about a minute)"
    )
    with Bar("files") as bar:
        begun = False

        def advance(done: int, total: int) -> None:
            nonlocal begun
            if not begun:
                bar.begin("making", total)
                begun = True
            bar.advance(done - bar.done)

        write_nuscenes(target, drives=drives, seconds=seconds, detail=TINY if tiny else Detail(), progress=advance)
    return target


def _pack(source: Path, target: Path) -> Path:
    try:
        with open_set(target) as packed:
            report(f"2/4 packing  {str(target)!r} is there and used again (set {packed.set_id[:12]}…)")
        return target
    except SetError:  # not there, unfinished, or of another format version
        pass
    report("2/4 packing  as `pack-dataset nuscenes` does")
    begun = time.monotonic()
    with Bar() as bar:
        done = pack(SourceSpec(kind="nuscenes", path=str(source)), target, PackOptions(overwrite=target.exists()), bar)
    manifest = done.manifest
    report(
        f"             {len(manifest.drives)} drives, {manifest.frames} frames, {done.packed} payloads, "
        f"{human_bytes(manifest.stored_bytes)} in {human_time(time.monotonic() - begun)} (set {manifest.set_id[:12]}…)"
    )
    return target


def _train(packed: Path, output: Path, epochs: int, step_ms: float) -> list[dict[str, Any]]:  # Any: JSON
    """Run `demo_train` on RANKS ranks and return what each wrote down."""
    _need_loopback()
    report(f"3/4 training {epochs} epochs on {RANKS} ranks: torchrun --standalone --nproc-per-node {RANKS} (gloo, CPU)")
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("rank-*.json"):
        old.unlink()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(RANKS), "--module", f"{__package__}.demo_train", str(packed), str(output)]
    command += ["--epochs", str(epochs), "--step-ms", str(step_ms)]
    # Loopback only: gloo otherwise looks the host's name up, which fails on machines without a network.
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    child = subprocess.Popen(command, env=environment)
    try:
        code = child.wait()
    finally:
        if child.poll() is None:  # interrupted: torchrun ends its ranks when it is asked to end
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    files = sorted(output.glob("rank-*.json"))
    if code or len(files) != RANKS:
        raise WorkerDied(f"torchrun ended with code {code}, {len(files)} of {RANKS} ranks finished; its output is above")
    return [json.loads(file.read_text()) for file in files]


def _need_loopback() -> None:
    """Refuse at once where ranks could not reach each other; torch would try for a minute each, with a stack a try."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), _STOP_S):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot train on {RANKS} ranks: 127.0.0.1 does not answer ({error.strerror or error}); bring the loopback interface "
            "up, such as by `ip link set lo up`"
        ) from error


def _draw(packed: Path, target: Path) -> None:
    """Draw the frame of the first drive with the freest view, as a batch brings it."""
    from ..loader.dataloader import DataLoader
    from ._batch_scene import scene_from_batch
    from .demo_train import demo_dataset
    from .picture import overview, write_picture

    report("4/4 picture  a batch, with points and boxes projected into the cameras")
    with demo_dataset(packed, height=900, width=1600) as dataset:
        wanted = _freest_frame(dataset.packed)
        for batch in DataLoader(dataset, batch_size=1, shuffle=False, num_workers=0):
            if int(batch["id"][0]) == wanted:
                write_picture(overview(scene_from_batch(batch, 0, dataset.packed.schema)), target)
                break


def _freest_frame(packed: PackedSet) -> int:
    """Return the frame of the first drive whose nearest vehicle is farthest, so that nothing hides half the town."""
    boxes, frames = packed.timeline("boxes"), np.arange(packed.frame_starts[1])
    nearest = []
    for frame, row in enumerate(packed.own("boxes", frames).tolist()):
        table = boxes.value(row)
        assert isinstance(table, Mapping)
        large = table["size"][:, 0] > 2
        ego = boxes.take(EGO_TO_WORLD, np.array([row]))[0, :2]
        nearest.append((float(np.linalg.norm(table["centre"][large, :2] - ego, axis=1).min(initial=99)), -frame))
    return -max(nearest)[1]


def _table(ranks: Sequence[dict[str, Any]], step_ms: float) -> None:  # Any: JSON
    rows = [
        ("samples/s", [f"{rank['samples_per_s']:.1f}" for rank in ranks], f"{sum(r['samples_per_s'] for r in ranks):.1f}"),
        (
            "MB/s of batches",
            [f"{r['bytes_per_s'] / 1e6:.0f}" for r in ranks],
            f"{sum(r['bytes_per_s'] for r in ranks) / 1e6:.0f}",
        ),
        ("time to first batch", [human_time(rank["first_batch_s"]) for rank in ranks], ""),
        ("share of time waited", [f"{100 * rank['waited_share']:.1f} %" for rank in ranks], ""),
        ("headway (input ready ahead)", [human_time(rank["headway_s"]) for rank in ranks], ""),
        ("steps per epoch", [", ".join(map(str, rank["epoch_steps"])) for rank in ranks], _verdict(ranks)),
    ]
    say(f"\n{'':28}" + "".join(f"{'rank ' + str(rank['rank']):>16}" for rank in ranks) + f"{'together':>16}")
    for name, values, together in rows:
        say(f"{name:28}" + "".join(f"{value:>16}" for value in values) + f"{together:>16}")
    say(f"\nA step of the toy model is stretched to {step_ms:g} ms, as a GPU's would be; the loader works in the meantime.")


def _verdict(ranks: Sequence[dict[str, Any]]) -> str:  # Any: JSON
    return "equal" if len({tuple(rank["epoch_steps"]) for rank in ranks}) == 1 else "NOT EQUAL"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the demo."""
    app = typer.Typer(add_completion=False)
    app.command()(demo)
    run_app(lambda: app, "headway-demo", list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    main()
