"""MCAP files, rosbag2 folders (mcap, sqlite3) and rosbag1 files: one drive a bag, one sensor a topic.

Bags are read through `rosbags`, which checks MCAP chunk checksums. A bag is read once, front to back; payloads wait in an
unnamed temporary file until the packer asks for them, so memory does not grow with the bag and order does not matter.
TF gives `sensor_to_ego` and the "ego" timeline; camera_info gives intrinsics. Needs the extra `ros`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, MissingExtra, Problem, SourceError, UsageError
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Camera, Column, Schema, Sensor
from ..source import DriveListing, Ignored, Payload, SourceDrive, SourceTimeline
from .registry import SourceSpec
from .rosbag_messages import CONVERTERS, NotTaken, is_rectified, stamp_of
from .rosbag_tf import TransformTree, pose_of

__all__ = ["BagOptions", "RosBag", "open_source"]

_TF = "tf2_msgs/msg/TFMessage"
_CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_POSE = {"dtype": "float64", "shape": (7,), "unit": "m"}
_EGO = Sensor(name="ego", kind="array", codec=None, columns=(Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), unit="m"),))
_MODELS: Mapping[str, str] = {
    "plumb_bob": "brown",
    "rational_polynomial": "brown",
    "equidistant": "fisheye",
    "fisheye": "fisheye",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BagOptions:
    """How to read bags."""

    topics: tuple[str, ...] = ()
    """`sensor=/topic` pairs; empty: every topic of a known type, named as the topic without its first slash."""
    reference: str = ""
    """Sensor whose messages define frames; empty: the first points sensor, else image, else "ego", else the first by name."""
    base_frame: str = "base_link"
    """TF frame that is the ego."""
    world_frame: str = ""
    """TF frame that is the world; empty: the root of the tree that holds the base frame."""
    tf_gap_s: float = 0.1
    """How far poses may be held beyond what TF published, in seconds; more is refused."""
    repeated_stamps: Literal["refuse", "nudge"] = "refuse"
    """What to do when two messages of a topic carry one stamp: refuse, or move the later ones on by 1 ns each."""
    ros_distro: str = "ros2_humble"
    """Where message definitions come from when the bag has none (sqlite3 bags before Iron)."""


@dataclass(frozen=True, slots=True)
class _Topic:
    """What preflight found out about a topic."""

    sensor: Sensor
    frame_id: str = ""
    info_topic: str = ""


@dataclass(slots=True)
class _Rows:
    """Rows of one sensor while a bag is being read."""

    stamps: list[int] = field(default_factory=list)
    columns: list[dict[str, Any]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)


def open_source(spec: SourceSpec) -> RosBag:
    """Open a bag, or a folder of bags; options are the fields of `BagOptions`."""
    values = dict(spec.options)
    known = set(BagOptions.__dataclass_fields__)
    if unknown := set(values) - known:
        raise UsageError(f"rosbag has no option {sorted(unknown)}; it has {sorted(known)}")
    return RosBag(spec.path, BagOptions(**values))  # type: ignore[arg-type]  # __post_init__-less options are checked where used


class RosBag:
    """One or several bags seen as drives."""

    kind = "rosbag"

    def __init__(self, path: str | Path, options: BagOptions | None = None) -> None:
        try:
            import rosbags.highlevel
            import rosbags.typesys
        except ImportError as error:
            raise MissingExtra("ros", "reading bags") from error
        self._rosbags: Any = rosbags  # Any: rosbags is untyped here
        self.options = options or BagOptions()
        self.root = Path(path)
        self.licence = ""
        self._bags = {_name(bag): bag for bag in _find(self.root)}
        wanted = _topic_map(self.options.topics)
        ignored: dict[str, str] = {}
        problems: list[Problem] = []
        topics: dict[str, _Topic] = {}
        for bag in self._bags.values():
            try:
                self._look(bag, wanted, topics, ignored)
            except SourceError as error:
                problems += error.problems or [Problem(path=str(bag), reason=error.message)]
        if problems:
            raise SourceError(f"cannot pack {self.root}: {len(problems)} problems", problems)
        if self.options.repeated_stamps not in ("refuse", "nudge"):
            raise UsageError(f"repeated_stamps is 'refuse' or 'nudge', not {self.options.repeated_stamps!r}")
        if missing := set(wanted.values()) - set(topics):
            raise SourceError(
                f"cannot pack {self.root}: no messages on {sorted(missing)}; `pack-dataset inspect` lists the topics"
            )
        self._topics = topics
        self.ignored: Sequence[Ignored] = [Ignored(path=topic, reason=reason) for topic, reason in sorted(ignored.items())]
        self.schema = self._schema()
        self.listings: Sequence[DriveListing] = [
            DriveListing(name=name, source_bytes=_size(bag), attributes={}) for name, bag in sorted(self._bags.items())
        ]

    def open_drive(self, name: str) -> SourceDrive:
        """Read one bag."""
        bag = self._bags[name]
        spill = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the drive's timelines, which read from it
        rows = {topic: _Rows() for topic in self._topics}
        infos: dict[str, list[tuple[int, Any]]] = {topic.info_topic: [] for topic in self._topics.values() if topic.info_topic}
        transforms: list[tuple[bool, str, str, int, list[float]]] = []
        count = 0
        with self._open(bag) as reader:
            for connection, log_time, raw in reader.messages():
                topic, count = connection.topic, count + 1
                if topic not in rows and topic not in infos and connection.msgtype != _TF:
                    continue
                message = reader.deserialize(raw, connection.msgtype)
                if connection.msgtype == _TF:
                    transforms += _transforms(topic, message)
                elif topic in infos:
                    infos[topic].append((stamp_of(message, log_time), message))
                else:
                    _keep(rows[topic], self._topics[topic].sensor, connection.msgtype, message, log_time, spill)
            _check_count(bag, reader.message_count, count)
        tree = TransformTree(transforms)
        timelines: dict[str, SourceTimeline] = {}
        for topic, found in self._topics.items():
            if rows[topic].stamps:
                timelines[found.sensor.name] = self._timeline(
                    bag, topic, found, rows[topic], infos.get(found.info_topic, []), tree, spill
                )
        if "ego" in self.schema.by_name:
            stamps = tree.moving_stamps(self.options.base_frame, self._world(tree))
            poses = tree.lookup(self.options.base_frame, self._world(tree), stamps)
            timelines["ego"] = SourceTimeline(stamps=stamps, columns={EGO_TO_WORLD: poses}, origin=lambda i: f"{bag.name}: /tf")
        if self.schema.reference not in timelines:
            raise SourceError(
                f"cannot pack {bag}: no messages of the reference sensor {self.schema.reference!r}; choose another reference"
            )
        return SourceDrive(timelines=timelines)

    def _look(self, bag: Path, wanted: Mapping[str, str], topics: dict[str, _Topic], ignored: dict[str, str]) -> None:
        """Learn each topic's sensor from its first message, and where the frames hang in TF."""
        with self._open(bag) as reader:
            if bag.is_dir():
                with self._rosbags.highlevel.AnyReader([bag], default_typestore=reader.typestore) as whole:
                    _check_count(bag, whole.message_count, reader.message_count)
            connections = {connection.topic: connection for connection in reader.connections if connection.msgcount}
            transforms = [
                item
                for connection in connections.values()
                if connection.msgtype == _TF
                for _, _, raw in reader.messages(connections=[c for c in reader.connections if c.topic == connection.topic])
                for item in _transforms(connection.topic, reader.deserialize(raw, connection.msgtype))
            ]
            tree = TransformTree(transforms)
            for topic, connection in sorted(connections.items()):
                if (wanted and topic not in wanted.values()) or topic in topics:
                    if topic not in topics and connection.msgtype not in (_TF, _CAMERA_INFO):
                        ignored[topic] = "not among the chosen topics"
                    continue
                if connection.msgtype in (_TF, _CAMERA_INFO):
                    continue
                converter = CONVERTERS.get(connection.msgtype)
                if converter is None:
                    ignored[topic] = f"message type {connection.msgtype} has no converter"
                    continue
                _, _, raw = next(iter(reader.messages(connections=[connection])))
                message = reader.deserialize(raw, connection.msgtype)
                name = next((sensor for sensor, mapped in wanted.items() if mapped == topic), topic.lstrip("/"))
                try:
                    sensor = converter.sensor(name, message)
                except NotTaken as reason:
                    ignored[topic] = str(reason)
                    continue
                topics[topic] = self._with_geometry(sensor, topic, message, connections, reader, tree)
            if tree.moving_stamps(self.options.base_frame, self._world(tree)).size:
                topics.setdefault("", _Topic(_EGO))

    def _with_geometry(
        self, sensor: Sensor, topic: str, message: Any, connections: Mapping[str, Any], reader: Any, tree: TransformTree
    ) -> _Topic:
        """Add pose and intrinsics columns where the bag can fill them."""
        columns = list(sensor.columns)
        frame_id = message.header.frame_id if hasattr(message, "header") else ""
        base, world = self.options.base_frame, self._world(tree)
        if sensor.kind in ("image", "points") and frame_id and tree.connected(frame_id, base):
            columns.append(Column(name=SENSOR_TO_EGO, dtype="float64", shape=(7,), unit="m"))
            if world != base:
                columns.append(Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), unit="m"))
        else:
            frame_id = ""
        info_topic, camera = "", sensor.camera
        beside = f"{topic.rpartition('/')[0]}/camera_info"
        if sensor.kind == "image" and beside in connections:
            info_topic = beside
            _, _, raw = next(iter(reader.messages(connections=[connections[beside]])))
            info = reader.deserialize(raw, connections[beside].msgtype)
            columns.append(Column(name=INTRINSICS, dtype="float64", shape=(3, 3), unit="px"))
            if not is_rectified(topic) and len(info.d) and np.any(info.d):
                model = _MODELS.get(info.distortion_model)
                if model is None:
                    raise SourceError(f"cannot pack topic {topic!r}: unknown distortion model {info.distortion_model!r}")
                columns.append(Column(name="distortion", dtype="float64", shape=(len(info.d),)))
                camera = Camera(model=model, colour=sensor.camera.colour if sensor.camera else "rgb")  # type: ignore[arg-type]  # values of _MODELS
        return _Topic(replace(sensor, columns=tuple(columns), camera=camera), frame_id, info_topic)

    def _timeline(
        self,
        bag: Path,
        topic: str,
        found: _Topic,
        rows: _Rows,
        infos: list[tuple[int, Any]],
        tree: TransformTree,
        spill: IO[bytes],
    ) -> SourceTimeline:
        sensor, converter = found.sensor, CONVERTERS[self._type_of(bag, topic)]
        stamps = np.array(rows.stamps, np.int64)
        order = np.argsort(stamps, kind="stable")
        where = f"{bag.name}: {topic}"
        stamps = self._distinct(stamps[order], sensor.name, where)
        columns: dict[str, NDArray[Any]] = {}
        for column in sensor.columns:
            if column.name == SENSOR_TO_EGO:
                columns[column.name] = self._poses(tree, found.frame_id, self.options.base_frame, stamps, sensor.name, where)
            elif column.name == EGO_TO_WORLD:
                columns[column.name] = self._poses(tree, self.options.base_frame, self._world(tree), stamps, sensor.name, where)
            elif column.name in (INTRINSICS, "distortion"):
                columns[column.name] = _calibration(column, infos, stamps, rectified=is_rectified(topic), where=where)
            else:
                values = [rows.columns[i][column.name] for i in order]
                columns[column.name] = np.array(values, column.numpy_dtype).reshape(len(stamps), *column.shape)

        def read(i: int) -> Payload:
            start, length = rows.places[order[i]]
            spill.seek(start)
            data = spill.read(length)
            if len(data) != length:
                raise DecodeError(f"cannot read back message {i} of {where}: temporary file holds {len(data)} of {length} bytes")
            return converter.load(sensor, data)

        return SourceTimeline(
            stamps=stamps,
            columns=columns,
            read=read if sensor.codec is not None else None,
            origin=lambda i: f"{where} message {order[i]}",
        )

    def _distinct(self, stamps: NDArray[np.int64], sensor: str, where: str) -> NDArray[np.int64]:
        """Return stamps that ascend strictly."""
        repeated = np.flatnonzero(np.diff(stamps) == 0)
        if len(repeated) and self.options.repeated_stamps == "refuse":
            reason = f"{len(repeated)} messages repeat a stamp; if that is how it was recorded, pack with repeated_stamps=nudge"
            problem = Problem(path=where, reason=reason, sensor=sensor, stamp_ns=int(stamps[repeated[0]]), code="duplicate")
            raise SourceError("cannot pack a bag", [problem])
        # The least ascending sequence that is nowhere below the recorded one.
        steps = np.arange(len(stamps))
        return np.maximum.accumulate(stamps - steps) + steps

    def _poses(
        self, tree: TransformTree, source: str, target: str, stamps: NDArray[np.int64], sensor: str, where: str
    ) -> NDArray[np.float64]:
        if not tree.connected(source, target):
            raise SourceError(
                "cannot pack a bag",
                [Problem(path=where, reason=f"TF does not connect {source!r} with {target!r}", sensor=sensor, code="absent")],
            )
        gap = tree.gap(source, target, stamps)
        if gap > self.options.tf_gap_s * 1e9:
            reason = (
                f"a message lies {gap / 1e9:.3f} s outside of what TF publishes between {source!r} and {target!r}; "
                f"cut the recording or raise tf_gap_s (now {self.options.tf_gap_s} s)"
            )
            raise SourceError("cannot pack a bag", [Problem(path=where, reason=reason, sensor=sensor, code="absent")])
        return tree.lookup(source, target, stamps)

    def _world(self, tree: TransformTree) -> str:
        return self.options.world_frame or tree.root(self.options.base_frame)

    def _schema(self) -> Schema:
        sensors = [topic.sensor for topic in self._topics.values()]
        self._topics.pop("", None)
        if not sensors:
            raise SourceError(
                f"cannot pack {self.root}: no topic can become a sensor; ignored: {[item.path for item in self.ignored]}"
            )
        rank = {"points": 0, "image": 1}
        first = min(sensors, key=lambda sensor: (rank.get(sensor.kind, 2 if sensor.name == "ego" else 3), sensor.name))
        return Schema(reference=self.options.reference or first.name, sensors=tuple(sensors))

    def _type_of(self, bag: Path, topic: str) -> str:
        with self._open(bag) as reader:
            return next(str(connection.msgtype) for connection in reader.connections if connection.topic == topic)

    @contextmanager
    def _open(self, bag: Path) -> Iterator[Any]:  # Any: rosbags' AnyReader
        typesys = self._rosbags.typesys
        try:
            store = typesys.get_typestore(typesys.Stores(self.options.ros_distro))
        except ValueError as error:
            raise UsageError(
                f"ros_distro {self.options.ros_distro!r} is none of {[item.value for item in typesys.Stores]}"
            ) from error
        try:
            # A folder's files are read rather than its metadata: rosbags matches topics by their quality-of-service text, and
            # finds no messages, without a word, where recorder and metadata write it differently.
            files = [path for path in sorted(bag.iterdir()) if path.suffix in (".mcap", ".db3")] if bag.is_dir() else []
            with self._rosbags.highlevel.AnyReader(files or [bag], default_typestore=store) as reader:
                yield reader
        except (SourceError, DecodeError, UsageError):
            raise
        except Exception as error:  # rosbags raises its own, struct's, and decompressors' errors on damaged files
            reason = (
                f"{type(error).__name__}: {error}; the bag is damaged or was not closed: recover it with its recorder's own tool"
            )
            raise SourceError(f"cannot read {bag}", [Problem(path=str(bag), reason=reason, code="truncated")]) from error


