"""The table of oddities: each decoder gives the portable one's picture or hands the image on, and it is known which."""

from __future__ import annotations

import pytest

from headway.bench.decode import made_images, measure_equality
from headway.gpu_decode import capabilities, choose_decoder
from headway.loader.decode import Decoder

HANDED_ON = {
    "4:4:4": "",
    "4:2:2": "",
    "4:2:0": "",
    "4:4:0": "",
    "4:1:1": "",
    "grey": "",
    "progressive": "",
    "restart markers": "",
    "EXIF orientation": "",
    "16-bit tables": "",
    "trailing bytes": "bytes between or after its segments",
    "bytes between segments": "bytes between or after its segments",
    "no end marker": "cut short",
    "YCCK": "4 components",
    "CMYK": "4 components",
    "arithmetic": "arithmetic coding",
    "12 bits": "12 bits a sample",
    "cut": "cut short",
    "png": "codec 'png'",
}
"""Why a device decoder does not get an image; "" where it does."""
REFUSED = {"12 bits", "cut"}
"""By every decoder: there is no picture in 8 bits, or not the whole of it."""
UPSAMPLED = {"4:4:0", "4:1:1"}
"""Whose chroma upsampling differs between builds of libjpeg, and DALI's differs from both."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["native", "dali-cpu", "nvimgcodec-cpu", pytest.param("dali-gpu", marks=pytest.mark.gpu)])
def test_every_oddity_is_decoded_alike_or_handed_on(name: str) -> None:
    found = next(each for each in capabilities() if each.name == name)
    if not found.usable:
        pytest.skip(f"{name}: {found.why}")
    decoder: dict[str, Decoder] = {name: choose_decoder(name)}
    images = made_images(96, 144)
    assert images.keys() == HANDED_ON.keys()
    seen = set()
    for row in measure_equality(images, decoder, size=(32, 48)):
        image, why = str(row["image"]), str(row.get("handed_on", ""))
        seen.add(image)
        assert (row["status"] == "refused") == (image in REFUSED), row
        if row["decoder"] == "all":
            continue  # refused by its header, before any decoder saw it
        assert row["agrees"], row
        if name != "native":
            assert HANDED_ON[image] in why, row
            assert bool(HANDED_ON[image]) == bool(why), row
        if row["status"] == "ok" and row["look"] == "own size":
            assert int(str(row["max_error"])) <= (8 if image in UPSAMPLED else 2), row
    assert seen == images.keys()
