"""What people reported of image decoders, held against ours: the portable one, the native one, and both alike."""

from __future__ import annotations

import hashlib
import logging
import mmap
import resource
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

from headway.formats import kernel
from headway.loader.decode import BROKEN, Decoder, ImageJobs, PortableDecoder
from headway.loader.images import Images
from headway.loader.native_decode import NativeDecoder
from tests.formats.native_jobs import jpeg, jpeg_with, picture, psnr, reference
from tests.loader.test_decode import jobs, pixels

SIZE = (48, 64)
LOOK = Images("*", size=SIZE)


def exif(data: bytes, orientation: int) -> bytes:
    """Return the JPEG with an orientation tag."""
    tag = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation]) + b"\0\0\0\0\0\0"
    return data[:2] + b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag + data[2:]


def after_segment(data: bytes, marker: int, insert: bytes) -> bytes:
    """Return the JPEG with bytes put after the first segment of `marker`."""
    at = data.index(bytes([0xFF, marker]))
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:end] + insert + data[end:]


def wide_tables(data: bytes) -> bytes:
    """Return the JPEG with its quantisation tables in 16 bits."""
    out, at = b"", 0
    while (found := data.find(b"\xff\xdb", at)) >= 0:
        length = int.from_bytes(data[found + 2 : found + 4], "big")
        body = data[found + 4 : found + 2 + length]
        tables = [body[start : start + 65] for start in range(0, len(body), 65)]
        wide = b"".join(bytes([0x10 | table[0]]) + b"".join(b"\0" + table[k : k + 1] for k in range(1, 65)) for table in tables)
        out += data[at:found] + b"\xff\xdb" + (len(wide) + 2).to_bytes(2, "big") + wide
        at = found + 2 + length
    return out + data[at:]


