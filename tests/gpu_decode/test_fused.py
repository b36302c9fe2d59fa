"""The fused kernel: torch against the area reference, Triton's interpreter against torch, and a compile for sm_90."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from headway.formats import UsageError
from headway.gpu_decode.fused import fused_reference, resample_normalise
from tests.formats.native_jobs import picture, psnr, triangle

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install 'headway[triton]'"
)
LOOK: dict[str, Any] = {  # Any: mean and std, which mypy would spread over all options
    "mean": (123.7, 116.3, 103.5),
    "std": (58.4, 57.1, 57.4),
}


def inverse_of(affine: list[list[float]]) -> torch.Tensor:
    return torch.from_numpy(np.linalg.inv(np.vstack([affine, [0, 0, 1]]))[None, :2].copy()).float()


def test_the_reference_is_close_to_an_area_filter() -> None:
    image = picture(120, 200)
    affine = [[0.5, 0.0, 3.0], [0.0, 0.5, -10.0]]
    plain: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    found = fused_reference(torch.from_numpy(image)[None], inverse_of(affine), target=(50, 100), dtype="float32", **plain)
    expected = triangle(image.astype(np.float64), affine, 100, 50)
    shown = found[0].permute(1, 2, 0).numpy()[:, 4:]  # target pixels left of 3 show no source
    assert psnr(shown, expected[:, 4:]) >= 36


def test_a_whole_pixel_shift_is_exact_and_the_rest_is_fill() -> None:
    image = torch.from_numpy(picture(20, 30))[None]
    found = resample_normalise(
        image, inverse_of([[1, 0, 5], [0, 1, 0]]), target=(20, 30), mean=(0, 0, 0), std=(1, 1, 1), dtype="float32", fill=7, taps=1
    )
    assert torch.equal(found[0, :, :, 5:], image[0].permute(2, 0, 1)[:, :, :-5].float())
    assert (found[0, :, :, :5] == 7).all()


def test_what_the_kernel_cannot_take_is_refused() -> None:
    image = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(UsageError, match="contiguous uint8"):
        resample_normalise(image.float(), torch.zeros(1, 2, 3), target=(2, 2), **LOOK)
    with pytest.raises(UsageError, match="matrices"):
        resample_normalise(image, torch.zeros(2, 2, 3), target=(2, 2), **LOOK)
    with pytest.raises(UsageError, match="taps"):
        resample_normalise(image, torch.zeros(1, 2, 3), target=(2, 2), taps=9, **LOOK)


_INTERPRETED = """
import json, torch
from headway.gpu_decode import fused
torch.manual_seed(0)
pictures = torch.randint(0, 256, (2, 40, 60, 3), dtype=torch.uint8)
inverse = torch.tensor([[[2.1, 0.3, -4.0], [-0.3, 1.9, 3.0]], [[-1.5, 0.0, 58.0], [0.0, 1.5, -2.0]]])
look = {"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}
worst = {}
for dtype in ("float32", "float16", "bfloat16"):
    expected = fused.fused_reference(pictures, inverse, target=(18, 27), dtype=dtype, fill=9.0, taps=2, **look)
    found = fused._launch(pictures, inverse, (18, 27), look["mean"], look["std"], dtype, 9.0, 2)
    worst[dtype] = float((found.float() - expected.float()).abs().max())
print(json.dumps(worst))
"""

_COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from headway.gpu_decode import fused
kernel = fused.kernel()
kinds = ["*u8", "*fp32", "*bf16", *["i32"] * 4, *["fp32"] * 7]
names = kernel.arg_names
signature = dict(zip(names, kinds)) | {"TAPS": "constexpr", "SIZE": "constexpr"}
made = compile(ASTSource(kernel, signature, constexprs={"TAPS": 2, "SIZE": fused.BLOCK}), target=GPUTarget("cuda", 90, 32))
print(len(made.asm["cubin"]), "sm_90" in made.asm["ptx"])
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@needs_triton
@pytest.mark.slow
def test_the_interpreted_kernel_is_the_reference() -> None:
    worst = json.loads(run(_INTERPRETED, TRITON_INTERPRET="1"))
    assert worst["float32"] < 2e-5
    assert worst["float16"] < 2.5e-3
    assert worst["bfloat16"] < 1.7e-2  # one unit at 2 to 4: the interpreter truncates where hardware rounds


@needs_triton
@pytest.mark.slow
def test_the_kernel_compiles_for_sm_90_without_a_driver() -> None:
    size, is_sm_90 = run(_COMPILED).split()
    assert int(size) > 1000
    assert is_sm_90 == "True"


@pytest.mark.gpu
@needs_triton
def test_the_kernel_is_the_reference_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pictures = torch.randint(0, 256, (4, 900, 1600, 3), dtype=torch.uint8, device="cuda")
    inverse = inverse_of([[0.44, 0.02, 3.0], [-0.02, 0.44, -140.0]]).repeat(4, 1, 1).cuda()
    found = resample_normalise(pictures, inverse, target=(256, 704), dtype="float32", **LOOK)
    expected = fused_reference(pictures, inverse, target=(256, 704), dtype="float32", **LOOK)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
