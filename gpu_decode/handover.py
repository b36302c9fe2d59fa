"""Which images a device decoder gets, and what happens to the others: validated first, handed to the CPU when odd or refused.

A device decoder is fast on what cameras write: whole baseline or progressive JPEGs of 8 bits, grey or YCbCr. Everything else
(PNG, CMYK, arithmetic coding, 12 bits, stored RGB, damage of any kind) goes to the loader's CPU decoder in the same step, which
decodes it or says what is wrong; so no oddity can take its neighbours along, and statuses and messages mean the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import DecodeError
from ..formats.integrity import payload_hash
from ..formats.jpeg import scan
from ..loader.decode import BROKEN, MISMATCH, OK, Decoder, ImageJobs
from ..loader.native_decode import default_decoder

__all__ = ["Handover", "on_host", "store", "why_not"]

_STORED: Final = {"uint8": "uint8", "float16": "float16", "bfloat16": "uint16", "float32": "float32"}
"""What numpy holds each dtype of a look in."""


def why_not(data: memoryview | bytes, codec: str, *, progressive: bool = True) -> str:
    """Return why a device decoder should not get this image; "" if it should."""
    if codec != "jpeg":
        return f"codec {codec!r}"
    try:
        facts = scan(data)
    except DecodeError as error:
        return str(error)
    if facts.precision != 8:
        return f"{facts.precision} bits a sample"
    if facts.process not in (0, 1, 2):
        return "arithmetic coding" if facts.arithmetic else f"coding process {facts.process}"
    if facts.components not in (1, 3):
        return f"{facts.components} components"
    if facts.adobe_transform == 0 and facts.components == 3:
        return "stored as RGB"
    if facts.progressive and not progressive:
        return "progressive"
    if facts.junk_bytes or facts.trailing_bytes:
        return "bytes between or after its segments"
    return ""


@dataclass(slots=True)
class Counts:
    """What became of the images so far."""

    device: int = 0
    """Decoded by the device decoder."""
    odd: int = 0
    """Handed to the CPU before decoding."""
    refused: int = 0
    """Handed to the CPU because the device decoder failed on them."""
    rebuilt: int = 0
    """Times that a failure made the device decoder start anew."""


class Handover:
    """Splits jobs between a device decoder and the CPU, and puts the answers together."""

    def __init__(self, fallback: Decoder | None = None, *, progressive: bool = True) -> None:
        self.fallback = fallback or default_decoder()
        self.counts = Counts()
        self._progressive = progressive

    def run(self, jobs: ImageJobs, device: Callable[[ImageJobs, NDArray[np.intp]], NDArray[np.bool_]]) -> NDArray[np.int8]:
        """Decode all `jobs`; `device` decodes the chosen ones into their places and says of each whether it could."""
        status = np.full(len(jobs.data), OK, np.int8)
        chosen, others = list[int](), list[int]()
        for job, data in enumerate(jobs.data):
            if jobs.codecs[job] != "pixels" and payload_hash(data) != int(jobs.hashes[job]):
                status[job] = MISMATCH
            elif why_not(data, jobs.codecs[job], progressive=self._progressive):
                others.append(job)
            else:
                chosen.append(job)
        self.counts.odd += len(others)
        if chosen:
            picked = np.array(chosen, np.intp)
            done = device(jobs, picked)
            refused = picked[~done].tolist()
            self.counts.device += len(chosen) - len(refused)
            self.counts.refused += len(refused)
            others += refused
        if others:
            status[others] = on_host(self.fallback, jobs, others)
        return status


def on_host(decoder: Decoder, jobs: ImageJobs, chosen: list[int]) -> NDArray[np.int8]:
    """Have a CPU decoder do the chosen jobs, and return a status each; pictures for a device are made here and copied there."""
    stays = isinstance(jobs.out, torch.Tensor)
    rest = ImageJobs(
        data=[jobs.data[job] for job in chosen],
        hashes=jobs.hashes[chosen],
        codecs=[jobs.codecs[job] for job in chosen],
        affine=jobs.affine[chosen],
        out=np.zeros((len(chosen), *jobs.out.shape[1:]), _STORED[jobs.look.dtype]) if stays else jobs.out,
        index=np.arange(len(chosen)) if stays else jobs.index[chosen],
        look=jobs.look,
    )
    status = decoder.decode(rest)
    jobs.messages.update({chosen[at]: message for at, message in rest.messages.items()})
    if stays:
        for at in np.flatnonzero(status < BROKEN).tolist():
            bits = jobs.look.dtype == "bfloat16"
            made = torch.from_numpy(rest.out[at].view(np.int16)).view(torch.bfloat16) if bits else torch.from_numpy(rest.out[at])
            jobs.out[jobs.index[chosen[at]]].copy_(made)
    return status


def store(jobs: ImageJobs, job: int, picture: torch.Tensor) -> None:
    """Put a finished picture of the look's layout into its place; float32 is rounded to bfloat16 where that is asked for."""
    place = jobs.out[jobs.index[job]]
    if isinstance(place, torch.Tensor):
        place.copy_(picture)
    elif jobs.look.dtype == "bfloat16":
        place[...] = picture.to(torch.bfloat16).cpu().view(torch.int16).numpy().view(np.uint16)
    else:
        place[...] = picture.cpu().numpy()
