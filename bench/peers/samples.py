"""What every peer starts from and must deliver: stored samples, the shared per-sample work, collation, and the check.

Peers that run Python per sample share `prepare`: simplejpeg (DCT-scaled where the target allows), OpenCV's linear resize,
numpy. So their results differ by their machinery only. Batches are dicts of CPU tensors:

    W1  "image" float32 (4, cameras, 3, 256, 704), "lidar" and "boxes" padded with "lidar_count" and "boxes_count", "trajectory",
        "calibration"
    W2  "image" float32 (64, 3, 224, 224), "label"
    W3  "trajectory" float32 (256, 100, 6), "speed", "stamp", "command"
    W4  "lidar" padded with "lidar_count"
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BATCH",
    "MEAN",
    "STD",
    "FileSamples",
    "MapDataset",
    "Samples",
    "Stored",
    "as_sweep",
    "check",
    "collate",
    "crop_box",
    "kept_box",
    "one_thread",
    "prepare",
    "shuffled_batches",
    "w3_batch",
]

Sample = dict[str, Any]  # bytes, arrays and numbers, by workload
Batch = dict[str, Any]

BATCH: Final[Mapping[str, int]] = {"W1": 4, "W2": 64, "W3": 256, "W4": 4}
MEAN: Final = np.array([123.675, 116.28, 103.53], np.float32)
STD: Final = np.array([58.395, 57.12, 57.375], np.float32)
_TARGET: Final = (256, 704)
_SMALL: Final = ("trajectory", "calibration", "speed", "stamp", "command", "label")


class Stored:
    """A workload as `headway bench make-data` writes it: one item a sample."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parameters: dict[str, Any] = json.loads((directory / "workload.json").read_text("utf-8"))
        self.name = str(self.parameters["name"])
        with np.load(directory / "columns.npz", allow_pickle=False) as stored:
            self.columns: dict[str, NDArray[Any]] = {name: stored[name] for name in stored.files}

    def __len__(self) -> int:
        return int(self.parameters["samples"])

    def image(self, index: int) -> bytes:
        """Return distinct image `index`."""
        return (self.directory / "images" / f"{index:06d}.jpg").read_bytes()

    def sweep(self, index: int) -> NDArray[np.float32]:
        """Return distinct sweep `index`."""
        return np.fromfile(self.directory / "sweeps" / f"{index:06d}.bin", np.float32).reshape(-1, 5)

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index`; images as bytes under cam0, cam1, …"""
        sample: Sample = {}
        if "images" in self.columns:
            sample |= {f"cam{place}": self.image(int(image)) for place, image in enumerate(self.columns["images"][index])}
        if "sweep" in self.columns:
            sample["lidar"] = self.sweep(int(self.columns["sweep"][index]))
        if "boxes" in self.columns:
            starts = self.columns["box_starts"]
            sample["boxes"] = self.columns["boxes"][starts[index] : starts[index + 1]]
        for name in _SMALL:
            if name in self.columns:
                value = self.columns[name][index]
                sample[name] = value if value.ndim else value.item()
        return sample


class FileSamples:
    """The files a torch user would have: one JPEG or sweep a file and sample, small values in memory-mapped arrays."""

    def __init__(self, packed: Path, workload: str) -> None:
        self.directory, self.workload = packed, workload
        self.small = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(packed.glob("*.npy"))}
        about = json.loads((packed / "count.json").read_text())
        self.count, self.cameras = int(about["samples"]), int(about["cameras"])

    @staticmethod
    def write(stored: Stored, packed: Path) -> None:
        """Lay a workload out as such files."""
        packed.mkdir(parents=True, exist_ok=True)
        for index in range(len(stored)):
            sample = stored[index] if stored.name != "W3" else {}
            for name, value in sample.items():
                if isinstance(value, bytes):
                    (packed / f"{index:06d}_{name}.jpg").write_bytes(value)
                elif name == "lidar":
                    value.tofile(packed / f"{index:06d}.bin")
        for name in (*_SMALL, "boxes", "box_starts"):
            if name in stored.columns:
                np.save(packed / f"{name}.npy", stored.columns[name])
        cameras = stored.columns["images"].shape[1] if "images" in stored.columns else 0
        (packed / "count.json").write_text(json.dumps({"samples": len(stored), "cameras": cameras}))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = {}
        for camera in range(self.cameras):
            sample[f"cam{camera}"] = (self.directory / f"{index:06d}_cam{camera}.jpg").read_bytes()
        if self.workload in ("W1", "W4"):
            sample["lidar"] = np.fromfile(self.directory / f"{index:06d}.bin", np.float32)
        if "boxes" in self.small:
            starts = self.small["box_starts"]
            sample["boxes"] = self.small["boxes"][starts[index] : starts[index + 1]]
        for name in _SMALL:
            if name in self.small:
                sample[name] = self.small[name][index]
        return sample


Samples = Stored | FileSamples


class MapDataset:
    """A map-style dataset of prepared samples."""

    def __init__(self, samples: Any, workload: str, *, scaled: bool = True) -> None:  # Any: whatever has len and []
        self.samples, self._prepare = samples, prepare(workload, scaled=scaled)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self._prepare(self.samples[int(index)])


def one_thread(_: int = 0) -> None:
    """Keep libraries from starting threads of their own in each worker."""
    import cv2
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def decode(data: bytes, *, width: int, height: int, scaled: bool) -> NDArray[np.uint8]:
    """Decode a JPEG to RGB; with `scaled`, at a power-of-two fraction that is still at least `width` × `height`."""
    import simplejpeg

    smallest = {"min_width": width, "min_height": height, "min_factor": 1} if scaled else {}
    picture: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colorspace="RGB", **smallest)
    return picture


def normalise(picture: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Write (H, W, 3) levels as (3, H, W) normalised values."""
    for channel in range(3):
        np.multiply(picture[..., channel], 1 / STD[channel], out=out[channel])
        out[channel] -= MEAN[channel] / STD[channel]


def kept_box(height: int, width: int, *, of: tuple[int, int] | None = None) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of what fills 256 × 704 without stretching: the bottom, sideways the middle.

    `of` is the size that the picture was decoded at, where that is not its own. W1 keeps 582 of its 900 rows.
    """
    scale = max(_TARGET[0] / height, _TARGET[1] / width)
    found_height, found_width = of or (height, width)
    rows = min(found_height, round(_TARGET[0] / scale * found_height / height))
    columns = min(found_width, round(_TARGET[1] / scale * found_width / width))
    return found_height - rows, (found_width - columns) // 2, rows, columns


def camera(data: bytes, out: NDArray[np.float32], *, scaled: bool = True) -> None:
    """Decode one W1 camera: the bottom rows, resized to (3, 256, 704), normalised."""
    import cv2
    import simplejpeg

    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    scale = max(_TARGET[0] / height, _TARGET[1] / width)
    picture = decode(data, width=round(scale * width), height=round(scale * height), scaled=scaled)
    top, left, rows, columns = kept_box(height, width, of=(picture.shape[0], picture.shape[1]))
    kept = picture[top : top + rows, left : left + columns]
    normalise(cv2.resize(kept, _TARGET[::-1], interpolation=cv2.INTER_LINEAR), out)


def crop_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw a random resized crop (top, left, height, width): 8–100 % of the area, aspect 3:4 to 4:3, ten tries."""
    for _ in range(10):
        area, aspect = height * width * random.uniform(0.08, 1), float(np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3))))
        crop_width, crop_height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return random.randint(0, height - crop_height), random.randint(0, width - crop_width), crop_height, crop_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def picture(data: bytes, out: NDArray[np.float32]) -> None:
    """Decode one W2 picture: a random resized crop to (3, 224, 224), flipped half the time, normalised."""
    import cv2

    whole = decode(data, width=0, height=0, scaled=False)
    top, left, height, width = crop_box(whole.shape[0], whole.shape[1])
    cut = cv2.resize(whole[top : top + height, left : left + width], (224, 224), interpolation=cv2.INTER_LINEAR)
    normalise(cut[:, ::-1] if random.random() < 0.5 else cut, out)


def as_sweep(value: Any) -> NDArray[np.float32]:
    """View a sweep, stored as bytes or a flat array, as (N, 5)."""
    if isinstance(value, bytes | memoryview):
        value = np.frombuffer(value, np.float32)
    return np.asarray(value, np.float32).reshape(-1, 5)


def prepare(workload: str, *, scaled: bool = True) -> Callable[[Sample], Sample]:
    """Return the per-sample work of a workload: stored values in, what `collate` takes out."""

    def w1(sample: Sample) -> Sample:
        eyes = sum(name.startswith("cam") for name in sample)
        image = np.empty((eyes, 3, *_TARGET), np.float32)
        for place in range(eyes):
            camera(sample[f"cam{place}"], image[place], scaled=scaled)
        return {
            "image": image,
            "lidar": as_sweep(sample["lidar"]),
            "trajectory": np.asarray(sample["trajectory"], np.float32).reshape(100, 6),
            "calibration": np.asarray(sample["calibration"], np.float32).reshape(-1, 25),
            "boxes": np.asarray(sample["boxes"], np.float32).reshape(-1, 9),
        }

    def w2(sample: Sample) -> Sample:
        image = np.empty((3, 224, 224), np.float32)
        picture(sample["cam0"], image)
        return {"image": image, "label": int(sample["label"])}

    def w3(sample: Sample) -> Sample:
        return {
            "trajectory": np.asarray(sample["trajectory"], np.float32).reshape(100, 6),
            "speed": float(sample["speed"]),
            "stamp": int(sample["stamp"]),
            "command": int(sample["command"]),
        }

    def w4(sample: Sample) -> Sample:
        return {"lidar": as_sweep(sample["lidar"])}

    return {"W1": w1, "W2": w2, "W3": w3, "W4": w4}[workload]


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack prepared samples into tensors; sweeps and boxes are padded, with their counts beside them."""
    import torch

    batch: Batch = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if name in ("lidar", "boxes"):
            padded = torch.zeros((len(values), max(map(len, values)), first.shape[1]))
            view = padded.numpy()
            for place, value in enumerate(values):
                view[place, : len(value)] = value
            batch[name], batch[f"{name}_count"] = padded, torch.tensor([len(value) for value in values])
        elif isinstance(first, np.ndarray):
            stacked = torch.empty((len(values), *first.shape), dtype=torch.float32)
            view = stacked.numpy()
            for place, value in enumerate(values):
                view[place] = value
            batch[name] = stacked
        else:
            batch[name] = torch.tensor(values)
    return batch


def w3_batch(small: Mapping[str, NDArray[Any]], index: NDArray[np.int64]) -> Batch:
    """Gather a W3 batch from memory-mapped arrays, one take a column."""
    import torch

    return {
        name: torch.from_numpy(np.ascontiguousarray(small[name][index])) for name in ("trajectory", "speed", "stamp", "command")
    }


def shuffled_batches(count: int, batch: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the index batches of one shuffled epoch, the short last one left out."""
    order = np.random.default_rng(seed).permutation(count)
    return [order[start : start + batch] for start in range(0, count - batch + 1, batch)]


def check(workload: str, batch: Mapping[str, Any]) -> None:
    """Raise unless a batch is what a trainer of this workload needs."""
    size, found = BATCH[workload], {name: tuple(value.shape) for name, value in batch.items() if hasattr(value, "shape")}
    problems = []
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "W1": {"image": (size, *found.get("image", ())[1:2], 3, *_TARGET), "trajectory": (size, 100, 6)},
        "W2": {"image": (size, 3, 224, 224)},
        "W3": {"trajectory": (size, 100, 6)},
    }
    for name, shape in shapes.get(workload, {}).items():
        if found.get(name) != shape or str(batch[name].dtype) != "torch.float32":
            problems.append(f"{name} is {found.get(name)}, expected float32 {shape}")
    if workload in ("W1", "W2") and not problems and not 0.3 < float(batch["image"].std()) < 3:
        problems.append("image does not look normalised")
    if workload in ("W1", "W4"):
        lidar = found.get("lidar", ())
        # Packed (end to end, with offsets) or padded (with counts): both are what models take.
        packed = len(lidar) == 2 and lidar[1] == 5 and found.get("lidar_offsets") == (size + 1,)
        padded = len(lidar) == 3 and lidar[0] == size and lidar[2] == 5
        if not (packed or padded) or not float(batch["lidar"][0].abs().sum()):
            problems.append(f"lidar is {lidar}, expected ({size}, N, 5), or (N, 5) with {size + 1} offsets, with points")
    if problems:
        raise ValueError(f"not a batch of {workload}: {'; '.join(problems)}")
