"""Loading once for peers: two gloo processes get one loader's batches, its end and its errors, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
import headway
from headway import DataLoader, Images, LoaderOptions, Topology, WorkerDied
from headway.formats import DecodeError
from headway.loader.share import Shared
from headway.loader.topology import Peers

dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = headway.open(sys.argv[1], images=[Images("CAM_BACK", size=(24, 32), dtype="bfloat16")])
topology = Topology(tensor=Peers(rank=rank, size=2), local_rank=rank, local_size=2)
loader = DataLoader(dataset, 4, True, num_workers=1, options=LoaderOptions(seed=3), topology=topology)
shared = Shared(loader, group=dist.group.WORLD, source=1, device=sys.argv[2])

def digest(batch):
    found = hashlib.sha256()
    def walk(name, value):
        if isinstance(value, torch.Tensor):
            found.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            assert value.device.type == sys.argv[2]
            found.update(bytes(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
        elif isinstance(value, dict):
            for key in value:
                walk(f"{name}.{key}", value[key])
        else:
            found.update(f"{name}{value!r}".encode())
    walk("", dict(batch))
    return found.hexdigest()

said = {"rank": rank, "length": len(shared), "epochs": [], "error": ""}
try:
    for _ in range(2):
        said["epochs"].append([digest(batch) for batch in shared])
    state = shared.state_dict()
    for batch in shared:
        said["state"] = batch["state"]
        break
    assert shared.state_dict() == said["state"]
    said["loaded"] = loader.stats()["steps"]
except (WorkerDied, DecodeError) as error:
    said["error"] = f"{type(error).__name__}: {error}"
os.write(1, (json.dumps(said) + "\\n").encode())  # one write: unbuffered, print makes two, and ranks share a pipe
dist.barrier()
os._exit(0)  # gloo's threads abort some ends after all work is done
"""


def two_processes(set_path: Path, tmp_path: Path, device: str = "cpu") -> list[dict[str, Any]]:
    program = tmp_path / "peer.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program), str(set_path)]
    command.append(device)
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda each: int(each["rank"]))


@pytest.mark.slow
def test_a_peer_receives_what_the_other_loads(drives_set: Path, tmp_path: Path) -> None:
    receiver, source = two_processes(drives_set, tmp_path)
    assert receiver["epochs"] == source["epochs"]
    assert [len(epoch) for epoch in source["epochs"]] == [5, 5]
    assert source["epochs"][0] != source["epochs"][1]
    assert receiver["state"] == source["state"]
    assert (receiver["loaded"], source["loaded"]) == (0, 11)


@pytest.mark.gpu
@pytest.mark.slow
def test_batches_are_received_on_the_device(drives_set: Path, tmp_path: Path) -> None:
    """By gloo, which two processes may use on one device, as NCCL does not allow."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    receiver, source = two_processes(drives_set, tmp_path, "cuda")
    assert receiver["epochs"] == source["epochs"] == two_processes(drives_set, tmp_path)[0]["epochs"]


@pytest.mark.slow
def test_an_error_of_the_loading_peer_ends_the_others(broken_set: Path, tmp_path: Path) -> None:
    """mosaicml/streaming#307: nobody is left waiting for a peer that has failed."""
    receiver, source = two_processes(broken_set, tmp_path)
    assert source["error"].startswith("DecodeError")
    assert receiver["error"].startswith("WorkerDied")
    assert source["error"] in receiver["error"]
