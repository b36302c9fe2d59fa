"""NVIDIA DALI on the CPU: its WebDataset reader, region decode, resize and normalisation in one graph."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .contract import Peer, Run, Setting
from .samples import BATCH, MEAN, STD, kept_box
from .webdataset_loader import SHUFFLE_BUFFER, tars, write_tars

__all__ = ["PEER"]

_OUTPUTS = {
    "W1": ["image", "lidar", "lidar_count", "trajectory", "calibration", "boxes", "boxes_count"],
    "W2": ["image", "json"],
    "W3": ["trajectory", "json"],
    "W4": ["lidar", "lidar_count"],
}
_MEMBERS = {
    "W1": ["lidar.bin", "trajectory.bin", "calibration.bin", "boxes.bin"],
    "W2": ["cam0.jpg", "json"],
    "W3": ["trajectory.bin", "json"],
    "W4": ["lidar.bin"],
}


def _index(tar: str) -> None:
    """Write the index file that DALI's wds2idx writes: per sample, each member's extension, offset, size and name."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            key, _, extension = member.name.rpartition("/")[2].partition(".")
            samples.setdefault(key, []).append(f"{extension} {member.offset_data} {member.size} {member.name}")
    lines = [f"v1.2 {len(samples)}", *(" ".join(parts) for parts in samples.values())]
    Path(tar).with_suffix(".idx").write_text("\n".join(lines) + "\n")


def _pack(run: Run) -> None:
    write_tars(run)
    for tar in tars(run.packed):
        _index(tar)


def _boxes(tar: str) -> list[tuple[int, int, int, int]]:
    """Return what is kept of each camera of W1, by the first sample's headers: a camera's images are of one size."""
    import simplejpeg

    found = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            name = member.name.partition(".")[2]
            if name in found:
                break
            file = archive.extractfile(member)
            if name.startswith("cam") and file is not None:
                height, width, *_ = simplejpeg.decode_jpeg_header(file.read())
                found[name] = kept_box(height, width)
    return [found[name] for name in sorted(found)]


def _graph(workload: str, records: list[Any], boxes: list[tuple[int, int, int, int]], *, region: bool) -> tuple[Any, ...]:
    from nvidia.dali import fn, types

    def floats(data: Any, shape: list[int]) -> Any:
        return fn.reinterpret(data, dtype=types.FLOAT, shape=shape)

    def normalised(picture: Any, **more: Any) -> Any:
        return fn.crop_mirror_normalize(
            picture, dtype=types.FLOAT, output_layout="CHW", mean=MEAN.tolist(), std=STD.tolist(), **more
        )

    def camera(data: Any, box: tuple[int, int, int, int]) -> Any:
        top, left, height, width = box
        if region:
            options = {"start": [top, left], "shape": [height, width], "axes": [0, 1]}
            cut = fn.decoders.image_slice(data, normalized_anchor=False, normalized_shape=False, output_type=types.RGB, **options)
        else:
            cut = fn.crop(fn.decoders.image(data, output_type=types.RGB), crop_h=height, crop_w=width, crop_pos_y=1.0)
        return normalised(fn.resize(cut, size=[256, 704], interp_type=types.INTERP_LINEAR, antialias=False))

    def padded(data: Any, columns: int) -> tuple[Any, Any]:
        rows = floats(data, [-1, columns])
        return fn.pad(rows, axes=[0]), fn.shapes(rows)

    if workload == "W1":
        image = fn.stack(*(camera(data, box) for data, box in zip(records, boxes, strict=False)))
        lidar, trajectory, calibration, rest = records[len(boxes) :]
        return image, *padded(lidar, 5), floats(trajectory, [100, 6]), floats(calibration, [-1, 25]), *padded(rest, 9)
    if workload == "W2":
        cut = fn.decoders.image_random_crop(
            records[0], random_area=[0.08, 1], random_aspect_ratio=[3 / 4, 4 / 3], output_type=types.RGB
        )
        cut = fn.resize(cut, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=False)
        return normalised(cut, mirror=fn.random.coin_flip()), fn.pad(records[1], axes=[0], fill_value=32)
    if workload == "W3":
        return floats(records[0], [100, 6]), fn.pad(records[1], axes=[0], fill_value=32)
    return padded(records[0], 5)


def _open(run: Run, *, threads: int, region: bool = True) -> Callable[[], Iterator[Any]]:
    import torch
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    paths = tars(run.packed)
    boxes = _boxes(paths[0]) if run.workload == "W1" else []

    @pipeline_def(batch_size=BATCH[run.workload], num_threads=threads, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        records = fn.readers.webdataset(
            paths=paths,
            index_paths=[str(Path(path).with_suffix(".idx")) for path in paths],
            ext=[*(f"cam{place}.jpg" for place in range(len(boxes))), *_MEMBERS[run.workload]],
            random_shuffle=True,
            initial_fill=SHUFFLE_BUFFER[run.workload],
            missing_component_behavior="error",
            name="reader",
        )
        return _graph(run.workload, list(records) if isinstance(records, list | tuple) else [records], boxes, region=region)

    built = pipeline()
    built.build()
    iterator = DALIGenericIterator(
        [built], _OUTPUTS[run.workload], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )

    def epoch() -> Iterator[Any]:
        for (batch,) in iterator:
            if "json" in batch:  # numbers lie in JSON text: parse them as a user must
                numbers = [json.loads(bytes(row)) for row in batch.pop("json").numpy()]
                batch |= {name: torch.tensor([each[name] for each in numbers]) for name in numbers[0]}
            yield batch

    return epoch


def _settings(workload: str) -> list[Setting]:
    return [{"threads": count} for count in (1, 2, 3)] + ([{"threads": 2, "region": False}] if workload == "W1" else [])


PEER = Peer(
    name="dali",
    requirements=("nvidia-dali-cuda120==2.4.0", "packaging<=26.3", "webdataset==1.0.2"),
    settings=_settings,
    pack=_pack,
    open=_open,
    note="CPU pipelines (no GPU here): its own decode and resize; no DCT scaling",
)
