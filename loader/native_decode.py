"""The native core as a decoder: all JPEGs of a step in one call, hashes included, spread over its own threads."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats import kernel
from .decode import OK, Decoder, ImageJobs, PortableDecoder
from .images import Images

__all__ = ["NativeDecoder", "default_decoder"]

_SLICE_S: Final = 1.0  # so that Ctrl-C is answered


class NativeDecoder:
    """Decodes JPEGs through `formats.kernel`; what it cannot (PNG) goes through the portable decoder.

    The native threads belong to the process; with none, whoever calls does the work without the interpreter lock.
    """

    name = "native"
    whole_step = True

    def __init__(self) -> None:
        self._portable = PortableDecoder()

    def start(self, threads: int) -> None:
        """Have at least `threads` native threads; other loaders of the process share them."""
        if kernel.threads() < threads:
            kernel.set_threads(threads)

    def resize(self, threads: int) -> None:
        """Have so many native threads from now on, for all loaders of the process."""
        kernel.set_threads(threads)

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each."""
        is_jpeg = np.array([codec == "jpeg" for codec in jobs.codecs], np.bool_)
        status = np.zeros(len(jobs.data), np.int8)
        step = self._submit(jobs, np.flatnonzero(is_jpeg)) if is_jpeg.any() else None
        others = np.flatnonzero(~is_jpeg)
        if len(others):
            rest = _select(jobs, others)
            status[others] = self._portable.decode(rest)
            jobs.messages.update({int(others[job]): message for job, message in rest.messages.items()})
        if step is not None:
            while not step.wait(_SLICE_S):
                pass
            for place, job in enumerate(np.flatnonzero(is_jpeg).tolist()):
                status[job] = step.status[place]
                if step.status[place] != OK:
                    jobs.messages[job] = step.message(place)
        return status

    def _submit(self, jobs: ImageJobs, chosen: NDArray[np.intp]) -> kernel.Step:
        images = kernel.image_jobs(len(chosen))
        data = [jobs.data[job] for job in chosen.tolist()]
        images["data"], images["length"] = kernel.addresses(data)
        images["hash"], images["flags"] = jobs.hashes[chosen], kernel.CHECK_HASH
        images["affine"] = jobs.affine[chosen]
        start = kernel.address(jobs.out)
        images["out"] = (start + jobs.index[chosen] * jobs.out.strides[0]).astype(np.uint64)
        return kernel.submit([_target(jobs.look)], images, keep=(data, jobs.out))


def default_decoder() -> Decoder:
    """Return the fastest decoder that this installation has."""
    return NativeDecoder() if kernel.available() else PortableDecoder()


@lru_cache(maxsize=64)
def _target(look: Images) -> kernel.Target:
    assert look.size is not None
    assert look.dtype != "source", "the source's numbers are PlaneField's to decode"
    height, width = look.size
    mean, std = (look.mean[0], look.mean[1], look.mean[2]), (look.std[0], look.std[1], look.std[2])
    pad = (float(look.fill),) * 3
    return kernel.Target(width=width, height=height, layout=look.layout, dtype=look.dtype, mean=mean, std=std, pad=pad)


def _select(jobs: ImageJobs, chosen: NDArray[np.intp]) -> ImageJobs:
    return ImageJobs(
        data=[jobs.data[job] for job in chosen.tolist()],
        hashes=jobs.hashes[chosen],
        codecs=[jobs.codecs[job] for job in chosen.tolist()],
        affine=jobs.affine[chosen],
        out=jobs.out,
        index=jobs.index[chosen],
        look=jobs.look,
    )
