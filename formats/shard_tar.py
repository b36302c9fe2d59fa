"""POSIX tar shards: writing members byte for byte alike every time, and the names payloads get in them.

Reading needs no tar code: the index beside the tar says where each payload lies. Headers are ustar; a name or size that
does not fit gets a pax header. Times, users and modes are constant, so equal payloads give equal bytes.
"""

from __future__ import annotations

from typing import Final

from .errors import CorruptShard
from .hashed_writer import HashedWriter
from .schema import Sensor

__all__ = ["INDEX_MEMBER", "TarWriter", "escape", "index_place", "member_name"]

# webdataset skips members whose first path component starts and ends with two underscores.
INDEX_MEMBER: Final = "__headway__/index.arrow"
_BLOCK: Final = 512
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def escape(name: str) -> str:
    """Percent-escape every byte outside [A-Za-z0-9_-] of a drive's or sensor's name."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())


def member_name(drive: str, frame: int, sensor: Sensor, stamp_ns: int, *, own: bool) -> str:
    """Return a payload's member name: `<drive>/<frame>.<sensor>.<codec>`, with `@<stamp>` unless it is the frame's own."""
    at = "" if own else f"@{stamp_ns}"
    return f"{escape(drive)}/{frame:08d}.{escape(sensor.name)}{at}.{sensor.codec}"


class TarWriter:
    """Appends members to a file; the caller closes the file itself."""

    def __init__(self, out: HashedWriter) -> None:
        self._out = out

    def add(self, name: str, data: bytes | bytearray | memoryview) -> int:
        """Append one regular file and return where its first byte lies."""
        size = len(data)
        records: dict[str, str] = {}
        short = name.encode()
        if len(short) > 100:
            records["path"], short = name, short[:100]
        if size >= 1 << 33:
            records["size"] = str(size)
        if records:
            body = b"".join(_pax_record(key, value) for key, value in records.items())
            self._out.write(_header(b"pax", len(body), b"x"))
            self._out.write(body + bytes(-len(body) % _BLOCK))
        self._out.write(_header(short, 0 if "size" in records else size, b"0"))
        at = self._out.bytes
        self._out.write(data)
        if size % _BLOCK:
            self._out.write(bytes(-size % _BLOCK))
        return at

    def close(self) -> None:
        """Write the end of the archive."""
        self._out.write(bytes(2 * _BLOCK))


def index_place(tar: bytes) -> tuple[int, int]:
    """Return where the copy of the index lies in a tar shard: it is the last member before the end blocks."""
    wanted = INDEX_MEMBER.encode().ljust(100, b"\0")
    at = tar.rfind(wanted)
    # Payloads may hold those bytes too; the real header is the one whose member reaches the end of the archive.
    while at >= 0:
        digits = tar[at + 124 : at + 135]
        if at % _BLOCK == 0 and digits.isdigit():
            stop = at + _BLOCK + int(digits, 8)
            if stop + -stop % _BLOCK + 2 * _BLOCK == len(tar):
                return at + _BLOCK, stop
        at = tar.rfind(wanted, 0, at)
    raise CorruptShard(f"cannot find {INDEX_MEMBER!r} at the end of a tar of {len(tar)} bytes; headway did not write it")


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    head = b"".join(
        [
            name.ljust(100, b"\0"),
            b"0000644\0",
            b"0000000\0" * 2,
            b"%011o\0" % size,
            b"00000000000\0",
            b" " * 8,
            kind,
            bytes(100),
            b"ustar\0" + b"00",
            bytes(_BLOCK - 265),
        ]
    )
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def _pax_record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body