def _check_count(bag: Path, expected: int, found: int) -> None:
    if expected != found:
        reason = f"its index promises {expected} messages, {found} are there; is the recording complete?"
        raise SourceError(f"cannot read {bag}", [Problem(path=str(bag), reason=reason, code="truncated")])


def _find(root: Path) -> list[Path]:
    """Return bags: the path itself, or those directly inside a folder."""
    if root.is_file() or (root / "metadata.yaml").is_file():
        return [root]
    if not root.is_dir():
        raise SourceError(f"cannot pack {root}: no such file or folder")
    inside = [
        path for path in sorted(root.iterdir()) if path.suffix in (".mcap", ".bag", ".db3") or (path / "metadata.yaml").is_file()
    ]
    if not inside:
        raise SourceError(
            f"cannot pack {root}: neither a bag nor a folder of bags (.mcap, .bag, .db3, or folders with metadata.yaml)"
        )
    return inside


def _name(bag: Path) -> str:
    return bag.stem if bag.is_file() else bag.name


def _size(bag: Path) -> int:
    return bag.stat().st_size if bag.is_file() else sum(path.stat().st_size for path in bag.rglob("*") if path.is_file())


def _topic_map(pairs: Sequence[str]) -> dict[str, str]:
    mapped = {}
    for pair in pairs:
        sensor, equals, topic = pair.partition("=")
        if not (sensor and equals and topic):
            raise UsageError(f"topics are given as sensor=/topic, not {pair!r}")
        mapped[sensor] = topic
    return mapped


