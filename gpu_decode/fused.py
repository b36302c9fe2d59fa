"""One kernel from decoded pictures to network input: uint8 (n, H, W, 3) → resample → normalise → (n, 3, h, w), in Triton.

Each target pixel averages a few bilinear samples of the source spread over its area, and is written once. Where there is no GPU,
`fused_reference` in plain torch is what runs, and Triton's interpreter shows that the kernel does the same. Compiled for sm_90
in tests, never timed: there was no GPU to time it on.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..formats import MissingExtra, UsageError

__all__ = ["fused_reference", "resample_normalise"]

BLOCK: Final = 256
_DTYPES: Final = ("float16", "bfloat16", "float32")


def resample_normalise(
    pictures: torch.Tensor,
    inverse: torch.Tensor,
    *,
    target: tuple[int, int],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    dtype: str = "bfloat16",
    fill: float = 0.0,
    taps: int = 2,
) -> torch.Tensor:
    """Return (n, 3, h, w) of `dtype`: Triton on a GPU, torch elsewhere.

    Args:
        pictures: uint8 (n, H, W, 3), contiguous.
        inverse: float32 (n, 2, 3), target px → source px, pixel centres at +0.5 on both sides.
        target: height and width.
        mean: levels, red, green, blue.
        std: levels.
        dtype: float16, bfloat16 or float32.
        fill: level of what lies outside the source.
        taps: samples a target pixel is averaged of, along each axis: about the factor by which the picture shrinks.
    """
    _check(pictures, inverse, dtype, taps)
    if pictures.device.type != "cuda":
        return fused_reference(pictures, inverse, target=target, mean=mean, std=std, dtype=dtype, fill=fill, taps=taps)
    return _launch(pictures, inverse, target, mean, std, dtype, fill, taps)


def fused_reference(
    pictures: torch.Tensor,
    inverse: torch.Tensor,
    *,
    target: tuple[int, int],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    dtype: str = "bfloat16",
    fill: float = 0.0,
    taps: int = 2,
) -> torch.Tensor:
    """Return what `resample_normalise` does, in plain torch on any device."""
    _check(pictures, inverse, dtype, taps)
    count, height, width, _ = pictures.shape
    device = pictures.device
    levels = pictures.permute(0, 3, 1, 2).reshape(count, 3, -1).to(torch.float32)
    total = torch.zeros((count, 3, target[0] * target[1]), device=device)
    rows = torch.arange(target[0], device=device, dtype=torch.float32)[:, None]
    columns = torch.arange(target[1], device=device, dtype=torch.float32)
    for tap_y in range(taps):
        for tap_x in range(taps):
            y, x = rows + (tap_y + 0.5) / taps, columns + (tap_x + 0.5) / taps
            a, b, c = (inverse[:, 0, k, None, None] for k in range(3))
            d, e, f = (inverse[:, 1, k, None, None] for k in range(3))
            at_x, at_y = a * x + b * y + c - 0.5, d * x + e * y + f - 0.5
            left, top = torch.floor(at_x), torch.floor(at_y)
            across, down = at_x - left, at_y - top
            for step_y, weight_y in ((0, 1 - down), (1, down)):
                for step_x, weight_x in ((0, 1 - across), (1, across)):
                    column, row = (left + step_x).long(), (top + step_y).long()
                    inside = ((row >= 0) & (row < height) & (column >= 0) & (column < width)).reshape(count, 1, -1)
                    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).reshape(count, 1, -1)
                    value = torch.take_along_dim(levels, place.expand(-1, 3, -1), 2)
                    total += torch.where(inside, value, fill) * (weight_y * weight_x).reshape(count, 1, -1)
    shift, scale = (torch.tensor(side, device=device)[:, None] for side in (mean, std))
    return ((total / taps**2 - shift) / scale).to(getattr(torch, dtype)).reshape(count, 3, *target)


def kernel() -> Any:  # Any: a triton.JITFunction, which is untyped
    """Return the Triton kernel; importing Triton is what this waits for."""
    try:
        import triton
        from triton import language as tl
    except ImportError as error:
        raise MissingExtra("triton", "the fused resampling kernel") from error

    def fused(  # type: ignore[no-untyped-def]  # Triton reads the annotations, and knows only its own
        pictures,
        inverse,
        out,
        height,
        width,
        target_height,
        target_width,
        fill,
        mean_r,
        mean_g,
        mean_b,
        scale_r,
        scale_g,
        scale_b,
        TAPS: tl.constexpr,
        SIZE: tl.constexpr,
    ):
        image = tl.program_id(1).to(tl.int64)  # 96 pictures of 2048 × 1550 × 3 pass 2³¹ bytes at 226
        pixel = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        area = target_height * target_width
        there = pixel < area
        row = (pixel // target_width).to(tl.float32)
        column = (pixel % target_width).to(tl.float32)
        a = tl.load(inverse + image * 6 + 0)
        b = tl.load(inverse + image * 6 + 1)
        c = tl.load(inverse + image * 6 + 2)
        d = tl.load(inverse + image * 6 + 3)
        e = tl.load(inverse + image * 6 + 4)
        f = tl.load(inverse + image * 6 + 5)
        red = tl.zeros([SIZE], tl.float32)
        green = tl.zeros([SIZE], tl.float32)
        blue = tl.zeros([SIZE], tl.float32)
        source = pictures + image * height * width * 3
        for tap in range(TAPS * TAPS):
            y = row + ((tap // TAPS) + 0.5) / TAPS
            x = column + ((tap % TAPS) + 0.5) / TAPS
            at_x = a * x + b * y + c - 0.5
            at_y = d * x + e * y + f - 0.5
            left = tl.floor(at_x)
            top = tl.floor(at_y)
            across = at_x - left
            down = at_y - top
            for corner in range(4):
                step_x = corner % 2
                step_y = corner // 2
                weight_x = across * step_x + (1 - across) * (1 - step_x)
                weight_y = down * step_y + (1 - down) * (1 - step_y)
                px = left.to(tl.int32) + step_x
                py = top.to(tl.int32) + step_y
                seen = there & (px >= 0) & (px < width) & (py >= 0) & (py < height)
                place = source + (py * width + px) * 3
                weight = weight_x * weight_y
                outside = tl.where(seen, 0.0, fill)
                red += weight * (tl.load(place, mask=seen, other=0).to(tl.float32) + outside)
                green += weight * (tl.load(place + 1, mask=seen, other=0).to(tl.float32) + outside)
                blue += weight * (tl.load(place + 2, mask=seen, other=0).to(tl.float32) + outside)
        share = 1.0 / (TAPS * TAPS)
        made = out + image * 3 * area + pixel
        kind = out.dtype.element_ty
        tl.store(made, ((red * share - mean_r) * scale_r).to(kind), mask=there)
        tl.store(made + area, ((green * share - mean_g) * scale_g).to(kind), mask=there)
        tl.store(made + 2 * area, ((blue * share - mean_b) * scale_b).to(kind), mask=there)

    # Triton's interpreter replaces the `tl` that it finds among the globals.
    fused.__globals__["tl"] = tl
    return triton.jit(fused)


def _launch(
    pictures: torch.Tensor,
    inverse: torch.Tensor,
    target: tuple[int, int],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    dtype: str,
    fill: float,
    taps: int,
) -> torch.Tensor:
    count, height, width, _ = pictures.shape
    out = torch.empty((count, 3, *target), dtype=getattr(torch, dtype), device=pictures.device)
    grid = (-(-target[0] * target[1] // BLOCK), count)
    scale = [1 / value for value in std]
    kernel()[grid](
        pictures, inverse.float().contiguous(), out, height, width, *target, fill, *mean, *scale, TAPS=taps, SIZE=BLOCK
    )
    return out


def _check(pictures: torch.Tensor, inverse: torch.Tensor, dtype: str, taps: int) -> None:
    if pictures.dtype != torch.uint8 or pictures.dim() != 4 or pictures.shape[3] != 3 or not pictures.is_contiguous():
        raise UsageError(
            f"resample_normalise: expected contiguous uint8 (n, H, W, 3), found {pictures.dtype} {tuple(pictures.shape)}"
        )
    if inverse.shape != (len(pictures), 2, 3):
        raise UsageError(
            f"resample_normalise: expected (n, 2, 3) matrices for {len(pictures)} pictures, found {tuple(inverse.shape)}"
        )
    if dtype not in _DTYPES or not 1 <= taps <= 8:
        raise UsageError(f"resample_normalise: dtype is one of {', '.join(_DTYPES)} and taps 1 to 8; found {dtype!r} and {taps}")
