"""Converting and merging keep records, bytes and ids; other people's tools can read both kinds."""

from __future__ import annotations

import subprocess
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headway.formats import CorruptShard, PackOptions, UsageError, convert_set, merge_sets, open_set, pack, verify_set
from headway.formats.shard_tar import TarWriter, escape
from tests.formats.ramp import SCHEMA, ramp_spec
from tests.formats.test_packer import tree

SHARD = 20_000


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The ramp in both kinds."""
    place = tmp_path_factory.mktemp("kinds")
    pack(ramp_spec(), place / "arrow", PackOptions(shard_bytes=SHARD, workers=1))
    pack(ramp_spec(), place / "tar", PackOptions(format="tar", shard_bytes=SHARD, workers=1))
    return {"arrow": place / "arrow", "tar": place / "tar"}


@pytest.mark.parametrize("kind", ["arrow", "tar"])
def test_converting_gives_the_bytes_that_packing_gives(kind: str, sets: dict[str, Path], tmp_path: Path) -> None:
    other = "tar" if kind == "arrow" else "arrow"
    manifest = convert_set(sets[other], tmp_path / "set", format="tar" if kind == "tar" else "arrow")
    assert manifest.set_id == open_set(sets[kind]).set_id
    assert tree(tmp_path / "set") == tree(sets[kind])
    assert verify_set(tmp_path / "set").ok


def test_converting_a_damaged_set_publishes_nothing(sets: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    pack(ramp_spec(), damaged, PackOptions(workers=1, format="tar"))
    data = damaged / open_set(damaged).manifest.shards[0].data_name
    row = open_set(damaged).timeline("CAM").refs(np.array([3]))
    with open(data, "r+b") as file:
        file.seek(int(row.offset[0]))
        file.write(b"\xaa\xbb\xcc")
    with pytest.raises(CorruptShard, match="CAM"):
        convert_set(damaged, tmp_path / "set", format="arrow")
    assert not (tmp_path / "set").exists()


def test_webdataset_streams_a_tar_shard_with_the_same_bytes(sets: dict[str, Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import webdataset as wds
    packed = open_set(sets["tar"])
    urls = [str(sets["tar"] / shard.data_name) for shard in packed.manifest.shards]
    found: dict[tuple[str, str], bytes] = {}
    dataset = wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, workersplitter=None)
    for sample in dataset:
        for name, data in sample.items():
            if not name.startswith("__"):
                found[sample["__key__"], name] = data
    wanted = 0
    for at, drive in enumerate(packed.drives):
        for sensor in SCHEMA.sensors:
            if sensor.codec is None:
                continue
            for frame in range(int(packed.frame_starts[at]), int(packed.frame_starts[at + 1])):
                own = int(packed.own(sensor.name, np.array([frame]))[0])
                timeline = packed.timeline(sensor.name)
                for row in packed.filed(sensor.name, frame):
                    stamp = "" if row == own else f"@{int(timeline.take('stamp', np.array([row]))[0])}"
                    key = f"{drive.name}/{frame - int(packed.frame_starts[at]):08d}"
                    assert found[key, f"{sensor.name}{stamp}.{sensor.codec}".lower()] == timeline.payload(row)
                    wanted += 1
    assert len(found) == wanted


def test_gnu_tar_and_tarfile_list_and_extract_a_shard(sets: dict[str, Path]) -> None:
    shard = sets["tar"] / open_set(sets["tar"]).manifest.shards[0].data_name
    listed = subprocess.run(["tar", "tf", str(shard)], check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(shard) as archive:
        assert archive.getnames() == listed
        assert listed[-1] == "__headway__/index.arrow"
        copy = archive.extractfile(listed[-1])
        assert copy is not None
        assert copy.read() == shard.with_suffix(".arrow").read_bytes()
    keys = [name.split(".", 1)[0] for name in listed[:-1]]
    assert [key for at, key in enumerate(keys) if at == 0 or keys[at - 1] != key] == list(dict.fromkeys(keys))


def test_long_names_and_giant_sizes_get_pax_headers(tmp_path: Path) -> None:
    """dotnet/runtime#76563: a ustar size field holds 8 GiB - 1 at most."""
    from headway.formats.hashed_writer import HashedWriter
    from headway.formats.shard_tar import _header, _pax_record

    name = "d" * 200 + "/00000001.CAM.jpeg"
    with HashedWriter(tmp_path / "a.tar") as out:
        writer = TarWriter(out)
        at = writer.add(name, b"payload")
        writer.add("next", b"x")
        writer.close()
    data = (tmp_path / "a.tar").read_bytes()
    assert data[at : at + 7] == b"payload"
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == [name, "next"]
    listed = subprocess.run(["tar", "tf", str(tmp_path / "a.tar")], check=True, capture_output=True, text=True).stdout
    assert listed.split() == [name, "next"]
    assert _pax_record("size", str(1 << 33)) == b"19 size=8589934592\n"
    assert tarfile.TarInfo.frombuf(_header(b"n", (1 << 33) - 1, b"0"), "utf-8", "strict").size == (1 << 33) - 1


