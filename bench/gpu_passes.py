"""What `headway bench gpu` shows of single passes: the fused kernel beside torch and DALI, the JPEG engine beside CUDA decoding.

A pass is compared with a plain copy on the same device, as the share of the copy's bandwidth that it reaches with the bytes it
must move. Where DALI is not installed its rows say so; nothing here is left out in silence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ..gpu_decode import Normalise
from ..gpu_decode.colour import run_pass
from ..gpu_decode.fused import fused_reference, resample_normalise
from ..gpu_decode.resample import resample
from ..gpu_decode.sampling import sample
from .result import Value

__all__ = ["measure_engines", "measure_passes"]

Row = dict[str, Value]
Timer = Callable[[Callable[[], object]], float]
"""Best seconds of some runs."""
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def measure_passes(device: torch.device, best: Timer, *, source: tuple[int, int], target: tuple[int, int]) -> Iterator[Row]:
    """Yield resampling and normalisation of decoded pictures of (height, width) to bf16: torch, torch.compile, Triton, DALI."""
    on_gpu = device.type == "cuda"
    images = 24 if on_gpu else 2
    pictures = torch.randint(0, 256, (images, *source, 3), dtype=torch.uint8, device=device)
    block = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    bandwidth = 2 * block.nbytes / best(lambda: block.clone())
    scale = target[1] / source[1]
    affine = np.array([[scale, 0, 0], [0, scale, max(target[0] - scale * source[0], -scale * source[0] / 2)]])
    back = np.linalg.inv(np.vstack([affine, [0, 0, 1]]))[:2]
    inverse = torch.from_numpy(np.repeat(back[None], images, 0)).float().to(device)
    sampling = sample(affine, source=source[::-1], target=target)
    (top, left), (height, width) = sampling.start, sampling.shape
    pieces = pictures[:, top : top + height, left : left + width]
    levels = torch.randint(0, 256, (images, 3, *target), dtype=torch.uint8, device=device)
    area = 3 * target[0] * target[1]
    read, written = pieces[0].nbytes, 2 * area
    options: dict[str, Any] = {"target": target, "mean": _MEAN, "std": _STD, "taps": 2}  # Any: resample_normalise's
    work: list[tuple[str, Callable[[], object], int]] = [
        (
            "resample (torch)",
            lambda: [resample(piece, sampling, target=target, fill=0) for piece in pieces],
            images * (read + 4 * area),
        ),
        ("normalise to bf16 (torch)", lambda: run_pass(levels, [], Normalise(dtype="bfloat16")), 3 * levels.nbytes),
        ("both (torch, as the fused kernel)", partial(fused_reference, pictures, inverse, **options), images * (read + written)),
    ]
    if on_gpu:
        compiled = torch.compile(partial(fused_reference, **options))
        work += [
            ("both (torch.compile)", partial(compiled, pictures, inverse), images * (read + written)),
            ("both (fused, Triton)", partial(resample_normalise, pictures, inverse, **options), images * (read + written)),
        ]
    dali = _dali_pass(pictures, target, affine)
    if dali is None:
        yield {"what": "passes", "pass": "both (DALI)", "why_not": "DALI is not installed"}
    else:
        work.append(("both (DALI)", dali, images * (read + written)))
    for name, run, moved in work:
        wall = best(run)
        yield {
            "what": "passes",
            "pass": name,
            "images": images,
            "ms": round(wall * 1e3, 3),
            "share_of_bandwidth": round(moved / wall / bandwidth, 3),
        }


def measure_engines(device: torch.device, best: Timer, data: Sequence[bytes], *, batches: Sequence[int]) -> Iterator[Row]:
    """Yield whole pictures a second through DALI with all, none and its usual part of them on the hardware JPEG engine."""
    loads = (0.0, 0.65, 1.0) if device.type == "cuda" else (None,)
    for load in loads:
        engine = "CPU" if load is None else f"{load:.0%} hardware engine"
        for batch in batches:
            encoded = [np.frombuffer(data[at % len(data)], np.uint8) for at in range(batch)]
            run = _dali_decode(encoded, load)
            if run is None:
                yield {"what": "decode engines", "engine": engine, "why_not": "DALI is not installed"}
                return
            yield {"what": "decode engines", "engine": engine, "batch": batch, "images_per_s": round(batch / best(run), 1)}


def _dali() -> Any:  # Any: DALI is untyped
    try:
        return importlib.import_module("nvidia.dali")
    except ImportError:
        return None


def _dali_decode(encoded: list[Any], load: float | None) -> Callable[[], object] | None:  # Any: uint8 arrays
    dali = _dali()
    if dali is None:
        return None
    fn, types = dali.fn, dali.types
    pipe = dali.Pipeline(batch_size=len(encoded), num_threads=4, device_id=None if load is None else 0, prefetch_queue_depth=1)
    with pipe:
        source = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
        where = {"device": "cpu"} if load is None else {"device": "mixed", "hw_decoder_load": load}
        pipe.set_outputs(fn.decoders.image(source, output_type=types.RGB, adjust_orientation=False, **where))
    pipe.build()
    return partial(pipe.run, encoded=encoded)


def _dali_pass(
    pictures: torch.Tensor, target: tuple[int, int], affine: np.ndarray[Any, np.dtype[np.float64]]
) -> Callable[[], object] | None:
    dali = _dali()
    if dali is None:
        return None
    fn, types = dali.fn, dali.types
    on_gpu = pictures.device.type == "cuda"
    height, width = pictures.shape[1:3]
    top, bottom = (min(max(float((edge - affine[1, 2]) / affine[1, 1]), 0.0), float(height)) for edge in (0, target[0]))
    pipe = dali.Pipeline(batch_size=len(pictures), num_threads=4, device_id=0 if on_gpu else None, prefetch_queue_depth=1)
    with pipe:
        source = fn.external_source(name="pictures", dtype=types.UINT8, ndim=3, layout="HWC", device="gpu" if on_gpu else "cpu")
        small = fn.resize(
            source,
            size=target,
            roi_start=(top, 0.0),
            roi_end=(bottom, float(width)),
            roi_relative=False,
            interp_type=types.INTERP_TRIANGULAR,
            antialias=True,
        )
        pipe.set_outputs(
            fn.crop_mirror_normalize(small, dtype=types.FLOAT16, output_layout="CHW", mean=list(_MEAN), std=list(_STD))
        )
    pipe.build()
    fed = pictures if on_gpu else list(pictures.numpy())
    return partial(pipe.run, pictures=fed)
