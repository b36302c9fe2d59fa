"""`headway bench decode`: do all decoders of this machine give the same picture, what does each hand on, and how fast are they.

Equality is against the portable decoder (libjpeg-turbo's own pixels) at the image's size, and at a training size with a crop.
Without files, pictures of every common coding are made. No figure of a GPU comes from here unless one was there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..formats import DecodeError
from ..formats.image_header import image_size
from ..formats.integrity import payload_hash
from ..gpu_decode import ResizeCropFlip, capabilities, choose_decoder
from ..gpu_decode.handover import why_not
from ..loader.decode import BROKEN, Decoder, ImageJobs, PortableDecoder
from ..loader.draws import key
from ..loader.images import Images
from .result import Value

__all__ = ["cost_of_policy", "find_images", "made_images", "measure_equality", "measure_speed", "usable_decoders"]

Row = dict[str, Value]
_SUFFIXES = (".jpg", ".jpeg", ".png", ".mpo")


def find_images(paths: Sequence[Path]) -> dict[str, bytes]:
    """Read the images at `paths`: files, and those below folders; names are relative to the folder given."""
    found: dict[str, bytes] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.suffix.lower() in _SUFFIXES)
            found.update({str(each.relative_to(path)): each.read_bytes() for each in files})
        else:
            found[path.name] = path.read_bytes()
    return found


def made_images(height: int = 360, width: int = 640) -> dict[str, bytes]:
    """Make one image of each coding that cameras and converters write."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 12, width // 12, 3), np.uint8)
    picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    made = {
        f"4:{name[1]}:{name[2]}": bytes(simplejpeg.encode_jpeg(picture, quality=90, colorsubsampling=name))
        for name in ("444", "422", "420", "440", "411")
    }
    made["grey"] = bytes(simplejpeg.encode_jpeg(picture[..., :1].copy(), quality=90, colorspace="GRAY"))
    for name, flag, value in (
        ("progressive", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        ("restart markers", cv2.IMWRITE_JPEG_RST_INTERVAL, 4),
    ):
        made[name] = bytes(cv2.imencode(".jpg", picture, [flag, value])[1])
    made["trailing bytes"] = made["4:2:0"] + bytes(100)
    made["cut"] = made["4:2:0"][: len(made["4:2:0"]) // 2]
    made["png"] = bytes(cv2.imencode(".png", picture)[1])
    return made


def usable_decoders() -> dict[str, Decoder]:
    """Make every decoder that works here."""
    names = [each.name for each in capabilities() if each.usable and each.name != "gpu"]
    return {name: choose_decoder(name) for name in names}


def measure_equality(images: dict[str, bytes], decoders: dict[str, Decoder], *, size: tuple[int, int]) -> list[Row]:
    """Return a row for each image, look and decoder: status, PSNR and largest error against the portable one, who decoded it."""
    rows: list[Row] = []
    for name, data in images.items():
        codec = "png" if data[:4] == b"\x89PNG" else "jpeg"
        try:
            width, height = image_size(data, codec)
        except DecodeError as error:
            rows.append({"image": name, "decoder": "all", "status": "refused", "why": str(error)})
            continue
        for look in (Images("*", size=(height, width)), Images("*", size=size)):
            assert look.size is not None
            label = "own size" if look.size == (height, width) else f"{size[0]}x{size[1]}"
            affine = look.affine(width, height)[:2]
            truth, picture, _ = _decoded(PortableDecoder(), data, codec, look, affine)
            for decoder_name, decoder in decoders.items():
                status, found, message = _decoded(decoder, data, codec, look, affine)
                on_device = decoder_name not in ("native", "portable")
                row: Row = {
                    "image": name,
                    "look": label,
                    "decoder": decoder_name,
                    "status": "ok" if status < BROKEN else "refused",
                    "agrees": (status < BROKEN) == (truth < BROKEN),
                    "handed_on": why_not(data, codec) if on_device else "",
                    "why": message,
                }
                if status < BROKEN and truth < BROKEN:
                    error_levels = np.abs(found.astype(np.float64) - picture)
                    mean_square = float((error_levels**2).mean())
                    row["psnr_db"] = round(10 * np.log10(255**2 / mean_square), 2) if mean_square else None
                    row["max_error"] = int(error_levels.max())
                rows.append(row)
    return rows


def measure_speed(
    images: dict[str, bytes], decoders: dict[str, Decoder], *, size: tuple[int, int], batch: int, repeats: int
) -> list[Row]:
    """Return images/s of each decoder over batches of the images that all decoders take, at the training size."""
    chosen = [data for data in images.values() if not why_not(data, "jpeg")]
    rows: list[Row] = []
    if not chosen:
        return rows
    look = Images("*", size=size)
    data = [chosen[at % len(chosen)] for at in range(batch)]
    affine = np.stack([look.affine(*image_size(each, "jpeg"))[:2] for each in data])
    for name, decoder in decoders.items():
        decoder.start(1)
        jobs = _jobs(data, ["jpeg"] * batch, look, affine)
        times = [_timed(decoder, jobs) for _ in range(repeats + 1)][1:]
        rows.append({"decoder": name, "batch": batch, "images_per_s": round(batch / min(times), 1), "threads": 1})
    return rows


def cost_of_policy(images: dict[str, bytes], *, size: tuple[int, int], repeats: int, decoder: str = "auto") -> list[Row]:
    """Return what the BEVDet-r50 policy adds to plain decoding of six images and a sweep; photometric distortion apart.

    Plain is the fitted crop with normalised float32 out. The policy draws an affine with rotation, and moves points and poses.
    """
    import torch

    from ..gpu_decode import PhotometricDistortion, Policy
    from ..gpu_decode.policy import RECIPES
    from ..loader.batch import Batch

    chosen = [data for data in images.values() if not why_not(data, "jpeg")]
    if not chosen:
        return []
    data = [chosen[at % len(chosen)] for at in range(6)]
    source = np.array([image_size(each, "jpeg") for each in data])
    look = Images("*", size=size, dtype="float32", mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
    fitted = np.stack([look.affine(*each) for each in source.tolist()])
    drawn = ResizeCropFlip().affines(fitted, source=source, target=size, keys=key(0, 0, np.arange(6), 0, "bench"))
    worker = choose_decoder(decoder)
    worker.start(1)
    eye = torch.eye(4, dtype=torch.float64)
    rng = np.random.default_rng(0)
    batch = Batch(
        LIDAR_TOP={
            "points": torch.from_numpy(rng.normal(scale=20, size=(34_000, 5)).astype(np.float32)),
            "offsets": torch.tensor([0, 34_000]),
            "columns": ["x", "y", "z", "intensity", "ring"],
            "coordinates": "sensor",
            "sensor_to_ego": eye[None, None],
            "ego_to_world": eye[None, None],
            "stamp": torch.zeros(1, 1, dtype=torch.int64),
            "mask": torch.ones(1, 1, dtype=torch.bool),
        },
        camera={
            "image": torch.from_numpy(rng.integers(0, 256, (1, 1, 6, 3, *size)).astype(np.uint8)),
            "sensor_to_ego": eye.expand(1, 1, 6, 4, 4),
            "ego_to_world": eye.expand(1, 1, 6, 4, 4),
            "mask": torch.ones(1, 1, 6, dtype=torch.bool),
        },
        valid=torch.ones(1, dtype=torch.bool),
        stamp=torch.zeros(1, dtype=torch.int64),
        state={"seed": 0},
        **{name: torch.tensor([value]) for name, value in {"id": 3, "replaced": -1, "occurrence": 0, "epoch": 0}.items()},
    )
    recipe = RECIPES["bevdet-r50"]
    scene = Policy(tuple(op for op in recipe.ops if not hasattr(op, "finish")))  # the decoder normalises
    colour = Policy((PhotometricDistortion(probability=1.0),))
    plain_jobs, drawn_jobs = (_jobs(data, ["jpeg"] * 6, look, affine[:, :2]) for affine in (fitted, drawn))
    times: dict[str, list[float]] = {"plain decode": [], "drawn affine": [], "scene": [], "photometric distortion": []}
    for _ in range(repeats + 1):  # in turn, so that a change of load meets all of them
        times["plain decode"].append(_timed(worker, plain_jobs))
        times["drawn affine"].append(_timed(worker, drawn_jobs))
        for name, policy in (("scene", scene), ("photometric distortion", colour)):
            started = time.perf_counter()
            policy.augment(batch)
            times[name].append(time.perf_counter() - started)
    best = {name: min(each[1:]) for name, each in times.items()}
    plain = best["plain decode"]
    total = best["drawn affine"] + best["scene"]
    rows: list[Row] = [{"what": name, "ms_a_sample": round(each * 1e3, 2)} for name, each in best.items()]
    rows.append(
        {"what": "bevdet-r50 over plain", "ms_a_sample": round(total * 1e3, 2), "share_over_plain": round(total / plain - 1, 3)}
    )
    return rows


def _jobs(data: Sequence[bytes], codecs: Sequence[str], look: Images, affine: NDArray[np.float64]) -> ImageJobs:
    assert look.size is not None
    return ImageJobs(
        data=[memoryview(each) for each in data],
        hashes=np.array([payload_hash(each) for each in data], np.uint64),
        codecs=codecs,
        affine=np.ascontiguousarray(affine),
        out=np.zeros((len(data), 3, *look.size), look.dtype),
        index=np.arange(len(data)),
        look=look,
    )


def _decoded(
    decoder: Decoder, data: bytes, codec: str, look: Images, affine: NDArray[np.float64]
) -> tuple[int, NDArray[Any], str]:  # Any: of the look's dtype
    jobs = _jobs([data], [codec], look, affine[None])
    status = int(decoder.decode(jobs)[0])
    return status, jobs.out[0], jobs.messages.get(0, "")


def _timed(decoder: Decoder, jobs: ImageJobs) -> float:
    started = time.perf_counter()
    decoder.decode(jobs)
    return time.perf_counter() - started
