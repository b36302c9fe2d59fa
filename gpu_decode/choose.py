"""Which decoder this machine can use: each is tried, the reason why not is kept, and nothing fails at import.

`capabilities` lists them for reports; `choose_decoder` makes one by name, or the best of those that work.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch

from ..formats import HeadwayError, UsageError, kernel
from ..loader.decode import Decoder, PortableDecoder
from ..loader.native_decode import NativeDecoder
from .on_device import OnDevice

__all__ = ["Capability", "capabilities", "choose_decoder"]


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing this machine can or cannot do."""

    name: str
    usable: bool
    why: str
    """What it is, or why it is not usable and what would make it so."""


def choose_decoder(name: str = "auto", *, device_id: int = 0, deliver: str = "host") -> Decoder:
    """Return a decoder for `DataLoader(decoder=…)`: by name, or "auto": a GPU's if there is one, else the CPU's fastest.

    The log says what "auto" picked. A decoder that is named but not usable here raises, with the reason. With `deliver`, a torch
    device such as "cuda", the batches' images stay there; everything else in a batch is the host's, for `DeviceBatches` to move.

    >>> choose_decoder("portable").name
    'portable'
    """
    if deliver != "host":
        return OnDevice(choose_decoder(name, device_id=device_id), deliver)
    if name == "auto":
        found = {each.name: each for each in capabilities()}
        picked = next(each for each in _PREFERRED if found[each].usable)
        logging.getLogger("headway").info("decoder 'auto' is %r (%s)", picked, found[picked].why)
        return _MAKERS[picked](device_id)
    if name not in _MAKERS:
        raise UsageError(f"there is no decoder {name!r}; there are auto, {', '.join(_MAKERS)}")
    usable = next(each for each in capabilities() if each.name == name)
    if not usable.usable:
        raise UsageError(f"decoder {name!r} is not usable here: {usable.why}; 'auto' picks one that is")
    return _MAKERS[name](device_id)


@lru_cache(maxsize=1)
def capabilities() -> tuple[Capability, ...]:
    """Return what this machine can decode and transfer with, and for each that it cannot, why. Probed once a process."""
    gpu = _gpu()
    rows = [Capability("gpu", not gpu, gpu or torch.cuda.get_device_name(0))]
    for name, package, extra in (("dali", "nvidia.dali", "dali"), ("nvimgcodec", "nvidia.nvimgcodec", "nvimgcodec")):
        missing = "" if _installed(package) else f"not installed: pip install 'headway[{extra}]'"
        rows.append(Capability(f"{name}-gpu", not (gpu or missing), missing or gpu or f"{package} on the GPU"))
        reason = missing or _tried(f"{name}-cpu")
        rows.append(Capability(f"{name}-cpu", not reason, reason or f"{package} without a GPU; slower than 'native'"))
    missing = "" if _installed("torchvision") else "not installed: pip install torchvision, a CUDA build"
    rows.append(Capability("torchvision-cuda", not (gpu or missing), missing or gpu or "nvJPEG through torchvision"))
    rows.append(_triton(gpu))
    core = "" if kernel.available() else "the native core is not built; reinstall headway with a compiler and libjpeg"
    rows.append(Capability("native", not core, core or "libjpeg-turbo in threads of our own"))
    rows.append(Capability("portable", True, "simplejpeg and OpenCV"))
    return tuple(rows)


def _gpu() -> str:
    """Return why there is no GPU to use, or ""."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device: no driver, or none visible"


def _triton(gpu: str) -> Capability:
    """Return what the fused resampling kernel can be run with; it is no decoder."""
    if not _installed("triton"):
        return Capability("triton", False, "not installed: pip install 'headway[triton]'; plain torch does the same")
    if gpu:
        return Capability("triton", False, f"{gpu}; plain torch does the same")
    from .fused import kernel as fused_kernel

    try:
        fused_kernel()
    except (HeadwayError, ImportError, OSError, RuntimeError) as error:
        return Capability("triton", False, f"{type(error).__name__}: {error}; plain torch does the same")
    return Capability("triton", True, "resampling and normalisation in one kernel")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent is missing
        return False


def _tried(name: str) -> str:
    """Return what was said when a decoder was made, or ""."""
    try:
        # nvImageCodec warns on stderr that there is no driver, which is why it is asked for its CPU mode.
        with contextlib.redirect_stderr(io.StringIO()):
            _MAKERS[name](0)
    except (HeadwayError, ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _dali(device_id: int | None) -> Decoder:
    from .dali import DaliDecoder

    return DaliDecoder(device_id=device_id)


def _nvimgcodec(device_id: int | None) -> Decoder:
    from .nvimgcodec import NvImageCodecDecoder

    return NvImageCodecDecoder(device_id=device_id)


def _torchvision(device_id: int) -> Decoder:
    from .torchvision_cuda import TorchvisionDecoder

    return TorchvisionDecoder(device_id=device_id)


_MAKERS: Final[Mapping[str, Callable[[int], Decoder]]] = {
    "dali-gpu": _dali,
    "nvimgcodec-gpu": _nvimgcodec,
    "torchvision-cuda": _torchvision,
    "dali-cpu": lambda _: _dali(None),
    "nvimgcodec-cpu": lambda _: _nvimgcodec(None),
    "native": lambda _: NativeDecoder(),
    "portable": lambda _: PortableDecoder(),
}
# The native core is ahead of both on the CPU: it decodes at the scale that is needed (DCT), which they cannot.
_PREFERRED: Final = ("dali-gpu", "nvimgcodec-gpu", "torchvision-cuda", "native", "portable")
