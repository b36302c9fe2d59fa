"""What people have reported of ranks and of their processes, each thread as a test: forks, barriers, deaths and exits."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.compute as pc
import pytest
import torch.utils.data

import headway
from headway import DataLoader, LoaderOptions, Mixture, Topology, Transforms, UsageError, Window, WorkerDied
from tests.source_tree import ROOT

from . import transform_functions as functions
from .drives import write_drives

LIGHT = [Window("note"), Window("ego")]


def light(location: Path, **more: Any) -> DataLoader:
    transforms, batch_size = more.pop("transforms", Transforms()), more.pop("batch_size", 2)
    options = LoaderOptions(seed=3, transforms=transforms)
    return DataLoader(headway.open(location, windows=LIGHT), batch_size, True, options=options, **more)


def ids(batches: Any) -> list[int]:
    return [item for batch in batches for item in batch["id"].tolist() if item >= 0]


def run(program: str, *arguments: str, expect: int = 0) -> str:
    """Run a program to its end, which has to come by itself; return what it printed."""
    command = [sys.executable, "-c", program, *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def only_id(samples: list[Any]) -> list[int]:
    return [int(sample["id"]) for sample in samples]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork after threads, which torch itself does
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_set_that_was_read_here_is_read_in_workers_too(drives_set: Path, start: str) -> None:
    """fsspec/filesystem_spec#835, fsspec/gcsfs#379: handles made in the parent hung its workers."""
    dataset: Any = headway.open(drives_set)
    assert int(dataset[3]["id"]) == 3
    workers = torch.utils.data.DataLoader(
        dataset, 6, num_workers=2 if start == "fork" else 1, multiprocessing_context=start, collate_fn=only_id, timeout=60
    )
    assert list(workers) == [list(range(at, at + 6)) for at in (0, 6, 12)]


FORKED_STORE = """
import os, signal, sys
from headway.formats import UsageError
from headway.formats.stores import open_store
store = open_store(sys.argv[1])
assert store.read("a.bin", 0, 3) == b"abc"
child = os.fork()
if child == 0:
    signal.alarm(30)  # a hang ends here, badly
    try:
        open_store(sys.argv[1]).read("a.bin", 0, 3)
    except UsageError as error:
        os._exit(0 if "spawn" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_store_used_before_a_fork_is_refused_after_it(tmp_path: Path) -> None:
    """fsspec/s3fs#464: the I/O thread did not come along, and the child hung without a word."""
    pytest.importorskip("obstore")
    (tmp_path / "a.bin").write_bytes(b"abcdef")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Range", "bytes 0-2/6")
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"abc")

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert run(FORKED_STORE, f"http://127.0.0.1:{server.server_port}") == "0\n"
        finally:
            server.shutdown()


UNEVEN = """
import os, sys, time
import torch, torch.distributed as dist
import headway
from headway import DataLoader, LoaderOptions, Transforms, Window

def failing(sample):
    if int(sample["id"]) == 7:
        raise LookupError("bad sample")
    return sample

def rank_of_two(rank):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    dataset = headway.open(sys.argv[1], windows=[Window("note")])
    loader = DataLoader(dataset, 2, True, num_workers=3, options=LoaderOptions(seed=3))
    steps = 0
    for epoch in range(5):
        for batch in loader:
            if rank:
                time.sleep(0.02)
            dist.all_reduce(torch.tensor([1]))
            steps += 1
    dist.barrier()
    # The rank that has item 7 fails by itself; the other one reads on to its end, whatever became of its peer.
    options = LoaderOptions(seed=3, transforms=Transforms(sample=failing, processes=0))
    bad = DataLoader(dataset, 2, True, num_workers=1, options=options)
    try:
        ended = sum(1 for batch in bad)
    except LookupError:
        ended = -1
    os.write(1, f"{rank} {steps} {ended}\\n".encode())

torch.set_num_threads(1)
children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        rank_of_two(rank)
        os._exit(0)  # gloo's threads abort some ends after all work is done
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
"""


@pytest.mark.slow
def test_ranks_never_wait_for_each_other_inside_the_loader(drives_set: Path, tmp_path: Path) -> None:
    """mosaicml/streaming#617, mosaicml/streaming#307, webdataset/webdataset#225: a barrier of the loader's met an all-reduce."""
    said = sorted(line.split() for line in run(UNEVEN, str(drives_set), str(tmp_path / "store")).splitlines())
    assert [line[:2] for line in said] == [["0", "25"], ["1", "25"]]  # 18 items on 2 ranks × 2: 5 steps, 5 times
    assert sorted(line[2] for line in said) == ["-1", "5"]


