"""ROS messages → sensors and rows: one converter a message type, each stating its sensor from a first message.

Definitions: common_interfaces (sensor_msgs, nav_msgs, geometry_msgs) of ROS 2; ROS 1 differs only in the header's sequence
number. Quaternions arrive as x y z w and leave as w x y z; stamps are header stamps where there is a header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np

from ..errors import DecodeError
from ..image_header import codec_of, image_size
from ..schema import Camera, Column, Sensor
from ..source import Payload
from .rosbag_tf import pose_of

__all__ = ["CONVERTERS", "Converter", "NotTaken", "stamp_of"]

Message = Any  # message classes are built at run time from the definitions in the bag
Values = dict[str, Any]

# sensor_msgs/PointField datatypes 1 to 8.
_POINT_TYPES: Final = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
_RAW_ENCODINGS: Final[Mapping[str, tuple[str, int, str]]] = {
    "rgb8": ("uint8", 3, "rgb"),
    "bgr8": ("uint8", 3, "rgb"),
    "mono8": ("uint8", 1, "mono"),
    "8UC1": ("uint8", 1, "mono"),
    "8UC3": ("uint8", 3, "rgb"),
    "mono16": ("uint16", 1, "mono"),
    "16UC1": ("uint16", 1, "depth"),
    "32FC1": ("float32", 1, "depth"),
    "bayer_rggb8": ("uint8", 1, "bayer_rggb"),
    "bayer_bggr8": ("uint8", 1, "bayer_bggr"),
    "bayer_grbg8": ("uint8", 1, "bayer_grbg"),
    "bayer_gbrg8": ("uint8", 1, "bayer_gbrg"),
}
_DEPTH_HEADER_BYTES: Final = 12  # compressed_depth_image_transport puts its configuration before the PNG


class NotTaken(Exception):
    """A topic that cannot become a sensor; the text says why and goes into the list of ignored things."""


class Converter(Protocol):
    """How one message type becomes rows of a sensor."""

    def sensor(self, name: str, message: Message) -> Sensor:
        """Describe the sensor by its first message; raise `NotTaken` if it cannot be packed."""
        ...

    def columns(self, message: Message) -> Values:
        """Return the row's column values."""
        ...

    def payload(self, sensor: Sensor, message: Message) -> bytes | None:
        """Return the payload as bytes to be kept until it is packed; None for a sensor without payloads."""
        ...

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        """Turn kept bytes into what the codec takes."""
        ...


def stamp_of(message: Message, log_time: int) -> int:
    """Return the header stamp in ns, or the log time of a message without a header or with stamp zero."""
    header = getattr(message, "header", None)
    if header is None:
        return log_time
    return (header.stamp.sec * 1_000_000_000 + header.stamp.nanosec) or log_time


class _Compressed:
    """sensor_msgs/CompressedImage: `format` is free text, so the bytes decide."""

    def sensor(self, name: str, message: Message) -> Sensor:
        data = self.payload(None, message)
        codec = codec_of(data)
        if codec == "jpeg":
            return Sensor(name=name, kind="image", codec="jpeg", columns=_SIZE, camera=Camera())
        if codec == "png":
            depth = "depth" in message.format.lower() or (data[25] == 0 and data[24] == 16)
            return Sensor(name=name, kind="image", codec="png", columns=_SIZE, camera=Camera(colour="depth" if depth else "rgb"))
        raise NotTaken(
            f"compressed images of format {message.format!r} are neither JPEG nor PNG; decode the video to images first"
        )

    def columns(self, message: Message) -> Values:
        width, height = _stated_size(self.payload(None, message))
        return {"width": width, "height": height}

    def payload(self, sensor: Sensor | None, message: Message) -> bytes:
        data: bytes = message.data.tobytes()
        return data[_DEPTH_HEADER_BYTES:] if "compressedDepth" in message.format else data

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        return data


