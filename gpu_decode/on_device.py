"""A decoder whose pictures stay on a device, so that the loader's batches hold them there and no host copy is made.

It wraps another: one that writes tensors (DALI, nvImageCodec, torchvision) decodes straight into the batch; a CPU decoder's
pictures are copied over. Jobs, statuses, order and shapes are the loader's, as with any decoder. Memory of pictures is torch's
and not part of `LoaderOptions.memory_bytes`: the batches made ahead lie on the device.
"""

from __future__ import annotations

import threading
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import UsageError
from ..loader.decode import Decoder, ImageJobs
from .handover import on_host

__all__ = ["OnDevice"]


class OnDevice:
    """Hands the loader memory on `device`, and has `decoder` fill it.

    On CUDA each thread decodes on a stream of its own, which first waits for what was queued on the default stream: the memory
    may be that of a batch which kernels there still read. A batch is handed out when its pictures are done.

    >>> from headway.loader.decode import PortableDecoder
    >>> OnDevice(PortableDecoder(), "cpu").zeros((1, 3, 2, 2), "bfloat16").dtype
    torch.bfloat16
    """

    def __init__(self, decoder: Decoder, device: torch.device | str) -> None:
        self._decoder, self.device = decoder, torch.device(device)
        self.name, self.whole_step = f"{decoder.name} on {self.device}", decoder.whole_step
        self._local = threading.local()

    def __reduce__(self) -> Never:
        raise UsageError(
            f"decoder {self.name!r} cannot go to another process: a device belongs to the process that trains. Transforms that "
            "run in feeder processes need a decoder without a device; leave transforms out, or move batches with DeviceBatches"
        )

    @property
    def counts(self) -> Any:  # Any: handover.Counts, or None where the decoder counts nothing
        """What became of the images so far."""
        return getattr(self._decoder, "counts", None)

    def start(self, threads: int) -> None:
        """Start the decoder."""
        self._decoder.start(threads)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """Return zeroed memory on the device."""
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place on the device and return a status each, the pictures being there."""
        if self.device.type != "cuda":
            return self._fill(jobs)
        if not hasattr(self._local, "stream"):
            self._local.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        stream: Any = self._local.stream  # Any: torch.cuda.Stream, whose methods are untyped
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream(self.device))
            status = self._fill(jobs)
        stream.synchronize()
        return status

    def _fill(self, jobs: ImageJobs) -> NDArray[np.int8]:
        if getattr(self._decoder, "writes_tensors", False):
            return self._decoder.decode(jobs)
        return on_host(self._decoder, jobs, list(range(len(jobs.data))))
