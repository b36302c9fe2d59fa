"""Bytes on disk ↔ typed records: schema, timelines, manifest, shards, codecs, stores and adapters."""

from .adapters import SourceSpec, open_source
from .codec import decode, encode
from .convert import convert_set
from .errors import (
    CorruptShard,
    DecodeError,
    HeadwayError,
    LimitExceeded,
    MissingExtra,
    NoSpace,
    NotASet,
    Problem,
    SetError,
    SourceError,
    StalledError,
    StateError,
    StoreError,
    UnsupportedFormat,
    UsageError,
    WorkerDied,
)
from .limits import DEFAULT_LIMITS, Limits
from .manifest import AttachedFile, Drive, FileEntry, Manifest, Part, SensorStats, Shard
from .merge import merge_sets
from .pack_options import PackOptions, Progress
from .packed_set import PackedSet, open_set
from .packer import PackReport, pack
from .range_cache import CacheOptions
from .repair import RepairReport, repair_set
from .schema import (
    EGO_TO_WORLD,
    INTRINSICS,
    PACK_AFFINE,
    SENSOR_TO_EGO,
    Camera,
    Column,
    ImageEdit,
    Schema,
    Sensor,
    canonical_json,
)
from .shard import ShardKind
from .source import Attachment, DriveListing, Ignored, Payload, Source, SourceDrive, SourceTimeline
from .timeline import PayloadRefs, Timeline
from .verify import VerifyReport, verify_set

__all__ = [
    "DEFAULT_LIMITS",
    "EGO_TO_WORLD",
    "INTRINSICS",
    "PACK_AFFINE",
    "SENSOR_TO_EGO",
    "AttachedFile",
    "Attachment",
    "CacheOptions",
    "Camera",
    "Column",
    "CorruptShard",
    "DecodeError",
    "Drive",
    "DriveListing",
    "FileEntry",
    "HeadwayError",
    "Ignored",
    "ImageEdit",
    "LimitExceeded",
    "Limits",
    "Manifest",
    "MissingExtra",
    "NoSpace",
    "NotASet",
    "PackOptions",
    "PackReport",
    "PackedSet",
    "Part",
    "Payload",
    "PayloadRefs",
    "Problem",
    "Progress",
    "RepairReport",
    "Schema",
    "Sensor",
    "SensorStats",
    "SetError",
    "Shard",
    "ShardKind",
    "Source",
    "SourceDrive",
    "SourceError",
    "SourceSpec",
    "SourceTimeline",
    "StalledError",
    "StateError",
    "StoreError",
    "Timeline",
    "UnsupportedFormat",
    "UsageError",
    "VerifyReport",
    "WorkerDied",
    "canonical_json",
    "convert_set",
    "decode",
    "encode",
    "merge_sets",
    "open_set",
    "open_source",
    "pack",
    "repair_set",
    "verify_set",
]
