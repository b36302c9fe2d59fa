"""torchvision's CUDA JPEG decoder (nvJPEG) as a decoder: whole pictures on the device, resampled there in torch.

Not run anywhere yet: it needs a CUDA build of torchvision and a GPU. It has no region decode and no per-image status: a failed
batch is decoded again one by one.
"""

from __future__ import annotations

import importlib

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import MissingExtra, UsageError
from ..formats.image_header import image_size
from ..loader.decode import Decoder, ImageJobs
from .handover import Handover, store
from .resample import finish, resample
from .sampling import Sampling, sample

__all__ = ["TorchvisionDecoder"]


class TorchvisionDecoder:
    """Decodes baseline JPEGs through torchvision on a GPU; everything else goes to the CPU decoder."""

    name = "torchvision-cuda"
    whole_step = True
    writes_tensors = True

    def __init__(self, *, device_id: int = 0, fallback: Decoder | None = None) -> None:
        if not torch.cuda.is_available():
            raise UsageError("decoding with torchvision on CUDA needs a GPU, and torch sees none; use another decoder")
        try:
            # By name: torchvision is no dependency, and has no types to check against.
            io = importlib.import_module("torchvision.io")
        except (ImportError, RuntimeError) as error:  # RuntimeError: a CPU build beside a CUDA torch, or the reverse
            raise MissingExtra("torchvision", "decoding with torchvision on CUDA") from error
        self._decode_jpeg, self._mode = io.decode_jpeg, io.ImageReadMode.RGB
        self._device = torch.device("cuda", device_id)
        self._handover = Handover(fallback, progressive=False)

    def start(self, threads: int) -> None:
        """Start the CPU decoder's threads; the GPU needs none."""
        self._handover.fallback.start(threads)

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each."""
        return self._handover.run(jobs, self._on_device)

    def _on_device(self, jobs: ImageJobs, chosen: NDArray[np.intp]) -> NDArray[np.bool_]:
        look = jobs.look
        assert look.size is not None
        data = [torch.frombuffer(bytearray(jobs.data[job]), dtype=torch.uint8) for job in chosen.tolist()]
        pictures: list[torch.Tensor | None]
        try:
            pictures = list(self._decode_jpeg(data, mode=self._mode, device=self._device))
        except RuntimeError:
            pictures = [self._alone(each) for each in data]
        for job, picture in zip(chosen.tolist(), pictures, strict=True):
            if picture is None:
                continue
            sampling = sample(jobs.affine[job], source=image_size(jobs.data[job], "jpeg"), target=look.size)
            levels = resample(_cut(picture, sampling), sampling, target=look.size, fill=look.fill)
            dtype = "float32" if look.dtype == "bfloat16" else look.dtype
            done = finish(levels, mean=look.mean, std=look.std, dtype=dtype, layout=look.layout)
            store(jobs, job, done)
        return np.array([picture is not None for picture in pictures], np.bool_)

    def _alone(self, data: torch.Tensor) -> torch.Tensor | None:
        try:
            (picture,) = self._decode_jpeg([data], mode=self._mode, device=self._device)
        except RuntimeError:
            return None
        return torch.as_tensor(picture)


def _cut(picture: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the slice (h, w, 3) of a picture (3, H, W)."""
    (top, left), (height, width) = sampling.start, sampling.shape
    return picture[:, top : top + height, left : left + width].permute(1, 2, 0)
