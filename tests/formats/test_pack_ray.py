"""Packing on Ray, without Ray: its absence is named, and files travel where no directory is shared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.formats import MissingExtra, PackOptions, pack
from headway.formats.adapters import open_source
from headway.formats.pack_ray import _attempt, _place
from headway.formats.pack_worker import ShardTask
from headway.formats.shard_plan import plan_shards
from tests.formats.ramp import Ramp, ramp_spec
from tests.formats.test_packer import tree


def test_a_missing_ray_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"headway\[ray\]"):
        pack(ramp_spec(), tmp_path / "set", PackOptions(engine="ray"))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("shared", [True, False])
def test_files_arrive_with_and_without_a_shared_directory(shared: bool, tmp_path: Path) -> None:
    options = PackOptions(workers=1, shard_bytes=20_000, engine="ray")
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "ray.tmp").write_text("one token")
    for number, pieces in enumerate(plan_shards(Ramp().listings, options.shard_bytes)):
        task = ShardTask(
            source=ramp_spec(),
            options=options,
            staging=str(tmp_path / "staging"),
            number=number,
            pieces=pieces,
            portion=open_source(ramp_spec()),
        )
        done, shipped = _attempt(task, "one token" if shared else "another")
        assert bool(shipped) != shared
        assert done.shards
        for name, data in shipped.items():
            _place(tmp_path / "staging", name, data)
    (tmp_path / "staging" / "ray.tmp").unlink()
    pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1, shard_bytes=20_000))
    (tmp_path / "set" / "manifest.json").unlink()
    assert tree(tmp_path / "staging") == tree(tmp_path / "set")
