"""`headway bench decode`: do all decoders of this machine give the same picture, what does each hand on, and how fast are they.

Equality is against the portable decoder (libjpeg-turbo's own pixels) at the image's size, and at a training size with a crop.
Without files, pictures of every common coding are made. No figure of a GPU comes from here unless one was there.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray

from ..formats import DecodeError
from ..formats.image_header import image_size
from ..formats.integrity import payload_hash
from ..gpu_decode import RECIPES, PhotometricDistortion, Policy, ResizeCropFlip, capabilities, choose_decoder
from ..gpu_decode.handover import why_not
from ..loader.batch import Batch
from ..loader.decode import BROKEN, Decoder, ImageJobs, PortableDecoder
from ..loader.draws import key
from ..loader.images import Images
from .result import Value
from .workloads import jpeg, workload

__all__ = [
    "camera_images",
    "cost_of_policy",
    "find_images",
    "made_images",
    "measure_equality",
    "measure_speed",
    "usable_decoders",
]

Row = dict[str, Value]
_SUFFIXES = (".jpg", ".jpeg", ".png", ".mpo")
_SAMPLES, _CAMERAS = 4, 6
_ARITHMETIC = b64decode(
    b"/9j/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYV"
    b"FSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAAgADADASIAAhEBAxEB/8wACgAQEAUB"
    b"EBEF/9oADAMBAAIRAxEAPwD/ALE84ejFXhnwVwiucGe28tOe/TKfcgf1ZGXJzjfqes7TiSEmIDuOheGoOEubb5ddU/rAcJp2yPZpgOjn/IKqRSmm"
    b"0VM9L9/ha73bqM9RrpsdfI8U/9k="
)
"""48 × 32, which no encoder among our dependencies can make."""


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
    """Make one image of each coding that cameras and converters write, and of those that decoders stumble over."""
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
    plain = made["4:2:0"]
    made["trailing bytes"] = plain + bytes(100)
    made["no end marker"] = plain[:-2]
    tables = plain.index(b"\xff\xdb")
    made["bytes between segments"] = plain[:tables] + b"\x55" * 5 + plain[tables:]
    tag = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    made["EXIF orientation"] = plain[:2] + b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag + plain[2:]
    made["16-bit tables"] = _with_wide_tables(plain)
    four = np.concatenate([picture, picture[..., :1]], -1)
    made["YCCK"] = bytes(simplejpeg.encode_jpeg(four, quality=90, colorspace="CMYK", colorsubsampling="444"))
    adobe = made["YCCK"].index(b"Adobe") + 11  # the byte that says how the four channels are to be read
    made["CMYK"] = made["YCCK"][:adobe] + b"\0" + made["YCCK"][adobe + 1 :]
    made["arithmetic"] = _ARITHMETIC
    frame = plain.index(b"\xff\xc0")
    made["12 bits"] = plain[: frame + 1] + b"\xc1" + plain[frame + 2 : frame + 4] + b"\x0c" + plain[frame + 5 :]
    made["cut"] = made["4:2:0"][: len(made["4:2:0"]) // 2]
    made["png"] = bytes(cv2.imencode(".png", picture)[1])
    return made


def _with_wide_tables(data: bytes) -> bytes:
    """Return a JPEG with its quantisation tables in 16 bits, as some encoders write them whatever they hold."""
    out, at = b"", 0
    while (found := data.find(b"\xff\xdb", at)) >= 0:
        end = found + 2 + int.from_bytes(data[found + 2 : found + 4], "big")
        tables = [data[start : start + 65] for start in range(found + 4, end, 65)]
        wide = b"".join(bytes([0x10 | each[0]]) + b"".join(b"\0" + each[k : k + 1] for k in range(1, 65)) for each in tables)
        out += data[at:found] + b"\xff\xdb" + (len(wide) + 2).to_bytes(2, "big") + wide
        at = end
    return out + data[at:]


def usable_decoders() -> dict[str, Decoder]:
    """Make every decoder that works here."""
    names = [each.name for each in capabilities() if each.usable and each.name not in ("gpu", "triton")]
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
        times = [_timed(partial(decoder.decode, jobs)) for _ in range(repeats + 1)][1:]
        rows.append({"decoder": name, "batch": batch, "images_per_s": round(batch / min(times), 1), "threads": 1})
    return rows


def camera_images() -> dict[str, bytes]:
    """Return the images of four samples of W1, 1600 × 900."""
    load = workload("W1")
    return {f"W1 {index}": jpeg(load, index) for index in range(_SAMPLES * _CAMERAS)}


def cost_of_policy(images: dict[str, bytes], *, size: tuple[int, int], repeats: int, decoder: str = "auto") -> list[Row]:
    """Return what the BEVDet-r50 policy adds to plain decoding of a batch of four samples; photometric distortion apart.

    A sample is six images and a sweep. Plain is the fitted crop with normalised float32 out. The policy draws an affine with
    rotation for each image, and moves points and poses. CPU seconds of one thread, medians of interleaved laps.
    """
    chosen = [data for data in images.values() if not why_not(data, "jpeg")]
    if not chosen:
        return []
    count = _SAMPLES * _CAMERAS
    data = [chosen[at % len(chosen)] for at in range(count)]
    source = np.array([image_size(each, "jpeg") for each in data])
    look = Images("*", size=size, dtype="float32", mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
    fitted = np.stack([look.affine(*each) for each in source.tolist()])
    drawn = ResizeCropFlip().affines(fitted, source=source, target=size, keys=key(0, 0, np.arange(count), 0, "bench"))
    worker = choose_decoder(decoder)
    worker.start(1)
    batch = _scene(size)
    recipe = RECIPES["bevdet-r50"]
    scene = Policy(tuple(op for op in recipe.ops if not hasattr(op, "finish")))  # the decoder normalises
    colour = Policy((PhotometricDistortion(probability=1.0),))
    plain_jobs, drawn_jobs = (_jobs(data, ["jpeg"] * count, look, affine[:, :2]) for affine in (fitted, drawn))
    work: dict[str, Callable[[], object]] = {
        "plain decode": partial(worker.decode, plain_jobs),
        "drawn affine": partial(worker.decode, drawn_jobs),
        "scene": partial(scene.augment, batch),
        "photometric distortion": partial(colour.augment, batch),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for each in work.values():
            each()
        # In turn, so that a change of load meets all of them.
        laps = [[_timed(each, time.process_time) for each in work.values()] for _ in range(repeats)]
    finally:
        torch.set_num_threads(threads)
    took = np.median(np.array(laps), 0) / _SAMPLES
    rows: list[Row] = [
        {"what": name, "ms_a_sample": round(float(each) * 1e3, 2)} for name, each in zip(work, took.tolist(), strict=True)
    ]
    plain, total = float(took[0]), float(took[1] + took[2])
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


def _scene(size: tuple[int, int]) -> Batch:
    """Return a batch as the loader gives it: a sweep of 34,000 points and six images a sample."""
    eye, rng = torch.eye(4, dtype=torch.float64), np.random.default_rng(0)
    points = 34_000
    return Batch(
        LIDAR_TOP={
            "points": torch.from_numpy(rng.normal(scale=20, size=(_SAMPLES * points, 5)).astype(np.float32)),
            "offsets": torch.arange(_SAMPLES + 1) * points,
            "columns": ["x", "y", "z", "intensity", "ring"],
            "coordinates": "sensor",
            "sensor_to_ego": eye.repeat(_SAMPLES, 1, 1, 1),
            "ego_to_world": eye.repeat(_SAMPLES, 1, 1, 1),
            "stamp": torch.zeros(_SAMPLES, 1, dtype=torch.int64),
            "mask": torch.ones(_SAMPLES, 1, dtype=torch.bool),
        },
        camera={
            "image": torch.from_numpy(rng.integers(0, 256, (_SAMPLES, 1, _CAMERAS, 3, *size)).astype(np.uint8)),
            "sensor_to_ego": eye.repeat(_SAMPLES, 1, _CAMERAS, 1, 1),
            "ego_to_world": eye.repeat(_SAMPLES, 1, _CAMERAS, 1, 1),
            "mask": torch.ones(_SAMPLES, 1, _CAMERAS, dtype=torch.bool),
        },
        valid=torch.ones(_SAMPLES, dtype=torch.bool),
        stamp=torch.zeros(_SAMPLES, dtype=torch.int64),
        state={"seed": 0},
        id=torch.arange(_SAMPLES),
        replaced=torch.full((_SAMPLES,), -1),
        occurrence=torch.zeros(_SAMPLES, dtype=torch.int64),
        epoch=torch.zeros(_SAMPLES, dtype=torch.int64),
    )


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started
