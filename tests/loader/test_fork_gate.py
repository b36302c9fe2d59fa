"""A fork meets no thread inside OpenCV, and none on its way out of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import simplejpeg

from headway.formats.integrity import payload_hash
from headway.loader.decode import OK, ImageJobs, PortableDecoder
from headway.loader.fork_gate import ForkGate, gate
from headway.loader.images import Images

DATA = memoryview(simplejpeg.encode_jpeg(np.full((40, 60, 3), 90, np.uint8), quality=90))


def decode() -> None:
    jobs = ImageJobs(
        data=[DATA],
        hashes=np.array([payload_hash(DATA)], np.uint64),
        codecs=["jpeg"],
        affine=np.array([[[0.4, 0, 0], [0, 0.4, 0]]]),
        out=np.empty((1, 3, 20, 30), np.uint8),
        index=np.zeros(1, np.int64),
        look=Images("*", size=(20, 30), dtype="uint8"),
    )
    assert PortableDecoder().decode(jobs)[0] == OK


def in_child(check: Callable[[], bool]) -> bool:
    """Fork, and return what `check` says in the child."""
    pid = os.fork()
    if not pid:
        os._exit(0 if check() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_fork_waits_for_who_is_inside_and_lets_nobody_in() -> None:
    entered, leave, forked, second = (threading.Event() for _ in range(4))

    def hold() -> None:
        with gate.inside():
            entered.set()
            leave.wait(10)

    def fork() -> None:
        assert in_child(lambda: True)
        forked.set()

    def enter() -> None:
        with gate.inside():
            second.set()

    holding, forking, entering = (threading.Thread(target=target) for target in (hold, fork, enter))
    holding.start()
    entered.wait(10)
    forking.start()
    while not gate._shut:
        pass
    entering.start()
    assert not forked.wait(0.2)
    assert not second.is_set()
    leave.set()
    assert forked.wait(10)
    assert second.wait(10)
    for thread in (holding, forking, entering):
        thread.join()


def test_a_thread_that_has_decoded_is_gone_from_the_system_before_a_fork() -> None:
    for _ in range(200):
        thread = threading.Thread(target=decode)
        thread.start()
        thread.join()
        known, parent = thread.native_id, os.getpid()
        assert in_child(lambda known=known, parent=parent: not os.path.exists(f"/proc/{parent}/task/{known}"))  # type: ignore[misc]  # bound


def test_a_child_has_a_gate_of_its_own() -> None:
    def decodes() -> bool:
        thread = threading.Thread(target=decode)
        thread.start()
        thread.join(20)
        return not thread.is_alive()

    with gate.inside():  # the child's copy of this thread never leaves
        child = threading.Thread(target=lambda: results.append(in_child(decodes)))
        results: list[bool] = []
        child.start()
        child.join(30)
    assert results == [True]


def test_threads_that_ended_are_forgotten() -> None:
    own = ForkGate()

    def enter() -> None:
        with own.inside():
            pass

    for _ in range(50):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(own._users) < 10
