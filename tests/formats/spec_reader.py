"""A reader of packed sets written from SPEC.md alone: it shares no code with headway.formats."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

CHUNK = 65536


class SpecSet:
    """A set, read by its specification."""

    def __init__(self, location: Path) -> None:
        self.location = location
        data = (location / "manifest.json").read_bytes()
        if hashlib.sha256(data[8:-78]).hexdigest() != json.loads(data)["sha256"]:
            raise ValueError("the manifest is damaged")
        self.manifest: dict[str, Any] = json.loads(data)["body"]
        if self.manifest["format"] != 0:
            raise ValueError("unknown format version")
        self.sensors: list[dict[str, Any]] = self.manifest["schema"]["sensors"]
        self.batches = [self._batch(shard) for shard in self.manifest["shards"]]

    def rows(self, drive: dict[str, Any], sensor: int) -> Iterator[tuple[int, dict[str, Any], bytes | None]]:
        """Yield stamp, columns and payload of every row of a sensor in a drive."""
        facts = self.sensors[sensor]
        name = facts["name"].replace("%", "%25").replace(".", "%2E")
        for number, batch, first, frames in self._parts(drive):
            wanted = ["stamp", *(column["name"] for column in facts.get("columns", []))]
            lists = {column: batch.column(f"{name}.{column}") for column in wanted}
            start, stop = (lists["stamp"].offsets[at].as_py() for at in (first, first + frames))
            flat = {column: _numpy(values.values) for column, values in lists.items()}
            for row in range(start, stop):
                columns = {column: values[row] for column, values in flat.items() if column != "stamp"}
                payload = self._payload(number, batch, name, row) if "codec" in facts else None
                yield int(flat["stamp"][row]), columns, payload

    def own(self, drive: dict[str, Any], sensor: int) -> list[int]:
        """Return, for each frame of a drive, which row of the drive is its own."""
        name = self.sensors[sensor]["name"].replace("%", "%25").replace(".", "%2E")
        found: list[int] = []
        before = 0
        for _, batch, first, frames in self._parts(drive):
            offsets = batch.column(f"{name}.stamp").offsets.to_numpy()
            local = batch.column(f"{name}.own").to_numpy()
            for frame in range(first, first + frames):
                at = int(local[frame])
                found.append(-1 if at < 0 else before + int(offsets[frame] - offsets[first]) + at)
            before += int(offsets[first + frames] - offsets[first])
        return found

    def set_id(self) -> str:
        """Compute the set id from what was read."""
        schema = json.dumps(self.manifest["schema"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        digest = hashlib.sha256(struct.pack("<q", len(schema)) + schema)
        for drive in self.manifest["drives"]:
            name = drive["name"].encode()
            digest.update(struct.pack("<qq", len(name), sum(part["frames"] for part in drive["parts"])) + name)
            for at, sensor in enumerate(self.sensors):
                rows = list(self.rows(drive, at))
                digest.update(struct.pack("<q", len(rows)))
                for stamp, columns, payload in rows:
                    digest.update(struct.pack("<q", stamp))
                    for column in sensor.get("columns", []):
                        digest.update(np.ascontiguousarray(columns[column["name"]]).tobytes())
                    if payload is not None:
                        digest.update(struct.pack("<qQ", len(payload), xxhash.xxh3_64_intdigest(payload)))
                digest.update(np.array(self.own(drive, at), "<i8").tobytes())
        return digest.hexdigest()

    def _parts(self, drive: dict[str, Any]) -> Iterator[tuple[int, Any, int, int]]:
        """Yield shard number, batch, first frame in the batch and frames of each part of a drive."""
        for wanted in drive["parts"]:
            first = 0
            for part in (part for other in self.manifest["drives"] for part in other["parts"]):
                if part is wanted:
                    break
                first += part["frames"] if part["shard"] == wanted["shard"] else 0
            yield wanted["shard"], self.batches[wanted["shard"]], first, wanted["frames"]

    def _batch(self, shard: dict[str, Any]) -> Any:
        index = (self.location / f"{shard['name']}.arrow").read_bytes()
        sums = (self.location / f"{shard['name']}.sums").read_bytes()
        found = [xxhash.xxh3_64_intdigest(index[at : at + CHUNK]) for at in range(0, len(index), CHUNK)]
        if f"{xxhash.xxh3_64_intdigest(sums):016x}" != shard["sums"] or sums != struct.pack(f"<{len(found)}Q", *found):
            raise ValueError(f"shard {shard['name']} is damaged")
        return pa.ipc.open_file(pa.py_buffer(index)).get_batch(0)

    def _payload(self, number: int, batch: Any, name: str, row: int) -> bytes:
        shard = self.manifest["shards"][number]
        if shard["kind"] == "arrow":
            payload: bytes = batch.column(f"{name}.payload").values[row].as_py()
        else:
            offset, length = (batch.column(f"{name}.{what}").values[row].as_py() for what in ("offset", "length"))
            with open(self.location / f"{shard['name']}.tar", "rb") as file:
                file.seek(offset)
                payload = file.read(length)
        if xxhash.xxh3_64_intdigest(payload) != batch.column(f"{name}.hash").values[row].as_py():
            raise ValueError(f"a payload of {name} is damaged")
        return payload


def _numpy(values: Any) -> Any:
    if isinstance(values, pa.ExtensionArray):
        return values.to_numpy_ndarray()
    return values.to_numpy(zero_copy_only=False)
