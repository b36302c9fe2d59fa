"""The report as a reader meets it: one file, no network, drawn by a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from headway.bench.html_report import bars, line_plot, page, render, section_of

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


NODE = {
    **RESULT,
    "bench": "node",
    "rows": [
        {
            "rank": rank, "samples_per_s": 60.0, "pss_mib": 300.0, "order_is_the_plans": True, "rates": [50.0, 61.0, 60.0],
            "headways_s": [0.1, 0.2, 0.2], "waits_ms": [3.0, 0.1, 0.1], "waits_by_stage_s": {"decode": 1.5, "memory": 0.2},
            **{f"figure_{number}": number for number in range(12)},
        }
        for rank in range(2)
    ],
    "conditions": {"ranks": 2, "stages": [{"stage": "decode", "samples_per_s_alone": 150.0, "core_ms_a_sample": 13.3}]},
    "summary": {"samples_per_s": 120.0, "binding": "decode", "peers": {"a": 1}},
}  # fmt: skip


def test_a_node_is_shown_over_time_by_stage_and_beside_its_limits() -> None:
    text = render(NODE)
    for heading in ("Rate of each rank over the run", "Seconds waited", "How much of each limit was reached", "Memory", "Stages"):
        assert heading in text
    assert "80 %" in text  # 120 of 150
    assert text.count("<tr><td>figure 11</td>") == 1  # a table that wide is turned
    assert "peers" not in text.partition("In short")[2].partition("</table>")[0]


def _browse(folder: Path, page_file: Path, *options: str) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (.ci/run installs it)")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic",
        "--no-first-run", "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}",
        "--window-size=900,1200", *options, page_file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = page("t", [section_of("peers", render(RESULT)), section_of("node", render(NODE))])
    assert "http" not in text
    assert "<script" not in text
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "paper", "accent"),
    [("--disable-sync", (255, 255, 255), (11, 107, 203)), ("--force-dark-mode", (21, 24, 28), (88, 166, 255))],
    ids=["light", "dark"],
)
def test_a_browser_draws_it_in_light_and_dark(
    tmp_path: Path, report_file: Path, option: str, paper: tuple[int, ...], accent: tuple[int, ...]
) -> None:
    shot = tmp_path / "report.png"
    _browse(tmp_path, report_file, option, f"--screenshot={shot}")
    picture = cv2.imread(str(shot))
    assert picture is not None
    levels = picture.astype(int)[..., ::-1]
    assert np.abs(levels[5, 5] - paper).max() <= 2
    ink = np.abs(levels - levels[5, 5]).sum(-1) > 60
    assert 0.01 < ink.mean() < 0.5
    assert (np.abs(levels - accent).sum(-1) < 12).sum() > 2000  # the bar that stands out


@pytest.mark.slow
def test_paper_is_white_and_ink_black_whatever_the_screen_is(tmp_path: Path, report_file: Path) -> None:
    printed = tmp_path / "report.pdf"
    _browse(tmp_path, report_file, "--force-dark-mode", "--no-pdf-header-footer", f"--print-to-pdf={printed}")
    data = printed.read_bytes()
    assert data.startswith(b"%PDF")
    drawn = b""
    for start in re.finditer(rb"stream\r?\n", data):
        try:
            drawn += zlib.decompressobj().decompress(data[start.end() :])
        except zlib.error:  # a font or picture, stored otherwise
            continue
    colours = {match.group(1) for match in re.finditer(rb"((?:[\d.]+ ){3})rg", drawn)}
    levels = [tuple(float(part) for part in colour.split()) for colour in colours]
    assert (0.0, 0.0, 0.0) in levels
    dark_paper = (21 / 255, 24 / 255, 28 / 255)
    assert not any(max(abs(a - b) for a, b in zip(level, dark_paper, strict=True)) < 0.004 for level in levels)
