"""Records that use every layout of the points codec, and damage done to their payloads.

`python -m tests.laws.points_mutants N` decodes N mutants and prints, as JSON, how many were refused; anything but a
`DecodeError` ends it. HEADWAY_NATIVE=0 makes it test the numpy path; `digest` adds a hash of all answers, on payloads
without zstd, two versions of which need not make the same of the same damage.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.formats import kernel
from headway.formats._point_columns import plan_column, split_column
from headway.formats._point_payload import assemble
from headway.formats.errors import DecodeError
from headway.formats.points import decode_points, encode_points
from headway.formats.schema import Column, Sensor

Records = NDArray[Any]


def column_values(rng: np.random.Generator, maker: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if maker == "noise":
        return rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
    values: NDArray[Any]
    if maker == "constant":
        values = np.full(size, rng.integers(0, 100))
    elif maker == "counter":
        values = np.arange(size) * int(rng.integers(1, 70000))
    elif maker == "beams":
        values = np.arange(size) % 32 + rng.integers(0, 2, size)
    elif maker == "walk":
        values = rng.normal(0, 1, size).cumsum()
    else:
        values = np.rint(rng.normal(0, 3000, size)) / (1 if maker == "rounded" else 100)
    with np.errstate(all="ignore"):
        values = (values if dtype.kind == "f" else values.astype(np.int64)).astype(dtype)
    if maker == "odd" and dtype.kind == "f":
        values[:: max(size // 7, 1)] = rng.choice(np.array([np.nan, -0.0, np.inf, 1e-40, 6e4], dtype))
    return values.reshape(shape)


def radar(count: int) -> tuple[Sensor, Records]:
    """Return records that between them use every layout: bits and decimals, planes and plain, patches, fills, strides."""
    makers = {
        "float32": "walk",
        "float64": "hundredths",
        "uint8": "beams",
        "int16": "rounded",
        "bool": "noise",
        "uint32": "counter",
    }
    fields = [Column(name=dtype, dtype=dtype) for dtype in makers]
    fields += [
        Column(name="odd", dtype="float32", shape=(2,)),
        Column(name="same", dtype="float32"),
        Column(name="class", dtype="float16"),
    ]
    sensor = Sensor(name="R", kind="points", codec="points-lossless", fields=tuple(fields))
    records = np.zeros(count, sensor.record_dtype)
    rng = np.random.default_rng(count)
    for dtype, maker in makers.items():
        records[dtype] = column_values(rng, maker, np.dtype(dtype), (count,))
    records["odd"] = column_values(rng, "hundredths", np.dtype("f4"), (count, 2))
    records["odd"][::100] = -0.0
    records["class"] = rng.choice(rng.normal(size=5).astype(np.float16), count)
    return sensor, records


def mutate(payload: bytes, rng: random.Random) -> bytes:
    """Change a few bits, bytes or numbers, mostly near the front where the sizes are, or cut, repeat and insert."""
    data = bytearray(payload)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        front = min(len(data), 400) if rng.random() < 0.7 else len(data)
        if not front:
            break
        at, kind = rng.randrange(front), rng.random()
        if kind < 0.4:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            data[at] = rng.choice([0, 1, 2, 3, 4, 8, 127, 128, 255])
        elif kind < 0.8:
            data[at : at + 4] = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data), rng.randrange(2**32)]).to_bytes(
                4, "little"
            )
        elif kind < 0.87:
            del data[at:]
        elif kind < 0.94:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 9)]
    return bytes(data)


def uncompressed(sensor: Sensor, records: Records) -> bytes:
    """Return a payload with all layouts and no zstd frame."""
    layouts, streams = [], []
    for field in sensor.fields:
        for index in np.ndindex(field.shape):
            values = np.ascontiguousarray(records[field.name][(..., *index)])
            layout, integers, patches = plan_column(values)
            layouts.append(layout)
            streams += split_column(values, layout, integers, patches)
    return assemble(len(records), records.itemsize, layouts, streams, flags=0, error_m=0.0, compress=False)


def main(mutants: int, *, digest: bool) -> dict[str, Any]:  # Any: plain JSON
    """Decode `mutants` damaged payloads of four sizes."""
    rng, refused, answers = random.Random(4), 0, hashlib.sha256()
    for count in (3, 40, 700, 5000):
        sensor, records = radar(count)
        payload = uncompressed(sensor, records) if digest else encode_points(records, sensor)
        for _ in range(mutants // 4):
            try:
                found = decode_points(mutate(payload, rng), sensor, limit_bytes=1 << 22)
            except DecodeError:
                refused += 1
                answers.update(b"refused")
            else:
                if digest:
                    answers.update(found.tobytes())
    return {"native": kernel.available(), "mutants": mutants, "refused": refused, "digest": answers.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), digest="digest" in sys.argv[2:])))
