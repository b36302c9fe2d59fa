"""Reports from the field about packing, formats and tools that no other test of these folders names, each held as a case."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headway.formats import HeadwayError, PackOptions, SourceSpec, merge_sets, open_set, pack, verify_set
from headway.formats.adapters.webdataset import WebDataset
from tests.formats.ramp import ramp_spec


def write_tar(path: Path, members: list[tuple[str, bytes]], *, format: int = tarfile.PAX_FORMAT, **pax: str) -> None:
    with tarfile.open(path, "w", format=format, pax_headers=pax) as sink:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5
            if format != tarfile.PAX_FORMAT:
                info.mtime = 1
            sink.addfile(info, io.BytesIO(data))


def samples(path: Path) -> dict[str, list[bytes]]:
    """Read every payload of a tar through the adapter, by sensor."""
    source = WebDataset(path)
    (listing,) = source.listings
    timelines = source.open_drive(listing.name).timelines
    return {
        name: [bytes(str(timeline.read(i)), "utf-8") for i in range(len(timeline.stamps))]
        for name, timeline in timelines.items()
        if timeline.read is not None
    }


def test_every_payload_survives_a_merge(tmp_path: Path) -> None:
    """huggingface/lerobot#2627: no reference of a merged set points into the wrong file."""
    digests = []
    for name, options in (("a", {"drives": 2, "frames": 6}), ("b", {"drives": 5, "frames": 5, "skip": 2})):
        pack(ramp_spec(**options), tmp_path / name)
        digests += payload_digests(tmp_path / name)
    merge_sets([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert sorted(payload_digests(tmp_path / "both")) == sorted(digests)
    assert verify_set(tmp_path / "both").ok


def payload_digests(location: Path) -> list[str]:
    with open_set(location) as packed:
        return [
            hashlib.sha256(packed.timeline(sensor.name).payload(row)).hexdigest()
            for sensor in packed.schema.sensors
            if sensor.codec is not None
            for row in range(len(packed.timeline(sensor.name)))
        ]


def test_a_field_that_one_sample_lacks_is_absent_there_and_nowhere_else(tmp_path: Path) -> None:
    """huggingface/datasets#7144: a name with dots must not turn into a silent None; what is missing is told as missing."""
    members = [(f"{i:02d}.text.txt", f"t{i}".encode()) for i in range(10) if i != 4] + [
        (f"{i:02d}.note.txt", b"n") for i in range(10)
    ]
    write_tar(tmp_path / "x.tar", sorted(members))
    source = WebDataset(tmp_path / "x.tar")
    own = source.open_drive("x").timelines["text"].own
    assert own is not None
    assert own.tolist() == [0, 1, 2, 3, -1, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("order", ["together", "apart"])
def test_members_of_a_sample_may_lie_apart(order: str, tmp_path: Path) -> None:
    """webdataset/webdataset#407, ray-project/ray#65044: a key that comes back is the same sample, not another half of one."""
    members = [("000.a.txt", b"a0"), ("000.b.txt", b"b0"), ("001.a.txt", b"a1"), ("001.b.txt", b"b1")]
    if order == "apart":
        members = [members[0], members[2], members[1], members[3]]
    write_tar(tmp_path / "x.tar", members)
    assert samples(tmp_path / "x.tar") == {"a": [b"a0", b"a1"], "b": [b"b0", b"b1"]}
    assert len(WebDataset(tmp_path / "x.tar").open_drive("x").timelines["frame"].stamps) == 2


def test_dialects_of_tar_are_read_alike(tmp_path: Path) -> None:
    """NVIDIA/DALI#3640: ustar, GNU and PAX, with a global header, give one stream."""
    members = [(f"drive/{'long' * 20}/{i:03d}.text.txt", f"value {i}".encode()) for i in range(50)]
    write_tar(tmp_path / "ustar.tar", members, format=tarfile.USTAR_FORMAT)
    write_tar(tmp_path / "gnu.tar", members, format=tarfile.GNU_FORMAT)
    write_tar(tmp_path / "pax.tar", members, comment="a global header")
    found = [samples(tmp_path / f"{dialect}.tar") for dialect in ("ustar", "gnu", "pax")]
    assert found[0] == found[1] == found[2] == {"text": [f"value {i}".encode() for i in range(50)]}


def test_a_pax_size_wins_over_the_header_s(tmp_path: Path) -> None:
    """libarchive/libarchive#2405: the member behind must stay intact, too."""
    record = b"11 size=10\n"  # "length key=value", the length counting itself
    extended, first, second = tarfile.TarInfo("pax"), tarfile.TarInfo("0.text.txt"), tarfile.TarInfo("1.text.txt")
    extended.type, extended.size = tarfile.XHDTYPE, len(record)
    first.size, second.size = 0, 3
    blocks = [extended.tobuf(tarfile.USTAR_FORMAT), record, first.tobuf(tarfile.USTAR_FORMAT), b"0123456789"]
    blocks += [second.tobuf(tarfile.USTAR_FORMAT), b"end", bytes(1024)]
    (tmp_path / "x.tar").write_bytes(b"".join(block.ljust(-(-len(block) // 512) * 512, b"\0") for block in blocks))
    assert samples(tmp_path / "x.tar") == {"text": [b"0123456789", b"end"]}


def test_names_of_shards_come_from_the_manifest_only(tmp_path: Path) -> None:
    """rom1504/img2dataset#174: a gap in shard numbers, or a stray shard beside them, changes nothing for a reader."""
    pack(ramp_spec(drives=6, frames=8), tmp_path / "set", PackOptions(shard_bytes=20_000))
    with open_set(tmp_path / "set") as packed:
        names, before = [shard.name for shard in packed.manifest.shards], len(packed)
    assert len(names) > 1
    (tmp_path / "set" / "shard-00099-000-00000000.arrow").write_bytes(b"stray")
    with open_set(tmp_path / "set") as packed:
        assert [shard.name for shard in packed.manifest.shards] == names
        assert len(packed) == before


def test_errors_of_a_reader_name_shard_drive_sensor_and_stamp(tmp_path: Path) -> None:
    """ray-project/ray#48643: nobody has to bisect thousands of shards."""
    pack(ramp_spec(drives=1, frames=4), tmp_path / "set", PackOptions(format="tar"))
    with open_set(tmp_path / "set") as packed:
        timeline = packed.timeline("CAM")
        refs, stamp = timeline.refs(np.array([2])), int(timeline.stamps(0)[2])
        (shard,) = packed.manifest.shards
        path = tmp_path / "set" / shard.data_name
    data = bytearray(path.read_bytes())
    data[int(refs.offset[0])] ^= 1
    path.write_bytes(data)
    with open_set(tmp_path / "set") as packed, pytest.raises(HeadwayError) as caught:
        packed.timeline("CAM").payload(2)
    for part in (shard.name, "CAM", str(stamp), packed.drives[0].name):
        assert part in str(caught.value)


def test_errors_of_the_packer_name_the_source_file(tmp_path: Path) -> None:
    """traveller59/second.pytorch#285: one bad cloud of many is found by its name."""
    root = tmp_path / "source"
    (root / "drive" / "lidar").mkdir(parents=True)
    for i in range(300):
        (root / "drive" / "lidar" / f"{i + 1}.bin").write_bytes(bytes(16 if i != 217 else 15))
    description = 'reference: lidar\nsensors:\n  lidar: {kind: points, files: "lidar/{stamp}.bin", fields: [x, y, z, i]}\n'
    (root / "headway.yaml").write_text(description)
    with pytest.raises(HeadwayError, match=r"218\.bin"):
        pack(SourceSpec(kind="folder", path=str(root)), tmp_path / "set")
    assert not (tmp_path / "set").exists() or not list((tmp_path / "set").iterdir())


def test_extension_types_of_others_are_never_loaded(tmp_path: Path) -> None:
    """ray-project/ray#62056, ray-project/ray#41314: names known from advisories stay storage types, and nothing is run."""
    canary = tmp_path / "canary"
    payload = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
    schema = pa.schema(
        [
            pa.field("x", pa.int64(), metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": payload})
            for name in ("arrow.py_extension_type", "ray.data.arrow_tensor", "ray.data.arrow_pickled_object")
        ]
    )
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([1])] * 3, schema=schema))
    code = (
        "import sys, headway.formats, headway.loader.view, pyarrow as pa\n"
        "table = pa.ipc.open_file(sys.argv[1]).read_all()\n"
        "stored = [t.storage_type if isinstance(t, pa.BaseExtensionType) else t for t in table.schema.types]\n"
        "assert all(map(pa.types.is_int64, stored))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.arrow")], check=True)
    assert not canary.exists()
    assert tuple(int(part) for part in pa.__version__.split(".")[:3]) >= (23, 0, 1)
