"""Colour operations: what each does to levels, that draws are keyed, and that nothing is drawn twice."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch

from headway.formats import UsageError
from headway.gpu_decode import GridMask, Normalise, PhotometricDistortion, Policy
from headway.gpu_decode.colour import run_pass
from headway.loader.batch import Batch
from headway.loader.draws import key
from tests.gpu_decode.scenes import SIZE, scene

KEYS = key(1, 0, np.arange(400), 0, "colour")
ZEROS = np.zeros(400, np.int64)
OFF = {"shift": 0.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0, "contrast_last": False, "order": [0, 1, 2]}


def change(levels: torch.Tensor, **params: object) -> torch.Tensor:
    return PhotometricDistortion().apply(levels, {name: np.array([value]) for name, value in {**OFF, **params}.items()})


def picture(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (1, 3, 9, 11)).astype(np.float32))


def test_nothing_drawn_changes_nothing() -> None:
    levels = picture()
    torch.testing.assert_close(change(levels), levels)
    # Through hue and saturation and back, too.
    torch.testing.assert_close(change(levels, hue=360.0), levels, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("saturation", "hue"), [(0.5, 0.0), (1.4, 0.0), (1.0, 18.0), (0.7, -18.0)])
def test_saturation_and_hue_are_those_of_hsv(saturation: float, hue: float) -> None:
    levels = picture(1)
    found = change(levels, saturation=saturation, hue=hue)
    for pixel, after in zip(levels[0].flatten(1).T.tolist(), found[0].flatten(1).T.tolist(), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(level / 255 for level in pixel))
        expected = colorsys.hsv_to_rgb((h + hue / 360) % 1, min(s * saturation, 1), v)
        np.testing.assert_allclose(after, np.array(expected) * 255, atol=1e-2)


def test_brightness_contrast_and_order_are_plain_arithmetic() -> None:
    levels = picture(2)
    torch.testing.assert_close(change(levels, shift=10.0, contrast=0.5), (levels + 10) * 0.5)
    torch.testing.assert_close(change(levels, contrast=0.5, contrast_last=True), levels * 0.5)
    torch.testing.assert_close(change(levels, order=[2, 0, 1]), levels[:, [2, 0, 1]])


def test_draws_stay_in_their_ranges_and_happen_half_of_the_time() -> None:
    drawn = PhotometricDistortion().draw(KEYS, size=SIZE, epoch=ZEROS)
    assert np.abs(drawn["shift"]).max() <= 32
    assert np.abs(drawn["hue"]).max() <= 18
    for name, still in (("shift", 0), ("contrast", 1), ("saturation", 1), ("hue", 0)):
        assert 0.4 < (drawn[name] != still).mean() < 0.6
    assert 0.3 < (drawn["order"] != [0, 1, 2]).any(1).mean() < 0.55
    assert ((drawn["contrast"] >= 0.5) & (drawn["contrast"] <= 1.5)).all()


def test_a_grid_keeps_the_asked_share_in_a_periodic_pattern() -> None:
    white = torch.full((1, 3, 120, 200), 255.0)
    params = {
        name: np.array([value])
        for name, value in {"on": True, "period": 20, "band": 10, "across": 3, "down": 7, "angle": 0.0}.items()
    }
    masked = GridMask().apply(white, params)
    # Bands of half a period both ways: a quarter is black.
    assert float((masked == 0).float().mean()) == pytest.approx(0.25)
    assert torch.equal(masked[..., 20:, :], masked[..., :-20, :])
    assert torch.equal(masked[..., 20:], masked[..., :-20])
    assert torch.equal(GridMask().apply(white, {**params, "on": np.array([False])}), white)


def test_a_turned_grid_masks_as_much() -> None:
    white = torch.full((1, 3, 400, 400), 255.0)
    params = {
        name: np.array([value])
        for name, value in {"on": True, "period": 20, "band": 10, "across": 3, "down": 7, "angle": 0.4}.items()
    }
    assert float((GridMask().apply(white, params) == 0).float().mean()) == pytest.approx(0.25, abs=0.01)


def test_the_probability_of_a_grid_grows_with_the_epoch() -> None:
    grid = GridMask(probability=0.8, ramp_epochs=4)
    shares = [grid.draw(KEYS, size=SIZE, epoch=np.full(400, epoch))["on"].mean() for epoch in (0, 2, 4, 9)]
    assert shares[0] == 0
    assert 0.33 < shares[1] < 0.47
    assert 0.74 < shares[2] < 0.86
    assert shares[2] == shares[3]


def test_the_pass_rounds_once_and_clips() -> None:
    image = picture(3).to(torch.uint8)
    policy = PhotometricDistortion()
    drawn = policy.draw(KEYS[:1], size=(9, 11), epoch=ZEROS[:1])
    levels = policy.apply(image.float(), drawn)
    assert torch.equal(run_pass(image, [(policy, drawn)], None), levels.round().clamp(0, 255).to(torch.uint8))
    end = Normalise(dtype="float16", bgr=True)
    expected = ((levels - torch.tensor(end.mean)[:, None, None]) / torch.tensor(end.std)[:, None, None]).half().flip(1)
    assert torch.equal(run_pass(image, [(policy, drawn)], end), expected)


def test_images_share_draws_as_declared() -> None:
    batch = scene(samples=3)
    batch["camera"]["image"][:] = 200
    for share, distinct in (("image", 11), ("frame", 6), ("sample", 3)):
        policy = Policy((GridMask(probability=1, share=share),))  # type: ignore[arg-type]  # one of the three literals
        image = policy.augment(batch)["camera"]["image"]
        there = image[batch["camera"]["mask"]]
        assert len({bytes(each.numpy()) for each in there}) == distinct
        assert (image[~batch["camera"]["mask"]] == 0).all()


def test_layouts_give_the_same_picture() -> None:
    batch, other = scene(), scene()
    other["camera"]["image"] = other["camera"]["image"].permute(0, 1, 2, 4, 5, 3).contiguous()
    policy = Policy((PhotometricDistortion(), GridMask(), Normalise()))
    found = policy.augment(other)["camera"]["image"].permute(0, 1, 2, 5, 3, 4)
    assert torch.equal(found, policy.augment(batch)["camera"]["image"])


def test_normalised_images_are_refused() -> None:
    batch = Batch(scene())
    batch["camera"] = {**batch["camera"], "image": batch["camera"]["image"].float()}
    with pytest.raises(UsageError, match="uint8"):
        Policy((GridMask(),)).augment(batch)