class _Raw:
    """sensor_msgs/Image: rows without their padding; bgr becomes rgb, which the schema then says."""

    def sensor(self, name: str, message: Message) -> Sensor:
        if message.encoding not in _RAW_ENCODINGS:
            raise NotTaken(f"image encoding {message.encoding!r} is none of {', '.join(_RAW_ENCODINGS)}")
        dtype, channels, colour = _RAW_ENCODINGS[message.encoding]
        pixel = Column(name="pixel", dtype=dtype, shape=(channels,) if channels > 1 else ())
        camera = Camera(colour=colour)  # type: ignore[arg-type]  # the table above holds only names that Camera knows
        return Sensor(name=name, kind="image", codec="raw", columns=_SIZE, fields=(pixel,), camera=camera)

    def columns(self, message: Message) -> Values:
        return {"width": message.width, "height": message.height}

    def payload(self, sensor: Sensor, message: Message) -> bytes:
        dtype, channels, _ = _RAW_ENCODINGS.get(message.encoding, ("", 0, ""))
        if not dtype or np.dtype(dtype) != sensor.fields[0].numpy_dtype or channels != (sensor.fields[0].shape or (1,))[0]:
            raise DecodeError(f"image encoding changed to {message.encoding!r} within topic {sensor.name!r}")
        order: Literal[">", "<"] = ">" if message.is_bigendian else "<"
        row = message.width * channels * np.dtype(dtype).itemsize
        if message.step < row or len(message.data) < message.step * message.height:
            raise DecodeError(
                f"image of {sensor.name!r}: step {message.step} × {message.height} rows does not fit {len(message.data)} bytes"
            )
        rows = message.data[: message.step * message.height].reshape(message.height, message.step)[:, :row]
        pixels = (
            np.ascontiguousarray(rows).view(np.dtype(dtype).newbyteorder(order)).reshape(message.height, message.width, channels)
        )
        if message.encoding == "bgr8":
            pixels = pixels[..., ::-1]
        return pixels.astype(sensor.fields[0].numpy_dtype).tobytes()

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        return data


