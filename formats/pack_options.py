"""How a set is to be packed: options that change its bytes, and some that do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

from .errors import UsageError
from .image_facts import CheckImages, with_facts
from .limits import DEFAULT_LIMITS, Limits
from .schema import ImageEdit, Schema, Sensor
from .shard import ShardKind

__all__ = ["BadImages", "Engine", "PackOptions", "Progress"]

BadImages = Literal["fail", "reject", "keep"]
Engine = Literal["local", "ray"]
PointsCodec = Literal["points-raw", "points-lossless", "points-quantised"]


class Progress(Protocol):
    """Is told how far a long task is; called from the calling thread only."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes starts."""
        ...

    def advance(self, amount: int) -> None:
        """So many bytes more are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """Options of `pack`."""

    format: ShardKind = "arrow"
    """Shard kind: "arrow" to train from, "tar" where tar tools or webdataset read along."""
    shard_bytes: int = 256_000_000
    """Aim for the size of one data file, by source bytes. Smaller ones suit small sets and object stores' caches."""
    workers: int | None = None
    """Pack worker processes; 1: none, work is done here; None: done here, and by others where that pays, as many as this process
    may use cores. Bytes do not depend on it."""
    engine: Engine = "local"
    """"local": processes of this machine; "ray": tasks of a Ray cluster. Bytes do not depend on it."""
    overwrite: bool = False
    """Replace a set at the destination; it stays readable until the new one stands."""
    resume: bool = False
    """Keep the finished shards of an interrupted run with the same source and options."""
    bad_images: BadImages = "fail"
    """What to do with images that are cut short, empty or not what the sensor says; "reject" and "keep" list each one."""
    check_images: CheckImages = "markers"
    """"markers" walks each JPEG or PNG to its end; "decode" decodes it, too, and is for sources that may hold damage
    inside otherwise whole files; it costs as much as one epoch's decoding."""
    image_edit: ImageEdit | None = None
    """Crop, scale or encode images anew, which then are no longer the source's bytes; None keeps them bit for bit."""
    edit_sensors: tuple[str, ...] | None = None
    """Names of the sensors to edit; None: all image sensors in the set."""
    points_codec: PointsCodec | None = None
    """Codec for all point sensors; None leaves each as its source declares it."""
    precision_mm: int = 1
    """Grid of points-quantised."""
    drop_nan: bool = False
    """points-quantised only: leave out points without a finite position."""
    sensors: tuple[str, ...] | None = None
    """Names to pack; None packs all. The reference sensor must be among them."""
    limits: Limits = DEFAULT_LIMITS
    """Raise `shard_bytes` here for payloads or shards above 1 GiB."""

    def __post_init__(self) -> None:
        if self.format not in get_args(ShardKind):
            raise UsageError(f"format {self.format!r} is none of {', '.join(get_args(ShardKind))}")
        if self.engine not in get_args(Engine):
            raise UsageError(f"engine {self.engine!r} is none of {', '.join(get_args(Engine))}")
        if self.bad_images not in get_args(BadImages):
            raise UsageError(f"bad_images {self.bad_images!r} is none of {', '.join(get_args(BadImages))}")
        if self.check_images not in get_args(CheckImages):
            raise UsageError(f"check_images {self.check_images!r} is none of {', '.join(get_args(CheckImages))}")
        if self.edit_sensors is not None and self.image_edit is None:
            raise UsageError("edit_sensors without an edit: say what to do to them (image_edit)")
        if self.points_codec is not None and self.points_codec not in get_args(PointsCodec):
            raise UsageError(f"points_codec {self.points_codec!r} is none of {', '.join(get_args(PointsCodec))}")
        if not 1 <= self.shard_bytes <= self.limits.shard_bytes:
            raise UsageError(f"shard_bytes must be 1 to {self.limits.shard_bytes} (Limits.shard_bytes), found {self.shard_bytes}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, found {self.workers}")
        if self.overwrite and self.resume:
            raise UsageError("overwrite and resume exclude each other: resume continues a run that never published")

    def packed_schema(self, schema: Schema) -> Schema:
        """Return the schema of the set: sensors chosen, point codecs set, columns for image facts added."""
        chosen = schema.sensors
        if self.sensors is not None:
            unknown = sorted(set(self.sensors) - set(schema.by_name))
            if unknown:
                raise UsageError(f"cannot pack sensors {unknown}: the source has {', '.join(schema.by_name)}")
            if schema.reference not in self.sensors:
                raise UsageError(f"cannot leave out {schema.reference!r}: its rows define the frames; add it to the sensors")
            chosen = tuple(sensor for sensor in chosen if sensor.name in self.sensors)
        if self.points_codec is not None:
            chosen = tuple(
                replace(sensor, codec=self.points_codec) if sensor.kind == "points" and sensor.codec is not None else sensor
                for sensor in chosen
            )
        if self.drop_nan and all(sensor.codec != "points-quantised" for sensor in chosen):
            raise UsageError(
                "drop_nan leaves points out of points-quantised sensors only, and none is packed so; set --lidar-precision"
            )
        return Schema(reference=schema.reference, sensors=tuple(with_facts(sensor) for sensor in self._edited(chosen)))

    def _edited(self, sensors: tuple[Sensor, ...]) -> tuple[Sensor, ...]:
        """Put the edit on record with the sensors it concerns."""
        edit = self.image_edit
        if edit is None:
            return sensors
        from .image_edit import with_edit  # loads codecs that most packing never needs

        images = {sensor.name for sensor in sensors if sensor.kind == "image"}
        names = images if self.edit_sensors is None else set(self.edit_sensors)
        if unknown := sorted(names - images):
            raise UsageError(f"cannot edit images of {unknown}: the image sensors of the set are {', '.join(sorted(images))}")
        boxed = [
            f"{sensor.name}.{field.name}" for sensor in sensors for field in sensor.fields if field.unit == "px" and field.shape
        ]
        if edit.moves_pixels and boxed:
            raise UsageError(
                f"cannot crop or scale images: {', '.join(boxed)} holds pixel positions, and which image they lie in is not "
                "declared; leave that sensor out (--sensors), or pack images as they are and let Images(size=…) scale them"
            )
        return tuple(with_edit(sensor, edit) if sensor.name in names else sensor for sensor in sensors)
