"""What `headway show` says of an image sensor: sizes, coding, orientation tags, and what packing did to its images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..formats.timeline import Timeline

__all__ = ["image_facts", "image_lines"]

Facts = dict[str, Any]  # Any: JSON
_ROWS = 100_000  # columns of more images than these are sampled evenly: `show` should answer at once
_SIZES = 4
_SUBSAMPLING = {(2, 2): "4:2:0", (2, 1): "4:2:2", (1, 1): "4:4:4", (1, 2): "4:4:0", (4, 1): "4:1:1"}


def image_facts(timeline: Timeline) -> Facts:
    """Return facts of a sensor's images from its columns; reads no payload."""
    sensor, facts = timeline.sensor, Facts()
    if sensor.edit is not None:
        edit = sensor.edit
        facts["edit"] = {"crop": list(edit.crop), "scale": edit.scale, "jpeg_quality": edit.jpeg_quality}
    rows = np.arange(0, len(timeline), -(-len(timeline) // _ROWS) or 1, dtype=np.int64)
    facts["counted"] = len(rows)
    if not len(rows):
        return facts
    if sensor.has("image_size"):
        sizes, counts = np.unique(timeline.take("image_size", rows), axis=0, return_counts=True)
        facts["sizes"] = [[*size, count] for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)]
    for name in ("jpeg_orientation", "png_orientation"):
        if sensor.has(name):
            values, counts = np.unique(timeline.take(name, rows), return_counts=True)
            facts["orientations"] = {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
    if sensor.has("jpeg_process"):
        process, sampling = timeline.take("jpeg_process", rows), timeline.take("jpeg_sampling", rows)
        facts["progressive"] = int(np.isin(process, (2, 6, 10, 14)).sum())
        facts["arithmetic"] = int((process >= 9).sum())
        facts["restart_markers"] = int((timeline.take("jpeg_restart", rows) > 0).sum())
        facts["not_8_bit"] = int((~np.isin(timeline.take("jpeg_precision", rows), (0, 8))).sum())
        facts["four_channels"] = int((sampling[:, 3] > 0).any(1).sum())
        facts["bytes_after_end"] = int((timeline.take("jpeg_trailing", rows) > 0).sum())
        facts["subsampling"] = _subsampling(sampling)
    if sensor.codec == "video":
        facts["longest_group"] = int(timeline.take("gop_rows", rows).max()) + 1
    if sensor.has("png_bits"):
        facts["bits"] = np.unique(timeline.take("png_bits", rows)).tolist()
    return facts


def image_lines(facts: Facts) -> list[str]:
    """Return the lines a person should read: sizes, and whatever is out of the ordinary."""
    lines = []
    sizes = facts.get("sizes", [])
    if sizes:
        shown = ", ".join(f"{width} × {height}" for width, height, _ in sizes[:_SIZES])
        more = f" and {len(sizes) - _SIZES} other sizes" if len(sizes) > _SIZES else ""
        coding = facts.get("subsampling") or [f"{bits} bit" for bits in facts.get("bits", [])]
        lines.append(f"{shown}{more} px{', ' + ', '.join(coding) if coding else ''}")
    if "longest_group" in facts:
        lines.append(f"video packets, a key frame at least every {facts['longest_group']} frames: a frame decodes from there on")
    turned = {tag: count for tag, count in facts.get("orientations", {}).items() if tag not in ("0", "1")}
    if turned:
        listed = ", ".join(f"{tag} on {count:,} images" for tag, count in turned.items())
        lines.append(f"EXIF orientation {listed}: recorded, never applied (pixels and intrinsics are those of the file)")
    for name, text in (
        ("progressive", "progressive, which decode slower and not in GPU hardware"),
        ("arithmetic", "arithmetic-coded, which many decoders refuse"),
        ("not_8_bit", "not of 8 bits, which many decoders refuse"),
        ("four_channels", "CMYK, converted to RGB when decoded"),
        ("bytes_after_end", "followed by bytes after their end, which decoders skip"),
    ):
        if facts.get(name):
            lines.append(f"{facts[name]:,} of {facts['counted']:,} images {text}")
    edit = facts.get("edit")
    if edit:
        top, bottom, left, right = edit["crop"]
        what = [f"{edit['scale']:g} × the size"] if edit["scale"] != 1 else []
        if any(edit["crop"]):
            what.insert(0, f"{top} px off the top, {bottom} bottom, {left} left, {right} right")
        what.append(f"JPEGs encoded anew at quality {edit['jpeg_quality'] or 95}")
        lines.append(f"changed when packed: {', '.join(what)}; intrinsics are of these pixels, pack_affine says how they moved")
    return lines


def _subsampling(sampling: Any) -> list[str]:  # Any: uint8 (n, 4, 2)
    names = []
    for factors in np.unique(sampling, axis=0).tolist():
        if not factors[1][0]:
            names.append("grey" if factors[0][0] else "unknown")
        else:
            plain = factors[1] == factors[2] == [1, 1]
            names.append(_SUBSAMPLING.get(tuple(factors[0]), "odd subsampling") if plain else "odd subsampling")
    return sorted(set(names))