def test_names_with_dots_and_spaces_are_escaped_not_split() -> None:
    """webdataset/webdataset#237, huggingface/datasets#7150: dots in names are not extensions."""
    assert escape("v2.0/x ö") == "v2%2E0%2Fx%20%C3%B6"


def test_pyarrow_reads_an_arrow_shard_with_useful_types(sets: dict[str, Path]) -> None:
    packed = open_set(sets["arrow"])
    batch = pa.ipc.open_file(str(sets["arrow"] / packed.manifest.shards[0].data_name)).get_batch(0)
    batch.validate(full=True)
    first = batch.column("CAM.payload")[0].as_py()
    assert first == [bytes(packed.timeline("CAM").payload(row)) for row in packed.filed("CAM", 0)]
    kind = batch.schema.field("CAM.intrinsics").type.value_type
    assert isinstance(kind, pa.FixedShapeTensorType)
    assert list(kind.shape) == [3, 3]


def test_merging_gives_the_set_that_packing_both_gives(tmp_path: Path) -> None:
    whole = pack(ramp_spec(drives=4), tmp_path / "whole", PackOptions(workers=1)).manifest
    first = pack(ramp_spec(drives=2), tmp_path / "a", PackOptions(workers=1)).manifest
    # The drives of the second set are those of the whole one, without the first two.
    second = pack(ramp_spec(drives=4, skip=2), tmp_path / "b", PackOptions(workers=1, format="tar")).manifest
    merged = merge_sets([tmp_path / "b", tmp_path / "a"], tmp_path / "set")
    assert merged.set_id == whole.set_id
    assert merged.sensors == whole.sensors
    assert merged.frames == first.frames + second.frames
    assert verify_set(tmp_path / "set").ok
    with open_set(tmp_path / "set") as packed, open_set(tmp_path / "whole") as wanted:
        rows = np.arange(len(wanted.timeline("CAM")))
        for column in ("stamp", "intrinsics"):
            assert np.array_equal(packed.timeline("CAM").take(column, rows), wanted.timeline("CAM").take(column, rows))
        assert all(packed.timeline("CAM").payload(row) == wanted.timeline("CAM").payload(row) for row in rows.tolist())
        assert packed.attachment("drive-3", "log.txt") == b"log of drive-3"


def test_merging_refuses_equal_drives_and_other_schemas(sets: dict[str, Path], tmp_path: Path) -> None:
    pack(ramp_spec(drives=1), tmp_path / "a", PackOptions(workers=1))
    for pair in ([tmp_path / "a", tmp_path / "a"], [tmp_path / "a", sets["tar"]]):
        with pytest.raises(UsageError, match="both hold drive"):
            merge_sets(pair, tmp_path / "set")
    pack(ramp_spec(drives=1), tmp_path / "b", PackOptions(workers=1, sensors=("KEY", "CAM")))
    with pytest.raises(UsageError, match="schemas differ"):
        merge_sets([tmp_path / "a", tmp_path / "b"], tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_tar_headers_are_constant() -> None:
    from headway.formats.shard_tar import _header

    info = tarfile.TarInfo.frombuf(_header(b"a/b", 5, b"0"), "utf-8", "strict")
    assert (info.mtime, info.uid, info.gid, info.mode, info.size, info.isreg()) == (0, 0, 0, 0o644, 5, True)