def test_a_rank_reads_its_part_where_no_other_ever_starts(drives_set: Path) -> None:
    """mosaicml/streaming#966: a rank attached to shared memory before the first one had made it."""
    alone = ids(light(drives_set, num_workers=2, topology=Topology(rank=3, size=4)))
    whole = [ids(light(drives_set, num_workers=0, topology=Topology(rank=rank, size=4))) for rank in range(4)]
    assert alone == whole[3]
    assert sorted(item for part in whole for item in part) == list(range(18))


def test_each_rank_prepares_its_own_samples_and_no_others(drives_set: Path) -> None:
    """modelscope/ms-swift#9860: rank 0 prepared for all."""
    prepared: list[int] = []

    def note(sample: Any) -> Any:
        prepared.append(int(sample["id"]))
        return sample

    for rank in range(3):
        begun = len(prepared)
        topology = Topology(rank=rank, size=3)
        received = ids(light(drives_set, num_workers=1, topology=topology, transforms=Transforms(sample=note, processes=0)))
        assert sorted(prepared[begun:]) == sorted(received)
        assert len(received) == 6
    assert sorted(prepared) == list(range(18))


def test_a_set_of_one_item_is_mixed_in_with_more_threads_than_it_has_items(drives_set: Path, tmp_path: Path) -> None:
    """NVIDIA/Megatron-Energon#145: a small subset had no sample for some worker."""
    tiny = headway.open(write_drives(tmp_path / "tiny", drives=1, frames=2), windows=LIGHT, where=pc.field("frame") == 0)
    assert len(tiny) == 1
    mixed = headway.mix([tiny, headway.open(drives_set, windows=LIGHT)])
    for rank in range(2):
        loader = DataLoader(mixed, 3, sampler=Mixture(weights=(1, 5)), num_workers=8, topology=Topology(rank=rank, size=2))
        batches = list(loader)
        assert len(batches) == len(loader)
    items = ids(DataLoader(mixed, 6, sampler=Mixture(weights=(1, 5)), num_workers=8))
    assert abs(items.count(0) - len(items) / 6) <= 1


@pytest.mark.parametrize("batches", [0, 1, 3])
@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_process_ends_the_loop_whenever_it_dies(drives_set: Path, batches: int, which: int) -> None:
    """pytorch/pytorch#21554: a killed worker left the main process waiting for ever."""
    loader = light(drives_set, num_workers=2, transforms=Transforms(sample=functions.touch_nothing, processes=2))
    iterator: Any = iter(loader)
    for _ in range(batches):
        next(iterator)
    pid = iterator._engine._feeder.children[which].process.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=rf"{pid} .*SIGKILL"):
        for _ in iterator:
            pass


def test_no_name_in_shared_memory_can_vanish(drives_set: Path) -> None:
    """RolnickLab/ami-data-companion#140: a worker died as its segment was gone, and the main process waited for ever."""
    before = set(os.listdir("/dev/shm"))
    loader = light(drives_set, num_workers=2, transforms=Transforms(sample=functions.touch_nothing, processes=2))
    iterator: Any = iter(loader)
    next(iterator)
    pids = [os.getpid(), *(child.process.pid for child in iterator._engine._feeder.children)]
    mapped = {line.split()[-1] for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    ours = {Path(path).name for path in mapped if path.startswith("/dev/shm/")}
    assert not ours - before
    assert len(list(iterator)) == 8


KEPT = """
import sys
import headway
from headway import DataLoader, LoaderOptions, Transforms, Window
from tests.loader.transform_functions import touch_nothing

dataset = headway.open(sys.argv[1], windows=[Window("note"), Window("CAM_BACK")])
options = LoaderOptions(prefetch=4, transforms=Transforms(sample=touch_nothing, processes=int(sys.argv[2])))
kept = [iter(DataLoader(dataset, 1, num_workers=3, options=options)) for _ in range(2)]
batches = [next(each) for each in kept]
print(1 / 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_iterators_kept_to_the_end_do_not_hold_it_up(drives_set: Path, processes: str) -> None:
    """pytorch/pytorch#48666, pytorch/pytorch#33721: a global iterator, or a raised error, hung the exit."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KEPT, str(drives_set), processes]
    started = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)
    _, error = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "ZeroDivisionError" in error
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)  # nobody of its session is left


def test_nothing_inside_a_loader_keeps_it_from_another_process(drives_set: Path) -> None:
    """catalyst-team/catalyst#1024: a lambda among the loader's own arguments could not be pickled."""
    loader = light(drives_set, num_workers=1)
    assert ids(pickle.loads(pickle.dumps(loader))) == ids(loader)  # noqa: S301  # our own bytes
    refused = light(drives_set, num_workers=1, transforms=Transforms(sample=lambda sample: sample, processes=1, start="spawn"))
    with pytest.raises(UsageError, match="top level of a module"):
        iter(refused)
