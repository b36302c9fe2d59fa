"""The decode bench tells equal pictures from unequal ones, and the GPU bench rehearses all of itself without a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from headway.bench.decode import made_images, measure_equality
from headway.bench.gpu import as_markdown, measure_gpu
from headway.bench.main import app
from headway.formats import UsageError
from headway.loader.decode import ImageJobs, PortableDecoder


class Darker(PortableDecoder):
    """Gives pictures four levels darker."""

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode, and darken."""
        status = super().decode(jobs)
        jobs.out -= np.minimum(jobs.out, 4)
        return status


def test_a_decoder_that_differs_is_shown_to_differ() -> None:
    images = {name: data for name, data in made_images(48, 64).items() if name in ("4:2:0", "png", "cut")}
    rows = measure_equality(images, {"darker": Darker(), "portable": PortableDecoder()}, size=(24, 40))
    found = {(row["image"], row["look"], row["decoder"]): row for row in rows}
    assert found["4:2:0", "own size", "darker"]["max_error"] == 4
    assert float(str(found["4:2:0", "own size", "darker"]["psnr_db"])) == pytest.approx(36.1, abs=0.2)
    assert found["4:2:0", "24x40", "portable"]["max_error"] == 0
    assert "png" in str(found["png", "own size", "darker"]["handed_on"])
    assert found["cut", "own size", "darker"]["status"] == "refused"


@pytest.mark.slow
def test_decode_prints_one_json_result() -> None:
    done = CliRunner().invoke(app, ["decode", "--json", "--image", "32x64", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["bench"] == "decode"
    assert {row["table"] for row in result["rows"]} == {"equality", "speed", "policy"}
    assert all(row["agrees"] for row in result["rows"] if row["table"] == "equality")


@pytest.mark.slow
def test_the_gpu_bench_rehearses_on_the_cpu_and_says_so() -> None:
    rows = measure_gpu("cpu", sizes=((90, 160),), batches=(2,), repeats=1)
    assert all(row["rehearsal"] for row in rows)
    table = as_markdown(rows)
    for what in ("decode", "host to device", "528 small tensors", "passes", "decode engines", "overlap with a bf16 step"):
        assert f"### {what}" in table
    passes = {str(row["pass"]): row for row in rows if row["what"] == "passes"}
    assert "both (torch, as the fused kernel)" in passes
    assert "ms" in passes["both (DALI)"] or passes["both (DALI)"]["why_not"]
    (overlap,) = (row for row in rows if row["what"] == "overlap with a bf16 step")
    assert 0 <= float(str(overlap["stall_share"])) <= 1
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="--device cpu"):
            measure_gpu("cuda")
