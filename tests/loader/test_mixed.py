"""Mixed datasets: several packed sets in one loader, in fixed proportions, resumed and split over ranks like any other."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import headway
from headway import DataLoader, LoaderOptions, Mixture, SlotSticky, Topology, Window
from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from tests.loader.drives import KIND, write_drives

WINDOWS = [Window("LIDAR"), Window("ego"), Window("boxes")]
MIXTURE = Mixture(weights=(2, 1), virtual_slots=4, block_items=2, span_blocks=2)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of 18 and 7 frames, as arrow and tar shards."""
    root = tmp_path_factory.mktemp("mixed")
    return write_drives(root / "one", drives=3, frames=5), write_drives(root / "two", drives=1, frames=7, kind="tar")


def opened(location: Path, **more: Any) -> headway.Dataset:  # Any: arguments of headway.open
    return headway.open(location, windows=WINDOWS, **more)


def loader(mixed: headway.Dataset, rank: int = 0, ranks: int = 1, batch_size: int = 6, **more: Any) -> DataLoader:  # Any: torch's
    options = LoaderOptions(seed=5, accumulate=6 // (ranks * batch_size))
    more = {"sampler": MIXTURE, "options": options, "num_workers": 1, **more}
    return DataLoader(mixed, batch_size, topology=Topology(rank=rank, size=ranks), **more)


def test_samples_of_a_mixture_are_those_of_their_sets(sets: tuple[Path, Path]) -> None:
    parts = [opened(location) for location in sets]
    mixed = headway.mix(parts)
    assert len(mixed) == len(parts[0]) + len(parts[1])
    counts = np.zeros(2, int)
    for batch in loader(mixed):
        for sample, (item, which) in enumerate(zip(batch["id"].tolist(), batch["set"].tolist(), strict=True)):
            if item < 0:
                assert which == -1
                continue
            alone = parts[which][item - which * len(parts[0])]
            begin, end = batch["LIDAR"]["offsets"][sample : sample + 2].tolist()
            assert torch.equal(batch["LIDAR"]["points"][begin:end], alone["LIDAR"]["points"])
            assert torch.equal(batch["ego"]["ego_to_world"][sample], alone["ego"]["ego_to_world"])
            assert (batch["drive"][sample], batch["stamp"][sample]) == (alone["drive"], alone["stamp"])
            counts[which] += 1
        # Two of three are of the first set, to within one item at every step's end.
        assert abs(counts[0] - counts.sum() * 2 / 3) <= 1


@pytest.mark.parametrize("split", [(1, 6), (2, 3), (3, 2), (2, 1)])
def test_a_mixture_is_the_same_on_any_ranks_and_resumes(sets: tuple[Path, Path], split: tuple[int, int]) -> None:
    ranks, batch_size = split
    mixed = headway.mix([opened(location) for location in sets])
    whole = [batch["id"].tolist() for batch in loader(mixed)]
    states = [batch["state"] for batch in loader(mixed)]
    rest: list[list[int]] = [[] for _ in whole[2:]]
    for rank in range(ranks):
        resumed = loader(mixed, rank, ranks, batch_size)
        resumed.load_state_dict(json.loads(json.dumps(states[1])))
        per_step = 6 // (ranks * batch_size)
        for number, batch in enumerate(resumed):
            rest[number // per_step] += batch["id"].tolist()
    assert rest == whole[2:]


def test_each_set_keeps_its_own_filter(sets: tuple[Path, Path]) -> None:
    mixed = headway.mix([opened(sets[0], where=pc.field("frame") >= 2), opened(sets[1])])
    frames = [(which, frame) for b in loader(mixed) for which, frame in zip(b["set"].tolist(), b["frame"].tolist(), strict=True)]
    assert min(frame for which, frame in frames if which == 0) == 2
    assert min(frame for which, frame in frames if which == 1) == 0
    assert mixed.view.view_id != headway.mix([opened(location) for location in sets]).view.view_id


def test_other_orders_go_over_all_sets_too(sets: tuple[Path, Path]) -> None:
    mixed = headway.mix([opened(sets[0], where=pc.field("frame") != 2), opened(sets[1])])
    for sampler in (headway.Sequential(), headway.Shuffled(), SlotSticky(), headway.Evaluation()):
        batches = list(loader(mixed, sampler=sampler))
        items = [item for batch in batches for item in batch["id"].tolist() if item >= 0]
        assert sorted(items) == list(range(len(mixed)))
        assert all((batch["set"] == (batch["id"] >= len(mixed.datasets[0])).int())[batch["valid"]].all() for batch in batches)


def test_a_bad_sample_is_replaced_by_one_of_its_set(sets: tuple[Path, Path], tmp_path: Path) -> None:
    broken = write_drives(tmp_path / "broken", drives=1, frames=5, broken=5)
    windows = [Window("CAM_BACK")]
    images = headway.Images("CAM_BACK", size=(48, 64))
    mixed = headway.mix([headway.open(each, windows=windows, images=images) for each in (sets[0], broken)])
    options = LoaderOptions(on_error="replace", max_bad=50, max_bad_share=1.0)
    # All images of the second set are bad: no item of the first may stand in for them.
    with pytest.raises(headway.HeadwayError, match="replacements drawn in a row"):
        list(DataLoader(mixed, 4, sampler=Mixture(weights=(1, 1)), options=options, num_workers=0))


def test_what_differs_is_named(sets: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(headway.UsageError, match="windows"):
        headway.mix([opened(sets[0]), headway.open(sets[1], windows=[Window("LIDAR")])])
    spec = SourceSpec(kind=KIND, path="", options={"drives": 1, "frames": 4, "broken": 0})
    pack(spec, tmp_path / "lossless", PackOptions(workers=1, points_codec="points-lossless"), None)
    with pytest.raises(headway.UsageError, match=r"reads sensor 'LIDAR'.*codec is 'points-raw' in .* and 'points-lossless' in"):
        headway.mix([opened(sets[0]), opened(tmp_path / "lossless")])
    # What is not read may differ.
    mixed = headway.mix([headway.open(each, windows=[Window("ego")]) for each in (sets[0], tmp_path / "lossless")])
    assert next(batch["set"].tolist() for batch in loader(mixed)) == [0, 0, 0, 0, 1, 1]
    with pytest.raises(headway.UsageError, match=r"headway\.mix takes datasets"):
        headway.mix([])


def test_a_mixed_dataset_pickles_and_indexes(sets: tuple[Path, Path]) -> None:
    mixed = headway.mix([opened(location) for location in sets])
    again = pickle.loads(pickle.dumps(mixed))  # noqa: S301 - our own bytes
    last = len(mixed) - 1
    assert again[last]["drive"] == mixed[last]["drive"] == mixed.datasets[1][len(mixed.datasets[1]) - 1]["drive"]
    assert again.view.view_id == mixed.view.view_id
    mixed.close()
    assert len(mixed[0]["LIDAR"]["points"])
