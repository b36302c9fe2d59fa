"""The report as a reader meets it: one file, no network, drawn by a real browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from headway.bench.html_report import bars, line_plot, page, render

RESULT = {
    "headway_bench": 1,
    "bench": "peers",
    "command": ["headway", "bench", "peers", "<script>alert(1)</script>"],
    "started": "2026-01-01T00:00:00Z",
    "versions": {"python": "3.11"},
    "machine": {"cpu": "A <b>CPU</b>", "cores_usable": 2.0},
    "conditions": {"rounds": 3},
    "quiet": False,
    "rows": [
        {"workload": "W1", "peer": "headway", "samples_per_s": 130.0, "spread": 1.1, "cannot": None},
        {"workload": "W1", "peer": "torch & co", "samples_per_s": 57.0, "spread": 1.2, "cannot": None},
        {"workload": "W1", "peer": "ffcv", "samples_per_s": None, "spread": None, "cannot": "no decoder"},
    ],
    "summary": {"ratio_to_best_peer": 2.28},
}


def test_everything_from_outside_is_escaped() -> None:
    text = render(RESULT)
    assert "<script" not in text
    assert "<b>CPU" not in text
    assert "torch &amp; co" in text
    assert "Others used the machine" in text


def test_bars_are_ordered_and_to_scale() -> None:
    text = bars("t", [("a", 1.0, 1.0, 1.0), ("b", 4.0, 4.0, 4.0)], unit="x", strong="b")
    assert text.index(">b<") < text.index(">a<")
    assert 'width="420.0"' in text
    assert 'width="105.0"' in text
    assert bars("t", [], unit="x") == ""
    assert line_plot("t", {"one": [1.0]}, unit="s") == ""


@pytest.mark.slow
def test_a_browser_draws_it_without_fetching_anything(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (.ci/run installs it)")
    text = page(
        "t", [render(RESULT).split("<body>")[1].split("</body>")[0], line_plot("h", {"rank 0": [0.0, 1.0, 0.5]}, unit="s")]
    )
    assert "http" not in text.replace("http-equiv", "")
    (tmp_path / "report.html").write_text(text, "utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-quic",
        "--no-first-run",
    ]
    options += [
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=900,1200",
    ]
    shot = tmp_path / "report.png"
    done = subprocess.run(
        [browser, *options, f"--screenshot={shot}", (tmp_path / "report.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert shot.is_file(), done.stderr[-2000:]
    picture = cv2.imread(str(shot))
    assert picture is not None
    background = picture[5, 5].astype(int)
    ink = np.abs(picture.astype(int) - background).sum(-1) > 60
    assert 0.01 < ink.mean() < 0.5
    accent = np.abs(picture.astype(int) - np.array([203, 107, 11])).sum(-1) < 12  # #0b6bcb, the bar that stands out
    assert accent.sum() > 2000
