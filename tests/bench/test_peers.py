"""Peers as the bench uses them: every one is stated whole, and the ones that need nothing extra give the asked batches."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.bench.make_data import make_data
from headway.bench.peer_environment import peer_path
from headway.bench.peer_process import error_line
from headway.bench.peer_resume import measure_peers_resume, peers_with_state
from headway.bench.peer_rounds import PeerBench, PeerRow, PeerStore
from headway.bench.peers.contract import Run
from headway.bench.peers.registry import PEERS, load_peer
from headway.bench.peers.samples import BATCH, Stored, check, shuffled_batches
from headway.bench.workloads import workload
from headway.formats import UsageError


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_states_settings_or_a_reason_for_every_workload(name: str) -> None:
    peer = load_peer(name)
    assert peer.name == name
    for load in BATCH:
        assert bool(peer.cannot.get(load)) != bool(peer.settings(load)) or peer.cannot.get(load)
        for setting in peer.settings(load):
            assert json.loads(json.dumps(setting)) == setting
    assert not peer.packs_like or peer.packs_like in PEERS


def test_the_package_of_peers_imports_nothing_of_ours() -> None:
    code = (
        "import sys; from peers.registry import PEERS, load_peer; [load_peer(name) for name in PEERS]; "
        "print([name for name in sys.modules if name.startswith('headway')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(peer_path())}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loads")
    loads = {
        "W1": workload("W1", samples=8, points=300),
        "W2": workload("W2", samples=70),
        "W3": workload("W3", samples=600),
        "W4": workload("W4", samples=8, points=300),
    }
    loads |= {name: replace(loads[name], distinct_images=3) for name in ("W1", "W2")}
    return {name: make_data(load, folder / name).directory for name, load in loads.items()}


@pytest.mark.slow
@pytest.mark.parametrize("load", BATCH)
@pytest.mark.parametrize("name", ["torch", "torch_np", "headway"])
def test_peers_give_the_asked_batches(small: dict[str, Path], tmp_path: Path, name: str, load: str) -> None:
    peer = load_peer(name)
    if load in peer.cannot:
        pytest.skip(peer.cannot[load])
    run = Run(load, small[load], tmp_path / "packed")
    peer.pack(run)
    setting = peer.settings(load)[0] | ({"workers": 0} if name.startswith("torch") else {})
    batches = list(peer.open(run, **setting)())
    assert len(batches) == len(Stored(small[load])) // BATCH[load]
    for batch in batches:
        check(load, batch)


@pytest.mark.slow
def test_headway_and_torch_deliver_the_same_pictures(small: dict[str, Path], tmp_path: Path) -> None:
    means = {}
    for name, setting in (("torch", {"workers": 0, "scaled": False}), ("headway", {"threads": 0})):
        run = Run("W1", small["W1"], tmp_path / name)
        load_peer(name).pack(run)
        pictures = [image for batch in load_peer(name).open(run, **setting)() for image in batch["image"].flatten(0, 1).numpy()]
        means[name] = np.sort([float(picture.mean()) for picture in pictures])
    np.testing.assert_allclose(means["headway"], means["torch"], atol=0.01)


def test_a_wrong_batch_is_refused() -> None:
    import torch

    with pytest.raises(ValueError, match="not a batch of W3"):
        check("W3", {"trajectory": torch.zeros(256, 100, 5)})
    with pytest.raises(ValueError, match="normalised"):
        check("W2", {"image": torch.zeros(64, 3, 224, 224)})


def test_unknown_peers_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nope"):
        PeerBench("W3", tmp_path, tmp_path).run(["nope"])


def test_disturbed_runs_do_not_count_where_quiet_ones_exist() -> None:
    row = PeerRow(
        "x", runs=[{"samples_per_s": rate, "foreign_cores": foreign} for rate, foreign in ((10, 0.0), (90, 1.0), (12, 0.1))]
    )
    assert row.median("samples_per_s") == 11
    row.runs = [{"samples_per_s": 5.0, "foreign_cores": 1.0}]
    assert row.median("samples_per_s") == 5.0


def test_shuffled_batches_hold_every_whole_batch_once() -> None:
    batches = shuffled_batches(103, 10, seed=3)
    assert len(batches) == 10
    assert len(np.unique(np.concatenate(batches))) == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["headway"])
def test_a_state_noted_in_one_process_goes_on_exactly_in_another(small: dict[str, Path], tmp_path: Path, name: str) -> None:
    store = PeerStore("W3", small["W3"], tmp_path)
    peer = load_peer(name)
    store.pack(peer)
    task = {"do": "note", "places": [0, 1], "batches": 3, "states": str(tmp_path)}
    noted = store.run(peer, task, limit_s=60, module="measure_resume")
    restore = {"do": "restore", "state": str(tmp_path / "1.pt"), "batches": 3}
    found = store.run(peer, restore, limit_s=60, module="measure_resume")
    assert found["prints"] == noted["prints"][1]
    assert noted["prints"][0][1:] == noted["prints"][1][:2]
    assert found["first_batch_s"] > 0


def test_resume_is_compared_over_trajectories_and_with_those_that_keep_a_state(small: dict[str, Path], tmp_path: Path) -> None:
    assert {"headway", "torchdata-stateful", "mosaicml-streaming", "litdata", "energon", "grain"} <= set(peers_with_state())
    with pytest.raises(UsageError, match="is W2"):
        measure_peers_resume(["headway"], small["W2"], tmp_path)
    with pytest.raises(UsageError, match="torch keep no state"):
        measure_peers_resume(["torch"], small["W3"], tmp_path)


def test_an_error_is_named_by_its_own_line_not_by_a_note_after_it() -> None:
    assert error_line("Traceback …\n  File x\nmy.pkg.SomeError: broken\nwhile making batch 0\n") == "my.pkg.SomeError: broken"
    assert error_line("Killed\n") == "Killed"
    assert error_line("") == "no output"


def test_a_peer_that_fails_or_hangs_is_reported_and_leaves_nothing(small: dict[str, Path], tmp_path: Path) -> None:
    store = PeerStore("W3", small["W3"], tmp_path)
    failed = store.run(load_peer("headway"), {"do": "measure", "setting": {"nope": 1}, "seconds": 1}, limit_s=60)
    assert "nope" in failed["error"]
    hung = store.run(load_peer("headway"), {"do": "measure", "setting": {"threads": 1}, "seconds": 1}, limit_s=0.0)
    assert hung == {"error": "gave no figures within 0 s"}
