"""FFCV: a .beton file and its compiled loader; pictures are re-encoded by its own writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .contract import Peer, Run, Setting
from .samples import BATCH, MEAN, STD, Stored, decode

__all__ = ["PEER"]


class _Rows:
    def __init__(self, run: Run) -> None:
        self.stored, self.workload = Stored(run.data), run.workload

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        sample = self.stored[index]
        if self.workload == "W2":
            return decode(sample["cam0"], width=0, height=0, scaled=False), sample["label"]
        return np.ascontiguousarray(sample["trajectory"]), sample["speed"], sample["stamp"], sample["command"]


def _pack(run: Run) -> None:
    from ffcv.fields import FloatField, IntField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    run.packed.mkdir(parents=True, exist_ok=True)
    if run.workload == "W2":
        fields = {"image": RGBImageField(write_mode="jpg", max_resolution=500, jpeg_quality=94), "label": IntField()}
    else:
        trajectory = NDArrayField(np.dtype("float32"), (100, 6))
        fields = {"trajectory": trajectory, "speed": FloatField(), "stamp": IntField(), "command": IntField()}
    DatasetWriter(str(run.packed / "data.beton"), fields, num_workers=2).from_indexed_dataset(_Rows(run))


def _open(run: Run, *, workers: int, order: str) -> Callable[[], Iterator[Any]]:
    from ffcv.fields.decoders import FloatDecoder, IntDecoder, NDArrayDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    if run.workload == "W2":
        image = [
            RandomResizedCropRGBImageDecoder((224, 224)),
            RandomHorizontalFlip(),
            NormalizeImage(MEAN, STD, np.float32),
            ToTensor(),
            ToTorchImage(convert_back_int16=False),
        ]
        pipelines = {"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]}
    else:
        numbers = {"speed": FloatDecoder, "stamp": IntDecoder, "command": IntDecoder}
        pipelines = {"trajectory": [NDArrayDecoder(), ToTensor()]} | {
            name: [kind(), ToTensor()] for name, kind in numbers.items()
        }
    loader = Loader(
        str(run.packed / "data.beton"),
        batch_size=BATCH[run.workload],
        num_workers=workers,
        order=OrderOption.RANDOM if order == "random" else OrderOption.QUASI_RANDOM,
        pipelines=pipelines,
        drop_last=True,
        os_cache=True,
    )
    return lambda: (dict(zip(pipelines, batch, strict=True)) for batch in loader)


def _settings(workload: str) -> list[Setting]:
    orders = ("random", "quasi") if workload == "W3" else ("random",)
    return [{"workers": count, "order": order} for count in (1, 2) for order in orders]


PEER = Peer(
    name="ffcv",
    requirements=("ffcv==1.0.2", "numba>=0.60", "pillow>=10", "opencv-python-headless>=4,<6"),
    settings=_settings,
    pack=_pack,
    open=_open,
    cannot={"W1": "no decoder for a fixed crop of several images a sample", "W4": "a bytes field is padded and gives no length"},
    note="builds from source; needs pkg-config and Debian's libopencv-dev and libturbojpeg0-dev",
)
