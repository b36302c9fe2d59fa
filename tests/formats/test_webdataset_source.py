"""Tars written by webdataset itself, and tars written to do harm."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from headway.formats import SourceError
from headway.formats.adapters.webdataset import WebDataset

webdataset = pytest.importorskip("webdataset")


def test_samples_become_frames(tmp_path: Path) -> None:
    values = [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(5)]
    with webdataset.TarWriter(str(tmp_path / "000.tar")) as sink:
        for i, value in enumerate(values):
            sample = {
                "__key__": f"drive/{i:04d}",
                "cam.front.jpg": b"\xff\xd8" + bytes([i]),
                "meta.json": {"i": i},
                "value.npy": value,
                "cls": i,
            }
            if i % 2:
                sample["note.txt"] = f"note {i}"
            sink.write(sample)
    source = WebDataset(tmp_path, rate_hz=2)
    assert [sensor.name for sensor in source.schema.sensors] == ["cam.front", "cls", "frame", "meta", "note", "value"]
    drive = source.open_drive("000")
    assert drive.timelines["frame"].stamps.tolist() == [0, 500_000_000, 1_000_000_000, 1_500_000_000, 2_000_000_000]
    for name, timeline in drive.timelines.items():
        if name == "note":
            assert timeline.own is not None
            assert timeline.own.tolist() == [-1, 0, -1, 1, -1]
    front, stored = drive.timelines["cam.front"].read, drive.timelines["value"].read
    assert front is not None
    assert stored is not None
    for i in range(5):
        assert front(i) == b"\xff\xd8" + bytes([i])
        np.testing.assert_array_equal(np.asarray(stored(i)), values[i])


def write(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w") as sink:
        for info, data in members:
            info.size = len(data)
            sink.addfile(info, io.BytesIO(data))


def plain(name: str) -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([(link("a.jpg", "/etc/passwd", tarfile.SYMTYPE), b"")], "plain file"),
        ([(link("a.jpg", "b.jpg", tarfile.LNKTYPE), b"")], "plain file"),
        ([(link("a.jpg", "", tarfile.FIFOTYPE), b"")], "plain file"),
        ([(plain("../a.jpg"), b"x")], "leads out"),
        ([(plain("/a.jpg"), b"x")], "leads out"),
        ([(plain("a"), b"x")], "no extension"),
        ([(plain("a.jpg"), b"x"), (plain("a.jpg"), b"y")], "stands twice"),
        ([(plain("x" * 2000 + ".jpg"), b"x")], "name over"),
    ],
)
def test_hostile_members_are_refused_by_name(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], message: str) -> None:
    write(tmp_path / "x.tar", members)
    with pytest.raises(SourceError, match=message):
        WebDataset(tmp_path)


def test_pickles_are_left_out_and_npy_objects_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    write(tmp_path / "x.tar", [(plain("a.pkl"), b"cos\nsystem\n(S'true'\ntR."), (plain("a.txt"), b"ok")])
    assert [(item.path, "running code" in item.reason) for item in WebDataset(tmp_path).ignored] == [("*.pkl", True)]
    write(tmp_path / "x.tar", [(plain("a.npy"), buffer.getvalue())])
    with pytest.raises(ValueError, match=r"as \.npy"):
        WebDataset(tmp_path)


def test_a_cut_tar_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [(plain("a.jpg"), bytes(3000)), (plain("b.jpg"), bytes(3000))])
    whole = (tmp_path / "x.tar").read_bytes()
    for length in (100, 512 + 100, 512 + 3072, 512 + 3072 + 100, 512 + 3072 + 512 + 2000, 2 * (512 + 3072)):
        (tmp_path / "x.tar").write_bytes(whole[:length])
        with pytest.raises(SourceError):
            WebDataset(tmp_path)
