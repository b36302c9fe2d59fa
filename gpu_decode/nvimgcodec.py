"""nvImageCodec as a decoder: only the region that the affine shows is decoded, every image has its own status.

Without a driver it runs on the CPU only, into buffers that are given to it. What it decodes is resampled in torch, where it is.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import MissingExtra
from ..formats.image_header import image_size
from ..loader.decode import Decoder, ImageJobs
from .handover import Handover, store
from .resample import finish, resample
from .sampling import Sampling, sample

__all__ = ["NvImageCodecDecoder"]


class NvImageCodecDecoder:
    """Decodes through nvImageCodec; what it should not get or gives no picture of goes to the CPU decoder, image by image."""

    whole_step = True
    writes_tensors = True

    def __init__(self, *, device_id: int | None = None, threads: int = 1, fallback: Decoder | None = None) -> None:
        try:
            from nvidia import nvimgcodec
        except ImportError as error:
            raise MissingExtra("nvimgcodec", "decoding with nvImageCodec") from error
        self.name = "nvimgcodec-cpu" if device_id is None else f"nvimgcodec-gpu{device_id}"
        self._codec, self._device_id, self._threads = nvimgcodec, device_id, threads
        self._handover = Handover(fallback)
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def counts(self) -> Any:  # Any: handover.Counts, for reports
        """How many images were decoded here, handed over, refused."""
        return self._handover.counts

    def start(self, threads: int) -> None:
        """Use up to `threads` threads on the CPU; a GPU takes whole batches."""
        self._handover.fallback.start(threads)
        if self._pool is None and self._device_id is None and threads > 1:
            self._pool = ThreadPoolExecutor(threads, "headway-nvimgcodec")

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each."""
        return self._handover.run(jobs, self._device)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _device(self, jobs: ImageJobs, chosen: NDArray[np.intp]) -> NDArray[np.bool_]:
        spread = map if self._pool is None else self._pool.map
        return np.fromiter(spread(lambda job: self._one(jobs, int(job)), chosen), np.bool_, len(chosen))

    def _one(self, jobs: ImageJobs, job: int) -> bool:
        look = jobs.look
        assert look.size is not None
        sampling = sample(jobs.affine[job], source=image_size(jobs.data[job], jobs.codecs[job]), target=look.size)
        picture = self._slice(jobs.data[job], sampling)
        if picture is None:
            return False
        levels = resample(picture, sampling, target=look.size, fill=look.fill)
        dtype = "float32" if look.dtype == "bfloat16" else look.dtype
        done = finish(levels, mean=look.mean, std=look.std, dtype=dtype, layout=look.layout)
        store(jobs, job, done)
        return True

    def _slice(self, data: memoryview, sampling: Sampling) -> torch.Tensor | None:
        """Return the slice (h, w, 3), uint8, or None where it cannot be decoded."""
        codec = self._codec
        (top, left), (height, width) = sampling.start, sampling.shape
        try:
            stream = codec.CodeStream(np.frombuffer(data, np.uint8))
            part = stream.get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))
            if self._device_id is not None:
                image = self._decoder().decode(part)
                return None if image is None else torch.utils.dlpack.from_dlpack(image)
            # One by one into given memory: without it the CPU mode gives nothing, and batches fill stderr.
            room = np.empty((height, width, 3), np.uint8)
            image = self._decoder().decode(part, image=codec.as_image(room))
        except RuntimeError:  # "Failed to get image info": garbage
            return None
        return None if image is None else torch.from_numpy(room)

    def _decoder(self) -> Any:  # Any: nvImageCodec is untyped
        """Return this thread's decoder; they are not shared, because each holds the state of its own decodes."""
        made = getattr(self._local, "decoder", None)
        if made is None:
            device = self._codec.NVIMGCODEC_DEVICE_CPU_ONLY if self._device_id is None else self._device_id
            params = self._codec.DecodeParams(apply_exif_orientation=False, color_spec=self._codec.ColorSpec.SRGB)
            made = _Decode(self._codec.Decoder(device_id=device), params)
            self._local.decoder = made
        return made


class _Decode:
    """A decoder with its parameters; pixels stay as they are stored, whatever EXIF says."""

    def __init__(self, decoder: Any, params: Any) -> None:  # Any: nvImageCodec is untyped
        self._decoder, self._params = decoder, params

    def decode(self, stream: Any, **options: Any) -> Any:  # Any: nvImageCodec is untyped
        return self._decoder.decode(stream, params=self._params, **options)
