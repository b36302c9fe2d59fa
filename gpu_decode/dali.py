"""DALI as a decoder: region decode, antialiased resize, warp and normalisation in one pipeline, all by per-sample arguments.

The graph is the same on CPU (`device_id=None`) and GPU; only the placement of its operators differs. DALI fails a whole batch for
one bad image and then calls the pipeline invalid: images are validated before they enter it, and after a failure it is built
anew, the culprit goes to the CPU decoder, and the others run again.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import MissingExtra
from ..formats.image_header import image_size
from ..loader.decode import Decoder, ImageJobs
from ..loader.images import Images
from .handover import Handover, store
from .sampling import sample

__all__ = ["DaliDecoder", "build_pipeline"]

_CULPRIT: Final = re.compile(r"sample #(\d+)")
_INPUTS: Final = ("start", "shape", "begin", "end", "canvas", "matrix")
_FILL_BACK: Final = {"chw": "CHW", "hwc": "HWC"}


def build_pipeline(look: Images, *, batch_size: int, threads: int, device_id: int | None) -> Any:  # Any: DALI is untyped
    """Return a built pipeline that makes pictures of one look; `device_id` None runs it on the CPU.

    Inputs by name: "encoded" (uint8), and `Sampling`'s fields as float32: start, shape, begin, end, canvas, matrix.
    """
    try:
        from nvidia.dali import Pipeline, fn, types
    except ImportError as error:
        raise MissingExtra("dali", "decoding with DALI") from error
    on_gpu = device_id is not None
    pipe = Pipeline(batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    with pipe:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
        given = {
            name: fn.external_source(name=name, dtype=types.FLOAT, ndim=2 if name == "matrix" else 1, no_copy=True)
            for name in _INPUTS
        }
        picture = fn.decoders.image_slice(
            encoded,
            given["start"],
            given["shape"],
            device="mixed" if on_gpu else "cpu",
            axis_names="HW",
            normalized_anchor=False,
            normalized_shape=False,
            # Pixels as they are stored: intrinsics and boxes are those of the sensor, whatever EXIF says.
            adjust_orientation=False,
            output_type=types.RGB,
        )
        picture = fn.resize(
            picture,
            size=given["canvas"],
            roi_start=given["begin"],
            roi_end=given["end"],
            roi_relative=False,
            interp_type=types.INTERP_TRIANGULAR,
            antialias=True,
        )
        picture = fn.warp_affine(
            picture,
            matrix=given["matrix"],
            size=look.size,
            fill_value=look.fill,
            interp_type=types.INTERP_LINEAR,
            inverse_map=True,
        )
        made = {"uint8": types.UINT8, "float16": types.FLOAT16}.get(look.dtype, types.FLOAT)
        picture = fn.crop_mirror_normalize(
            picture, dtype=made, output_layout=_FILL_BACK[look.layout], mean=list(look.mean), std=list(look.std)
        )
        pipe.set_outputs(picture)
    pipe.build()
    return pipe


class DaliDecoder:
    """Decodes through DALI; what it should not get or fails on goes to the CPU decoder, image by image.

    Pictures go where the batch's memory is: by itself to the host, in an `OnDevice` to the GPU that made them. `counts` says what
    became of the images.
    """

    whole_step = True
    writes_tensors = True

    def __init__(self, *, device_id: int | None = None, threads: int = 1, fallback: Decoder | None = None) -> None:
        self.name = "dali-cpu" if device_id is None else f"dali-gpu{device_id}"
        self._device_id, self._threads = device_id, threads
        self._handover = Handover(fallback)
        self._pipelines: dict[Images, tuple[int, Any]] = {}  # Any: DALI is untyped
        self._lock = threading.Lock()  # a pipeline runs one batch at a time; also guards the dict

    @property
    def counts(self) -> Any:  # Any: handover.Counts, for reports
        """How many images were decoded here, handed over, refused; how often a pipeline was built anew."""
        return self._handover.counts

    def start(self, threads: int) -> None:
        """Use up to `threads` threads from the next pipeline on."""
        self._threads = max(1, threads)
        self._handover.fallback.start(threads)

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each."""
        with self._lock:
            return self._handover.run(jobs, self._device)

    def close(self) -> None:
        """Let go of all pipelines."""
        with self._lock:
            self._pipelines.clear()

    def _device(self, jobs: ImageJobs, chosen: NDArray[np.intp]) -> NDArray[np.bool_]:
        done = np.zeros(len(chosen), np.bool_)
        runs = [np.arange(len(chosen))]
        while runs:
            run = runs.pop()
            try:
                pictures = self._run(jobs, chosen[run])
            except RuntimeError as error:
                self._pipelines.pop(jobs.look, None)
                self._handover.counts.rebuilt += 1
                if len(run) == 1:
                    continue
                named = _CULPRIT.search(str(error))
                culprit = int(named.group(1)) if named else -1
                # Where DALI does not say which image it was, halves tell, and good ones are never given up for it.
                half = len(run) // 2
                runs += [np.delete(run, culprit)] if 0 <= culprit < len(run) else [run[:half], run[half:]]
                continue
            for at, place in enumerate(run.tolist()):
                store(jobs, int(chosen[place]), pictures[at])
                done[place] = True
        return done

    def _run(self, jobs: ImageJobs, chosen: NDArray[np.intp]) -> torch.Tensor:
        look = jobs.look
        assert look.size is not None
        samplings = [
            sample(jobs.affine[job], source=image_size(jobs.data[job], jobs.codecs[job]), target=look.size)
            for job in chosen.tolist()
        ]
        held = self._pipelines.get(look)
        if held is None or held[0] < len(chosen):
            pipe = build_pipeline(look, batch_size=len(chosen), threads=self._threads, device_id=self._device_id)
            held = self._pipelines[look] = (len(chosen), pipe)
        told: dict[str, list[Any]] = {  # Any: pairs and matrices
            "start": [each.start for each in samplings],
            "shape": [each.shape for each in samplings],
            "begin": [each.region[0] for each in samplings],
            "end": [each.region[1] for each in samplings],
            "canvas": [each.canvas for each in samplings],
            "matrix": [each.matrix for each in samplings],
        }
        inputs = {name: [np.asarray(value, np.float32) for value in values] for name, values in told.items()}
        encoded = [np.frombuffer(jobs.data[job], np.uint8) for job in chosen.tolist()]
        made = held[1].run(encoded=encoded, **inputs)[0].as_tensor()
        if self._device_id is not None and isinstance(jobs.out, torch.Tensor):
            return torch.utils.dlpack.from_dlpack(made)  # the pipeline's memory until its next run; `store` copies
        return torch.from_numpy(np.array(made.as_cpu() if self._device_id is not None else made))