def _transforms(topic: str, message: Any) -> list[tuple[bool, str, str, int, list[float]]]:
    return [
        (
            topic.endswith("tf_static"),
            item.header.frame_id.lstrip("/"),
            item.child_frame_id.lstrip("/"),
            item.header.stamp.sec * 1_000_000_000 + item.header.stamp.nanosec,
            pose_of(item.transform.translation, item.transform.rotation),
        )
        for item in message.transforms
    ]


def _keep(rows: _Rows, sensor: Sensor, msgtype: str, message: Any, log_time: int, spill: IO[bytes]) -> None:
    converter = CONVERTERS[msgtype]
    rows.stamps.append(stamp_of(message, log_time))
    rows.columns.append(converter.columns(message))
    data = converter.payload(sensor, message)
    if data is not None:
        rows.places.append((spill.tell(), len(data)))
        spill.write(data)


def _calibration(
    column: Column, infos: list[tuple[int, Any]], stamps: NDArray[np.int64], *, rectified: bool, where: str
) -> NDArray[np.float64]:
    """Return for each stamp the camera_info at or before it (the first one, before that)."""
    if not infos:
        raise SourceError(
            "cannot pack a bag", [Problem(path=where, reason="no camera_info in this bag, though others have it", code="absent")]
        )
    infos = sorted(infos, key=lambda item: item[0])
    values = []
    for _, info in infos:
        projection = info.p.reshape(3, 4)[:, :3] if hasattr(info, "p") else info.P.reshape(3, 4)[:, :3]
        matrix = info.k.reshape(3, 3) if hasattr(info, "k") else info.K.reshape(3, 3)
        distortion = info.d if hasattr(info, "d") else info.D
        if column.name == INTRINSICS:
            values.append(projection if rectified and projection.any() else matrix)
        else:
            values.append(distortion)
    at = np.searchsorted(np.array([stamp for stamp, _ in infos], np.int64), stamps, side="right") - 1
    return np.array(values, np.float64).reshape(len(infos), *column.shape)[np.maximum(at, 0)]