def verdict(decoder: Decoder, data: bytes, look: Images = LOOK) -> tuple[bool, str]:
    """Return whether a picture came, and what was said."""
    good = jobs([jpeg(picture(*SIZE))], look)
    work = ImageJobs(
        data=[memoryview(data)],
        hashes=np.array([kernel.xxh3_64(data)], np.uint64),
        codecs=["jpeg"],
        affine=good.affine,
        out=good.out,
        index=good.index,
        look=look,
    )
    status = decoder.decode(work)
    return bool(status[0] < BROKEN), work.messages.get(0, "")


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_cut_file_is_an_error_and_never_black(decoder: Decoder, progressive: int, tenth: int) -> None:
    """python-pillow/Pillow#2717: a truncated progressive file came out black in tolerant mode. There is no tolerant mode here."""
    whole = jpeg_with(picture(*SIZE), progressive=progressive)
    came, said = verdict(decoder, whole[: len(whole) * tenth // 10])
    assert not came
    assert said


def test_odd_but_whole_files_are_decoded(decoder: Decoder) -> None:
    """python-pillow/Pillow#4414: files that other viewers show were called truncated."""
    image = picture(*SIZE)
    plain = jpeg_with(image)
    odd = {
        "restarts": jpeg_with(image, rst_interval=1),
        "trailing bytes": plain + b"\0" * 77,
        "several application segments": after_segment(plain, 0xE0, b"\xff\xe5\0\x05abc\xff\xee\0\x04zz\xff\xfe\0\x06note"),
        "fill bytes before a marker": after_segment(plain, 0xE0, b"\xff\xff\xff"),
        "16-bit quantisation": wide_tables(plain),
    }
    for name, data in odd.items():
        (found,) = pixels(decoder, [data], LOOK)
        assert np.abs(found - reference(data)).max() <= 1, name
        assert np.abs(found - reference(plain)).max() <= 1, name


@pytest.mark.parametrize("tag", range(1, 9))
def test_orientation_turns_nothing_whether_bytes_or_a_file(decoder: Decoder, tag: int, tmp_path: Path) -> None:
    """pytorch/vision#7977, opencv/opencv#8172: orientation was ignored, or obeyed by only one of two ways in.

    Pixels stay as the sensor gave them, and so do intrinsics; a mapped file and bytes take one path.
    """
    plain = jpeg(picture(*SIZE))
    tagged = exif(plain, tag)
    file = tmp_path / "tagged.jpg"
    file.write_bytes(tagged)
    (stored,) = pixels(decoder, [plain], LOOK)
    (found,) = pixels(decoder, [tagged], LOOK)
    assert (found == stored).all()
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        work = jobs([tagged], LOOK)
        work.data = [memoryview(mapped)]
        assert (decoder.decode(work) < BROKEN).all()
        assert (work.out[work.index[0]].transpose(1, 2, 0) == stored).all()
        work.data = []
    assert LOOK.affine(SIZE[1], SIZE[0]).tolist() == np.eye(3).tolist()


GOLDEN = b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQ"
    "YEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//wAARCAAQABgD"
    "ASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKB"
    "kaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZ"
    "mqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQF"
    "BgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5"
    "OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX"
    "2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwDioNO/2a0YNN/2a3bbTuny1q22m9Plrjoz9qc+DzK3U56DS/8AZorsY7JYyBty3pRV"
    "TnhYS5Zy19G/yR9LRzKThof/2Q=="
)
GOLDEN_PIXELS = "63bd3a42e8b8350aace4a60f4733acca25bb4726225c96cc3aaef63c546ea729"


@pytest.mark.parametrize("tag", [0, *range(1, 9)])
def test_pixels_of_a_golden_file_never_change(decoder: Decoder, tag: int) -> None:
    """opencv/opencv#8854: an upgrade began to turn images. Another hash here means that a decoding library changed its pixels."""
    (found,) = pixels(decoder, [exif(GOLDEN, tag) if tag else GOLDEN], Images("*", size=(16, 24)))
    assert hashlib.sha256(found.tobytes()).hexdigest() == GOLDEN_PIXELS


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_junk_before_the_end_marker_costs_nothing(decoder: Decoder, count: int) -> None:
    """libjpeg-turbo/libjpeg-turbo#157: extraneous bytes before a marker are a warning, and were returned like an error."""
    data = jpeg(picture(*SIZE))
    (found,) = pixels(decoder, [data[:-2] + b"\x55" * count + data[-2:]], LOOK)
    assert psnr(found, reference(data)) > 25


def test_junk_between_segments_and_a_missing_end_cost_nothing(decoder: Decoder) -> None:
    """libjpeg-turbo/libjpeg-turbo#157: the same for other warnings after which the picture is whole."""
    data = jpeg(picture(*SIZE))
    second = data.index(b"\xff\xdb", data.index(b"\xff\xdb") + 1)
    odd = [data[:-2], data[:second] + b"\x55" * 5 + data[second:], data[:second] + b"\x55" + data[second:-2]]
    for found in pixels(decoder, odd, LOOK):
        assert psnr(found, reference(data)) > 25
    for cut in (data[: len(data) // 2], data[: len(data) // 2] + data[-2:]):
        assert decoder.decode(jobs([cut], LOOK))[0] == BROKEN


def test_thousands_of_odd_frames_write_no_lines(
    decoder: Decoder, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """pupil-labs/pupil#1816: a warning a frame flooded the log."""
    data = jpeg(picture(*SIZE))
    odd = data[:-2] + b"\x55\x55" + data[-2:]
    work = jobs([odd] * 500, LOOK)
    with caplog.at_level(logging.DEBUG):
        for _ in range(4):
            assert (decoder.decode(work) < BROKEN).all()
    assert len(caplog.records) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not kernel.available(), reason="the native core is not built here")
def test_junk_after_a_scan_header_gets_one_verdict_from_all() -> None:
    """etemesi254/zune-image#261: a camera wrote junk before scan data, and decoders differed."""
    data = jpeg_with(picture(*SIZE))
    for seed in range(8):
        junk = after_segment(data, 0xDA, bytes(np.random.default_rng(seed).integers(0, 255, 64, np.uint8)))
        came, _ = verdict(NativeDecoder(), junk)
        # libjpeg's own verdict stands for both: the native core's entropy decoder gives up and has it decode again.
        assert came == verdict(PortableDecoder(), junk)[0]


def test_a_bad_marker_inside_the_scan_is_found_where_the_header_is_fine(decoder: Decoder) -> None:
    """libjpeg-turbo/libjpeg-turbo#364: the header was good, and decoding failed late at marker 0x0b."""
    data = jpeg(picture(*SIZE))
    at = data.index(b"\xff\xda") + 200
    came, said = verdict(decoder, data[:at] + b"\xff\x0b" + data[at + 2 :])
    assert not came
    assert said


@pytest.mark.slow
def test_malformed_files_leak_nothing(decoder: Decoder) -> None:
    """pytorch/vision#9383: the error path of a decoder leaked until the machine was out of memory."""
    good = jpeg(picture(*SIZE))
    at = good.index(b"\xff\xda")
    malformed = [good[: len(good) // 2], good[: at + 2], good[:200], bytes(400), good[:at] + b"\xff\x0b" + good[at + 2 :]]
    work = jobs([good] * 200, LOOK)
    work.data = [memoryview(malformed[k % 5]) for k in range(200)]
    work.hashes = np.array([kernel.xxh3_64(each) for each in malformed * 40], np.uint64)

    def lap(times: int) -> int:
        for _ in range(times):
            work.messages.clear()
            decoder.decode(work)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    before = lap(5)
    assert lap(50) - before < 20 << 10


@pytest.mark.parametrize("interval", [1, 3, 8])
def test_restart_markers_change_no_pixel(decoder: Decoder, interval: int) -> None:
    """libjpeg-turbo/libjpeg-turbo#910: restart markers switch off that library's fast decoding; ours reads them, alike."""
    image = picture(*SIZE)
    (plain,), (marked,) = (pixels(decoder, [jpeg_with(image, rst_interval=each)], LOOK) for each in (0, interval))
    assert (plain == marked).all()


def test_a_bomb_is_refused_alone_and_before_it_takes_memory(decoder: Decoder) -> None:
    """lyuwenyu/RT-DETR#337, huggingface/dataset-viewer#1192: the limit was switched off for all; one image cost the page."""
    good = jpeg(picture(*SIZE))
    at = good.index(b"\xff\xc0") + 5
    bomb = good[:at] + (65500).to_bytes(2, "big") * 2 + good[at + 4 :]
    work = jobs([good] * 100, LOOK)
    work.data = [memoryview(bomb if k == 41 else good) for k in range(100)]
    work.hashes[41] = kernel.xxh3_64(bomb)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = decoder.decode(work)
    assert np.flatnonzero(status >= BROKEN).tolist() == [41]
    assert "65500" in work.messages[41]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10