class _Points:
    """sensor_msgs/PointCloud2: fields by name, offset and datatype as declared; padding dropped, NaN kept bit for bit."""

    def sensor(self, name: str, message: Message) -> Sensor:
        fields = []
        for field in sorted(message.fields, key=lambda field: field.offset):
            if not 1 <= field.datatype <= len(_POINT_TYPES):
                raise NotTaken(f"point field {field.name!r} has unknown datatype {field.datatype}")
            unit = "m" if field.name in ("x", "y", "z") else ""
            shape = (field.count,) if field.count > 1 else ()
            fields.append(
                Column(
                    name=field.name,
                    dtype=_POINT_TYPES[field.datatype - 1],
                    shape=shape,
                    unit=unit,
                    frame="sensor" if unit else "",
                )
            )
        return Sensor(
            name=name,
            kind="points",
            codec="points-lossless",
            columns=(Column(name="points", dtype="int32"),),
            fields=tuple(fields),
        )

    def columns(self, message: Message) -> Values:
        return {"points": message.width * message.height}

    def payload(self, sensor: Sensor, message: Message) -> bytes:
        order: Literal[">", "<"] = ">" if message.is_bigendian else "<"
        fields = sorted(message.fields, key=lambda field: field.offset)
        layout = np.dtype(
            {
                "names": [field.name for field in fields],
                "formats": [
                    (_POINT_TYPES[f.datatype - 1], (f.count,)) if f.count > 1 else _POINT_TYPES[f.datatype - 1] for f in fields
                ],
                "offsets": [field.offset for field in fields],
                "itemsize": message.point_step,
            }
        ).newbyteorder(order)
        if layout.names != sensor.record_dtype.names:
            raise DecodeError(
                f"point fields changed within topic {sensor.name!r}: {layout.names}, first {sensor.record_dtype.names}"
            )
        used = message.width * message.point_step
        if message.row_step < used or len(message.data) < message.row_step * message.height:
            raise DecodeError(
                f"points of {sensor.name!r}: {message.height} rows of {message.row_step} do not fit {len(message.data)} bytes"
            )
        rows = message.data[: message.row_step * message.height].reshape(message.height, message.row_step)[:, :used]
        records = np.ascontiguousarray(rows).reshape(-1).view(layout)
        packed = np.empty(len(records), sensor.record_dtype)
        for column in layout.names or ():
            packed[column] = records[column]
        return packed.tobytes()

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        return np.frombuffer(data, sensor.record_dtype)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A message of a few numbers: columns only."""

    fields: tuple[Column, ...]
    get: Any  # Callable[[Message], Values]; dataclasses of lambdas type-check only as Any

    def sensor(self, name: str, message: Message) -> Sensor:
        return Sensor(name=name, kind="array", codec=None, columns=self.fields)

    def columns(self, message: Message) -> Values:
        values: Values = self.get(message)
        return values

    def payload(self, sensor: Sensor, message: Message) -> None:
        return None

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        raise AssertionError("a timeline of columns has no payloads")


class _Text:
    """std_msgs/String."""

    def sensor(self, name: str, message: Message) -> Sensor:
        return Sensor(name=name, kind="text", codec="text")

    def columns(self, message: Message) -> Values:
        return {}

    def payload(self, sensor: Sensor, message: Message) -> bytes:
        return str(message.data).encode()

    def load(self, sensor: Sensor, data: bytes) -> Payload:
        return data.decode()


_SIZE: Final = (Column(name="width", dtype="int32", unit="px"), Column(name="height", dtype="int32", unit="px"))
_POSE: Final = Column(name="pose", dtype="float64", shape=(7,), unit="m")


def _vector(name: str, unit: str) -> Column:
    return Column(name=name, dtype="float64", shape=(3,), unit=unit)


def _xyz(vector: Message) -> list[float]:
    return [vector.x, vector.y, vector.z]


def _wxyz(quaternion: Message) -> list[float]:
    return [quaternion.w, quaternion.x, quaternion.y, quaternion.z]


CONVERTERS: Final[Mapping[str, Converter]] = {
    "sensor_msgs/msg/CompressedImage": _Compressed(),
    "sensor_msgs/msg/Image": _Raw(),
    "sensor_msgs/msg/PointCloud2": _Points(),
    "std_msgs/msg/String": _Text(),
    "nav_msgs/msg/Odometry": _Columns(
        (_POSE, _vector("linear_velocity", "m/s"), _vector("angular_velocity", "rad/s")),
        lambda m: {
            "pose": pose_of(m.pose.pose.position, m.pose.pose.orientation),
            "linear_velocity": _xyz(m.twist.twist.linear),
            "angular_velocity": _xyz(m.twist.twist.angular),
        },
    ),
    "geometry_msgs/msg/PoseStamped": _Columns((_POSE,), lambda m: {"pose": pose_of(m.pose.position, m.pose.orientation)}),
    "geometry_msgs/msg/PoseWithCovarianceStamped": _Columns(
        (_POSE, Column(name="covariance", dtype="float64", shape=(6, 6))),
        lambda m: {"pose": pose_of(m.pose.pose.position, m.pose.pose.orientation), "covariance": m.pose.covariance.reshape(6, 6)},
    ),
    "sensor_msgs/msg/Imu": _Columns(
        (
            Column(name="orientation", dtype="float64", shape=(4,)),
            _vector("angular_velocity", "rad/s"),
            _vector("linear_acceleration", "m/s²"),
        ),
        lambda m: {
            "orientation": _wxyz(m.orientation),
            "angular_velocity": _xyz(m.angular_velocity),
            "linear_acceleration": _xyz(m.linear_acceleration),
        },
    ),
    "sensor_msgs/msg/NavSatFix": _Columns(
        (
            Column(name="latitude", dtype="float64", unit="deg"),
            Column(name="longitude", dtype="float64", unit="deg"),
            Column(name="altitude", dtype="float64", unit="m"),
            Column(name="status", dtype="int8"),
        ),
        lambda m: {"latitude": m.latitude, "longitude": m.longitude, "altitude": m.altitude, "status": m.status.status},
    ),
}


def _stated_size(data: bytes) -> tuple[int, int]:
    """Width and height from the header of a JPEG or PNG, zeros where it has none; the full check is the packer's."""
    try:
        return image_size(data, codec_of(data) or "jpeg")
    except DecodeError:
        return 0, 0


def is_rectified(topic: str) -> bool:
    """Say whether an image topic is rectified by ROS convention (image_rect, image_rect_color …)."""
    return bool(re.search(r"image_rect(_|/|$)", topic))
