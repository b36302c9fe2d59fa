"""Picture → target by one affine in plain torch: antialiased resize as two matrix products, then a warp where there is rotation.

What decoders without a resampler of their own (nvImageCodec, torchvision) end with, on any device; and the reference that fused
kernels are compared with. The filter is the triangle of `sampling`, so that all backends show the same picture.
"""

from __future__ import annotations

import torch

from .sampling import Sampling

__all__ = ["finish", "resample"]


def resample(picture: torch.Tensor, sampling: Sampling, *, target: tuple[int, int], fill: float) -> torch.Tensor:
    """Return float32 levels (3, H, W) of a slice (h, w, 3), uint8, that was decoded as `sampling` says."""
    levels = picture.permute(2, 0, 1).to(torch.float32)
    rows, columns = (
        _triangle(begin, end, canvas, length, picture.device)
        for begin, end, canvas, length in zip(*sampling.region, sampling.canvas, levels.shape[1:], strict=True)
    )
    canvas = rows @ levels @ columns.T
    (a, b, x), (c, d, y) = sampling.matrix.tolist()
    if b == 0 == c:
        return _moved(canvas, (a, x), (d, y), target, fill)
    place_y = torch.arange(target[0], device=picture.device, dtype=torch.float64)[:, None] + 0.5
    place_x = torch.arange(target[1], device=picture.device, dtype=torch.float64) + 0.5
    return _bilinear(canvas, a * place_x + b * place_y + x, c * place_x + d * place_y + y, fill)


def finish(
    levels: torch.Tensor, *, mean: tuple[float, ...], std: tuple[float, ...], dtype: str, layout: str = "chw"
) -> torch.Tensor:
    """Return levels (3, H, W) normalised (uint8: rounded), of `dtype` and layout."""
    if dtype == "uint8":
        done = levels.round().clamp(0, 255).to(torch.uint8)
    else:
        shift, scale = (torch.tensor(side, device=levels.device)[:, None, None] for side in (mean, std))
        done = ((levels - shift) / scale).to(getattr(torch, dtype))
    return done if layout == "chw" else done.permute(1, 2, 0)


def _triangle(begin: float, end: float, canvas: int, length: int, device: torch.device) -> torch.Tensor:
    """Return (canvas, length) weights of the triangle filter; what it would take beyond the ends, the end pixels give."""
    scale = (end - begin) / canvas
    support = max(scale, 1.0)
    centre = begin + (torch.arange(canvas, dtype=torch.float64)[:, None] + 0.5) * scale
    # The ends' weights stand for all pixels beyond: evaluate on a wider range and add up.
    rim = int(support) + 2
    pixel = torch.arange(-rim, length + rim, dtype=torch.float64) + 0.5
    weight = (1 - (pixel - centre).abs() / support).clamp_min(0)
    weight = weight / weight.sum(1, keepdim=True)
    inside = weight[:, rim : rim + length].clone()
    inside[:, 0] += weight[:, :rim].sum(1)
    inside[:, -1] += weight[:, rim + length :].sum(1)
    return inside.to(device, torch.float32)


def _moved(
    canvas: torch.Tensor, x: tuple[float, float], y: tuple[float, float], target: tuple[int, int], fill: float
) -> torch.Tensor:
    """Return the canvas put at whole target pixels, mirrored where a factor is −1."""
    out = torch.full((3, *target), fill, dtype=canvas.dtype, device=canvas.device)
    flips = [axis for axis, (sign, _) in ((1, y), (2, x)) if sign < 0]
    picture = canvas.flip(flips) if flips else canvas
    if y[0] and x[0]:  # 0: nothing of it is seen
        height, width = canvas.shape[1:]
        top = round(y[1]) - height if y[0] < 0 else round(-y[1])
        left = round(x[1]) - width if x[0] < 0 else round(-x[1])
        out[:, top : top + height, left : left + width] = picture
    return out


def _bilinear(canvas: torch.Tensor, x: torch.Tensor, y: torch.Tensor, fill: float) -> torch.Tensor:
    """Return canvas values at (x, y), pixel centres at +0.5; each neighbour outside the canvas counts as `fill`."""
    height, width = canvas.shape[1:]
    left, top = torch.floor(x - 0.5).long(), torch.floor(y - 0.5).long()
    across, down = (x - 0.5 - left).float(), (y - 0.5 - top).float()
    total = torch.zeros((3, *x.shape), dtype=torch.float32, device=canvas.device)
    for step_y, weight_y in ((0, 1 - down), (1, down)):
        for step_x, weight_x in ((0, 1 - across), (1, across)):
            at_y, at_x = top + step_y, left + step_x
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            value = canvas[:, at_y.clamp(0, height - 1), at_x.clamp(0, width - 1)]
            total += weight_y * weight_x * torch.where(inside, value, fill)
    return total
