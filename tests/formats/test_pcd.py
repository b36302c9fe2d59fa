"""PCD files of all three encodings, well formed and not."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from headway.formats.adapters import SourceSpec, open_source
from headway.formats.errors import DecodeError
from headway.formats.pcd import read_pcd

HEADER = """# .PCD v0.7 - Point Cloud Data file format
VERSION 0.7
FIELDS x y ring _ histogram
SIZE 4 8 2 1 4
TYPE F F U U I
COUNT 1 1 1 3 2
WIDTH {points}
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS {points}
DATA {encoding}
"""
RECORD = np.dtype([("x", "<f4"), ("y", "<f8"), ("ring", "<u2"), ("_", "<u1", 3), ("histogram", "<i4", 2)])


def header(points: int, encoding: str) -> bytes:
    return HEADER.format(points=points, encoding=encoding).encode()


def records() -> np.ndarray[tuple[int], np.dtype[np.void]]:
    out = np.zeros(3, RECORD)
    out["x"], out["y"], out["ring"] = [1.5, np.nan, -0.0], [1e300, 2, 3], [0, 65535, 7]
    out["histogram"] = [[1, -2], [3, 4], [5, 6]]
    return out


def literal(points: np.ndarray[tuple[int], np.dtype[np.void]]) -> bytes:
    """The compressed layout, columns one after the other, in LZF literals only."""
    columns = b"".join(np.ascontiguousarray(points[name]).tobytes() for name in RECORD.names or ())
    packed = b"".join(bytes([len(columns[k : k + 32]) - 1]) + columns[k : k + 32] for k in range(0, len(columns), 32))
    return np.array([len(packed), len(columns)], "<u4").tobytes() + packed


BODIES = {
    "binary": records().tobytes(),
    "binary_compressed": literal(records()),
    "ascii": b"1.5 1e300 0 0 0 0 1 -2\nnan 2 65535 0 0 0 3 4\n-0 3 7 0 0 0 5 6\n\n",
}


@pytest.mark.parametrize("encoding", BODIES)
def test_every_encoding_gives_the_same_records(encoding: str) -> None:
    if encoding == "binary_compressed":
        pytest.importorskip("lzf", reason="the extra 'pcd' is not installed")
    found = read_pcd(header(3, encoding) + BODIES[encoding], "cloud.pcd")
    assert found.dtype.names == ("x", "y", "ring", "histogram")
    for name in found.dtype.names:
        np.testing.assert_array_equal(found[name], records()[name])
    assert np.signbit(found["x"][2])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no DATA line"),
        (header(3, "binary")[:-8], "no DATA line"),
        (header(3, "binary") + bytes(74), "74 bytes after the header, 3 points take 75"),
        (header(3, "ascii") + b"1 2 3\n", "1 lines of points, the header promises 3"),
        (header(1, "ascii") + b"1 2 3\n", "point 0 has 3 numbers, the fields have 8"),
        (header(1, "ascii") + b"1 2 70000 0 0 0 1 2\n", "ring"),
        (header(3, "lz4"), "DATA 'lz4'"),
        (header(10**12, "binary"), "above the limit"),
        (header(3, "binary_compressed") + b"\x01", "no room for the compressed"),
        (header(3, "binary_compressed") + np.array([4, 999], "<u4").tobytes() + bytes(4), "4 bytes that make 999"),
        (header(3, "binary").replace(b"COUNT", b"COLOUR"), "'COLOUR' is unknown"),
        (header(3, "binary").replace(b"TYPE F", b"TYPE Q"), "field 'x' of type Q 4"),
        (header(3, "binary").replace(b"POINTS 3", b"POINTS 4"), "POINTS 4 where WIDTH x HEIGHT is 3"),
        (header(3, "binary").replace(b"WIDTH 3", b"WIDTH -3"), "WIDTH"),
        (header(3, "binary").replace(b"x y", b"x x"), "two fields share a name"),
        (header(3, "binary").replace(b"x y ring", b"x y"), "4 FIELDS, 5 SIZE"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, complaint: str) -> None:
    with pytest.raises(DecodeError, match=r"cannot read cloud\.pcd as PCD") as caught:
        read_pcd(data, "cloud.pcd")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("encoding", BODIES)
def test_mutants_end_in_decode_error_or_an_array(encoding: str) -> None:
    pytest.importorskip("lzf", reason="the extra 'pcd' is not installed")
    whole, rng = header(3, encoding) + BODIES[encoding], random.Random(1)
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.choice([0, 10, 32, 45, 57, 255, rng.randrange(256)])
        cut = len(data) if rng.random() < 0.8 else rng.randrange(len(data))
        with contextlib.suppress(DecodeError):
            read_pcd(bytes(data[:cut]), "mutant", limit_bytes=1 << 20)


def test_a_described_folder_takes_pcd_files(tmp_path: Path) -> None:
    (tmp_path / "drive/lidar").mkdir(parents=True)
    (tmp_path / "drive/lidar/5.pcd").write_bytes(header(3, "binary") + BODIES["binary"])
    fields = "[x:float32:m, ring:uint16]"
    (tmp_path / "headway.yaml").write_text(
        f"reference: lidar\nsensors:\n  lidar: {{kind: points, files: 'lidar/{{stamp}}.pcd', fields: {fields}}}\n"
    )
    drive = open_source(SourceSpec(kind="folder", path=str(tmp_path))).open_drive("drive")
    read = drive.timelines["lidar"].read
    assert read is not None
    points = read(0)
    assert isinstance(points, np.ndarray)
    assert points.dtype.names == ("x", "ring")
    assert points["ring"].tolist() == [0, 65535, 7]
