"""A bound on memory: a real one where control groups may be made, and why there is none elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.bench.memory_limit import MemoryGroup
from headway.formats import UsageError

_LIMIT = 96 << 20
_FILL = """
import sys
from headway.bench.memory_limit import join_group

join_group(sys.argv[1])
held = bytearray(int(sys.argv[2]))
for at in range(0, len(held), 4096):
    held[at] = 1
print("filled")
"""


def _fill(group: MemoryGroup, nbytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _FILL, str(group.path), str(nbytes)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_process_of_the_group_cannot_have_more() -> None:
    try:
        group = MemoryGroup(_LIMIT)
    except UsageError as error:
        pytest.skip(f"no group can be made here: {error}")
    with group:
        assert _fill(group, _LIMIT // 4).stdout == "filled\n"
        assert _LIMIT // 4 <= group.events()["peak_bytes"] <= _LIMIT
        assert _fill(group, 2 * _LIMIT).returncode != 0
        assert group.events()["oom_kill"] == 1
    assert not group.path.exists()


def test_a_bound_says_why_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no control group with a memory controller.*run without --memory-limit"):
        MemoryGroup(1 << 28, root=tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(UsageError, match="no control group with a memory controller"):
        MemoryGroup(1 << 28, root=tmp_path)
