"""TensorFlow: a tf.data.Dataset with a signature that holds for every batch, and the state of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headway
from headway import DataLoader, Images, LoaderOptions, Padding, UsageError, Window

from .ranks import needs

needs("tensorflow")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.timeout(1300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WINDOWS = [Window("CAM_BACK"), Window("LIDAR"), Window("boxes"), Window("note"), Window("ego")]
ENTRIES = ["id", "valid", "camera.image", "LIDAR.points", "LIDAR.offsets", "boxes.centre", "boxes.count", "ego.ego_to_world"]


def loader_of(frames_set: Path, *padding: Padding) -> DataLoader:
    dataset = headway.open(frames_set, windows=WINDOWS, images=Images("CAM_BACK", size=(24, 32)), padding=padding)
    return DataLoader(dataset, 4, shuffle=True, num_workers=1, options=LoaderOptions(seed=3))


def test_an_epoch_through_tf_data_is_the_loaders(frames_set: Path) -> None:
    from headway.loader.tensorflow_view import tensorflow_dataset

    batches = list(loader_of(frames_set))
    loader = loader_of(frames_set)
    dataset = tensorflow_dataset(loader, ENTRIES)
    assert dataset.element_spec["camera.image"].shape.as_list() == [4, 1, 1, 3, 24, 32]
    assert dataset.element_spec["LIDAR.points"].shape.as_list() == [None, 4]
    assert dataset.element_spec["boxes.centre"].shape.as_list() == [4, 1, None, 3]
    elements = list(dataset.prefetch(2).as_numpy_iterator())
    assert len(elements) == len(batches) == loader.stats()["steps"]
    for element, batch in zip(elements, batches, strict=True):
        for name in ENTRIES:
            outer, _, inner = name.partition(".")
            expected = batch[outer][inner] if inner else batch[outer]
            assert (element[name] == expected.numpy()).all()
        assert json.loads(element["state"]) == batch["state"]


def test_padded_points_and_names_that_are_not_there(frames_set: Path) -> None:
    from headway.loader.tensorflow_view import tensorflow_dataset

    loader = loader_of(frames_set, Padding("LIDAR", sizes=(80,)))
    (first, *_) = tensorflow_dataset(loader, ["LIDAR.points", "LIDAR.count"]).as_numpy_iterator()
    assert first["LIDAR.points"].shape == (4, 1, 80, 4)
    with pytest.raises(UsageError, match=r"no 'LIDAR.nothing'"):
        tensorflow_dataset(loader, ["LIDAR.nothing"])
    with pytest.raises(UsageError, match="no array"):
        tensorflow_dataset(loader, ["note.text"])
