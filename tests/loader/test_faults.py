"""Bad payloads under raise, replace and mask: named, counted, equal on every topology and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway import Batch, CorruptShard, DataLoader, DecodeError, Images, LoaderOptions, Topology, Window
from headway.loader.decode import Decoder
from headway.loader.faults import FaultPolicy
from headway.loader.sampler import ViewInfo

from .drives import JPEG, write_drives

BAD = {0, 1}
"""Items whose CAM_BACK image is none."""


def run(
    location: Path, on_error: Any, *, decoder: Decoder | None = None, ranks: int = 1, state: Any = None, **more: Any
) -> list[Batch]:
    dataset = headway.open(
        location, windows=[Window("CAM_BACK", name="camera"), Window("note")], images=Images("CAM_*", size=JPEG)
    )
    found = []
    for rank in range(ranks):
        options = LoaderOptions(seed=2, on_error=on_error, **more)
        topology = Topology(rank=rank, size=ranks)
        loader = DataLoader(dataset, 4 // ranks, True, num_workers=2, options=options, topology=topology, decoder=decoder)
        if state is not None:
            loader.load_state_dict(state)
        found += list(loader)
    return found


def rows(batches: list[Batch]) -> dict[int, tuple[int, bool, int]]:
    """Return, by planned item: (replacement, valid, level shown)."""
    return {
        item: (int(batch["replaced"][place]), bool(batch["valid"][place]), int(batch["camera"]["image"][place].max()))
        for batch in batches
        for place, item in enumerate(batch["id"].tolist())
        if item >= 0
    }


def test_raise_names_set_drive_sensor_and_stamp(broken_set: Path, decoder: Decoder) -> None:
    with pytest.raises(DecodeError) as caught:
        run(broken_set, "raise", decoder=decoder)
    message = str(caught.value)
    for part in ("'CAM_BACK'", "'drive-0'", "stamp 1", repr(str(broken_set)), "on_error"):
        assert part in message


def test_mask_blanks_the_sample_and_keeps_its_id(broken_set: Path, decoder: Decoder) -> None:
    found = rows(run(broken_set, "mask", decoder=decoder))
    assert sorted(found) == list(range(18))
    for item, (replaced, valid, shown) in found.items():
        assert replaced == -1
        assert valid is (item not in BAD)
        assert (shown == 0) is (item in BAD)


def test_replace_delivers_another_item_and_names_it(broken_set: Path, decoder: Decoder) -> None:
    found = rows(run(broken_set, "replace", decoder=decoder))
    assert sorted(found) == list(range(18))
    for item, (replaced, valid, shown) in found.items():
        assert valid
        assert (replaced == -1) is (item not in BAD)
        if replaced >= 0:
            assert replaced not in BAD
            assert abs(shown - found[replaced][2]) <= 1


def test_replacements_are_equal_on_other_ranks_and_after_a_resume(broken_set: Path) -> None:
    whole = run(broken_set, "replace")
    expected = rows(whole)
    assert rows(run(broken_set, "replace", ranks=2)) == expected
    for number, batch in enumerate(whole[:-1]):
        again = rows(run(broken_set, "replace", state=batch["state"]))
        assert again == rows(whole[number + 1 :])


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_a_used_up_budget_raises(broken_set: Path, on_error: str) -> None:
    with pytest.raises(DecodeError, match="max_bad allows 1"):
        run(broken_set, on_error, max_bad=1)


def test_damage_after_packing_is_a_corrupt_shard(tmp_path: Path, decoder: Decoder) -> None:
    # A tar keeps payloads apart from index and columns, whose damage no policy may pass over.
    damaged = write_drives(tmp_path / "damaged", kind="tar")
    with headway.open(damaged).packed as packed:
        refs = packed.timeline("CAM_BACK").refs(np.array([7]))
        name = packed.manifest.shards[int(refs.shard[0])].data_name
    data = bytearray((damaged / name).read_bytes())
    data[int(refs.offset[0]) + int(refs.length[0]) // 2] ^= 16
    (damaged / name).write_bytes(data)
    with pytest.raises(CorruptShard, match="'CAM_BACK'"):
        run(damaged, "raise", decoder=decoder)
    assert not rows(run(damaged, "mask", decoder=decoder))[7][1]


def test_many_bad_samples_are_told_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """pupil-labs/pupil#1816: a bad cable must not write a line a frame."""
    view = ViewInfo(view_id="v", items=10_000, drive_starts=np.array([0, 10_000]))
    policy = FaultPolicy(LoaderOptions(on_error="mask", max_bad=10_000, max_bad_share=1.0), view=view, epoch=0)
    zero = np.zeros(1, np.int64)
    for item in range(10_000):
        policy.decide(zero + item, zero, zero + item, {0: DecodeError("cut short")})
    assert policy.bad == 10_000
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 20
    assert "item 0 is masked: cut short" in lines[0]
    assert "5120 bad samples" in lines[-1]
