"""The writer's running sums are those of the whole file, however it is cut."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats.integrity import CHUNK, HashedWriter, chunk_sums

sizes = st.lists(st.one_of(st.integers(0, 200), st.integers(CHUNK - 2, CHUNK + 2), st.integers(0, 3 * CHUNK)), max_size=8)


@pytest.mark.slow
@settings(max_examples=40)
@given(sizes)
def test_sums_do_not_depend_on_how_the_file_is_cut(cuts: list[int]) -> None:
    data = bytes(range(251)) * (sum(cuts) // 251 + 1)
    with tempfile.TemporaryDirectory() as folder:
        with HashedWriter(Path(folder, "file"), sums=True) as out:
            at = 0
            for size in cuts:
                at += out.write(data[at : at + size])
        whole = data[: sum(cuts)]
        assert out.sums == chunk_sums(whole)
        assert out.sha256 == hashlib.sha256(whole).hexdigest()
        assert Path(folder, "file").read_bytes() == whole
