"""A policy: which augmentations, in which order, as data that can be written down, read back and printed.

Its image operation goes to `Images(augment=policy.image_draw)`, so that the loader decodes at once what training sees; everything
else is applied to batches by `augment`. All draws are keyed by seed, epoch, item and occurrence, so that rank, device, decoder
and restart change nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import MissingExtra, UsageError
from ..loader import draws
from ..loader.batch import Batch
from . import tensor_draws
from .bev import BevOp, FlipBev, RotateBev, ScaleBev, TranslateBev
from .colour import ColourOp, GridMask, Normalise, PhotometricDistortion, run_pass
from .geometry import affine_inverse, sensor_mount, transform
from .image_augment import RandomResizedCrop, ResizeCropFlip
from .point_ops import DropPoints, FilterRange, PointOp, ShufflePoints

__all__ = ["RECIPES", "Op", "Policy", "read_policy"]

Op = ResizeCropFlip | RandomResizedCrop | BevOp | PointOp | ColourOp | Normalise

_OPS: Final[Mapping[str, Callable[..., Op]]] = {
    op.__name__: op
    for op in (
        ResizeCropFlip,
        RandomResizedCrop,
        RotateBev,
        ScaleBev,
        FlipBev,
        TranslateBev,
        FilterRange,
        DropPoints,
        ShufflePoints,
        PhotometricDistortion,
        GridMask,
        Normalise,
    )
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Augmentations in the order in which they are applied.

    >>> policy = Policy((ResizeCropFlip(), RotateBev(), FlipBev()))
    >>> policy.image_draw == ResizeCropFlip()
    True
    >>> Policy.from_data(policy.to_data()) == policy
    True
    """

    ops: tuple[Op, ...]
    """At most one image operation (a resize and crop), and one Normalise, which must come last of the colour operations."""
    bev_frame: str = "ego"
    """Where BEV operations turn and scale about: "ego", or the name of a points field, whose sensor frame it then is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        unknown = [op for op in self.ops if type(op).__name__ not in _OPS or type(op) is not _OPS[type(op).__name__]]
        if unknown:
            raise UsageError(f"policy: {unknown[0]!r} is none of {', '.join(_OPS)}")
        if sum(isinstance(op, ResizeCropFlip | RandomResizedCrop) for op in self.ops) > 1:
            raise UsageError("policy: more than one image operation; pixels are resampled once, so one affine must say it all")
        colour = [op for op in self.ops if isinstance(op, ColourOp | Normalise)]
        if any(isinstance(op, Normalise) for op in colour[:-1]):
            raise UsageError("policy: Normalise must be the last colour operation, and the only one of its kind")
        purposes = [op.purpose for op in self.ops if not isinstance(op, Normalise)]
        twice = {purpose for purpose in purposes if purposes.count(purpose) > 1}
        if twice:
            raise UsageError(f"policy: two operations draw for the purpose {min(twice)!r}; give one of them another purpose")

    @property
    def image_draw(self) -> ResizeCropFlip | RandomResizedCrop | None:
        """What `Images(augment=…)` takes: the policy's image operation, or None."""
        return next((op for op in self.ops if isinstance(op, ResizeCropFlip | RandomResizedCrop)), None)

    def bev_matrices(self, batch: Batch) -> torch.Tensor:
        """Return the drawn matrices (B, 4, 4), float64, of the BEV operations in order, acting in the ego frame."""
        matrices = [op.matrices(_keys(batch, op.purpose)) for op in self.ops if isinstance(op, BevOp)]
        product: NDArray[np.float64] = reduce(
            lambda done, each: each @ done, matrices, np.tile(np.eye(4), (len(batch["id"]), 1, 1))
        )
        drawn = torch.from_numpy(product).to(batch["id"].device)
        if self.bev_frame == "ego":
            return drawn
        mount = sensor_mount(batch, self.bev_frame)
        return mount @ drawn @ affine_inverse(mount)

    def augment(self, batch: Batch) -> Batch:
        """Return the batch with everything but the image operation applied, which the loader has done.

        "bev_matrix" (B, 4, 4), float64, says what was done to the scene in the ego frame: x' = M x. It is **already applied** to
        every point, box, pose and way-point of the batch; it is there to undo (by its inverse) or to move what headway does not
        know. A batch that has one is refused: draws are keyed, and a second pass would apply the same ones again.
        """
        if "bev_matrix" in batch:
            raise UsageError("cannot augment this batch: it holds 'bev_matrix', so a policy was applied to it already")
        matrix = self.bev_matrices(batch)
        moved = transform(batch, matrix)
        moved["bev_matrix"] = matrix
        for op in self.ops:
            if isinstance(op, PointOp):
                keys = tensor_draws.to_tensor(_keys(batch, op.purpose), batch["id"].device)
                for name, entry in moved.items():
                    if isinstance(entry, dict) and "points" in entry:
                        moved[name] = op.points(entry, keys)
                    elif isinstance(entry, dict) and "centre" in entry:
                        moved[name] = op.table(entry)
        for name, entry in moved.items():
            if isinstance(entry, dict) and "image" in entry:
                moved[name] = self._coloured(batch, name, entry)
        return Batch(moved)

    def to_data(self) -> dict[str, Any]:  # Any: numbers, text and lists of them
        """Return the policy as plain data, as it is written to YAML or JSON."""
        ops = [{type(op).__name__: {each.name: _plain(getattr(op, each.name)) for each in fields(op)}} for op in self.ops]
        return {"bev_frame": self.bev_frame, "ops": ops}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:  # Any: parsed YAML or JSON, checked here
        """Return the policy that plain data mean: {"ops": [{"RotateBev": {"angle_rad": [-0.4, 0.4]}}, "ShufflePoints"], …}."""
        extra = set(data) - {"ops", "bev_frame"}
        listed = data.get("ops")
        if extra or not isinstance(listed, Sequence) or isinstance(listed, str):
            raise UsageError(f"policy: expected a list 'ops' and perhaps 'bev_frame', found the keys {sorted(map(str, data))}")
        return cls(tuple(_op(each) for each in listed), bev_frame=str(data.get("bev_frame", "ego")))

    def __str__(self) -> str:
        lines = [f"policy about {self.bev_frame}:"]
        for op in self.ops:
            told = ", ".join(f"{each.name}={getattr(op, each.name)!r}" for each in fields(op) if each.name != "purpose")
            lines.append(f"  {type(op).__name__}({told})")
        return "\n".join(lines)

    def _coloured(self, batch: Batch, name: str, entry: dict[str, Any]) -> dict[str, Any]:  # Any: see loader.batch
        ops = [op for op in self.ops if isinstance(op, ColourOp)]
        end = next((op for op in self.ops if isinstance(op, Normalise)), None)
        image: torch.Tensor = entry["image"]
        if not ops and end is None:
            return entry
        first = image.shape[3] == 3
        flat = image.flatten(0, 2)
        flat = flat if first else flat.permute(0, 3, 1, 2)
        epoch = np.repeat(batch["epoch"].cpu().numpy(), len(flat) // len(image))
        size = (int(flat.shape[2]), int(flat.shape[3]))
        drawn = [(op, op.draw(_image_keys(batch, op, image), size=size, epoch=epoch)) for op in ops]
        done = run_pass(flat, drawn, end)
        # What is absent stays zero, whatever the mean is.
        done = torch.where(
            entry["mask"].flatten()[:, None, None, None], done, torch.zeros((), dtype=done.dtype, device=done.device)
        )
        done = done if first else done.permute(0, 2, 3, 1).contiguous()
        return {**entry, "image": done.reshape(image.shape)}


def read_policy(path: str | Path) -> Policy:
    """Read a policy from a YAML (or JSON, which is YAML) file."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("folder", "reading policies from YAML") from error
    text = Path(path).read_text("utf-8")
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"cannot read policy {str(path)!r}: not YAML ({error})") from error
    if not isinstance(data, dict):
        raise UsageError(f"cannot read policy {str(path)!r}: expected a mapping with 'ops', found {type(data).__name__}")
    return Policy.from_data(data)


RECIPES: Final[Mapping[str, Policy]] = {
    "bevdet-r50": Policy(
        (
            ResizeCropFlip(),
            RotateBev(),
            ScaleBev(),
            FlipBev(),
            FilterRange(),
            Normalise(),
        )
    ),
    "bevfusion": Policy(
        (
            ResizeCropFlip(),
            RotateBev(angle_rad=(-0.78539816, 0.78539816)),
            TranslateBev(),
            ScaleBev(factor=(0.9, 1.1)),
            FlipBev(),
            FilterRange(low=(-54.0, -54.0, -5.0), high=(54.0, 54.0, 3.0)),
            ShufflePoints(),
            Normalise(),
        ),
        bev_frame="LIDAR_TOP",
    ),
    "streampetr-r50": Policy(
        (ResizeCropFlip(rotate_deg=(0.0, 0.0), share="sample"), RotateBev(), ScaleBev(), GridMask(), Normalise())
    ),
    "bevformer-base": Policy(
        (PhotometricDistortion(), GridMask(), Normalise(mean=(123.675, 116.28, 103.53), std=(1.0, 1.0, 1.0), bgr=True))
    ),
}
"""Published recipes, with their numbers; sampling and image sizes are the loader's."""


def _keys(batch: Batch, purpose: str) -> NDArray[np.uint64]:
    """Return the samples' keys (B,): of the item delivered, which is another than the planned one where that was replaced."""
    missing = [name for name in ("id", "replaced", "occurrence", "epoch", "state") if name not in batch]
    if missing:
        raise UsageError(f"cannot draw augmentations: the batch has no {missing[0]!r}; augment batches as the loader gives them")
    item, replaced, occurrence, epoch = (batch[name].cpu().numpy() for name in ("id", "replaced", "occurrence", "epoch"))
    delivered = np.where(replaced >= 0, replaced, item)
    return draws.key(int(batch["state"]["seed"]), int(epoch[0]), delivered, occurrence, purpose)


def _image_keys(batch: Batch, op: ColourOp, image: torch.Tensor) -> NDArray[np.uint64]:
    """Return a key for each of the flat [B, T, N] places, as `loader.image_draw` shares them."""
    _, length, cameras = image.shape[:3]
    keys = np.repeat(_keys(batch, op.purpose), length * cameras)
    place = np.arange(len(keys))
    frame, camera = place // cameras % length, place % cameras
    if op.share == "image":
        return draws.fold(keys, frame, camera)
    return draws.fold(keys, frame) if op.share == "frame" else keys


def _op(data: Any) -> Op:  # Any: parsed YAML or JSON
    if isinstance(data, str):
        data = {data: {}}
    if not isinstance(data, Mapping) or len(data) != 1:
        raise UsageError(f"policy: expected an operation as {{Name: {{option: value}}}}, found {data!r}")
    ((name, options),) = data.items()
    if name not in _OPS:
        raise UsageError(f"policy: there is no operation {name!r}; there are {', '.join(_OPS)}")
    options = options or {}
    known = set(inspect.signature(_OPS[name]).parameters)
    if not isinstance(options, Mapping) or set(options) - known:
        raise UsageError(f"policy: {name} takes {', '.join(sorted(known))}; found {options!r}")
    try:
        return _OPS[name](**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})
    except TypeError as error:
        raise UsageError(f"policy: {name} cannot be made of {dict(options)!r}: {error}") from error


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
