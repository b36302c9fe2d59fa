"""The pool of native threads: steps in flight, waiting, cancelling, resizing, forking, and the end of the process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats import HeadwayError, UsageError, kernel

from .native_jobs import IDENTITY, jpeg, needs_core, picture, reference

pytestmark = needs_core

DATA = [jpeg(picture(90, 120, seed)) for seed in range(6)]
TARGET = kernel.Target(width=120, height=90, layout="hwc")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = kernel.threads()
    kernel.set_threads(2)
    yield
    kernel.set_threads(before)


def start(copies: int = 1) -> tuple[NDArray[np.uint8], kernel.Step]:
    data = DATA * copies
    out = np.zeros((len(data), 90, 120, 3), np.uint8)
    jobs = kernel.image_jobs(len(data))
    jobs["data"], jobs["length"] = kernel.addresses(data)
    jobs["out"] = out.ctypes.data + np.arange(len(data), dtype=np.uint64) * np.uint64(TARGET.image_bytes)
    jobs["affine"] = IDENTITY
    return out, kernel.submit([TARGET], jobs, keep=(data, out))


def right(out: NDArray[np.uint8]) -> bool:
    return all(np.abs(image - reference(DATA[k % 6])).max() <= 1 for k, image in enumerate(out))


def test_several_steps_in_flight_all_arrive() -> None:
    steps = [start() for _ in range(8)]
    for out, step in reversed(steps):
        assert step.wait(30)
        assert step.status.tolist() == [0] * 6
        assert right(out)
        submitted, started, finished, busy = step.times()
        assert submitted <= started < finished
        assert busy > 0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_number_of_threads_gives_the_same_pictures(count: int) -> None:
    assert kernel.set_threads(count) == count == kernel.threads()
    out, step = start()
    if count == 0:
        assert not step.wait(0) or step.status.tolist() == [0] * 6
    assert step.wait(30)
    assert right(out)


def test_an_empty_step_is_done_at_once() -> None:
    step = kernel.submit([TARGET], kernel.image_jobs(0))
    assert step.wait(0)
    assert step.status.tolist() == []


def test_cancelled_jobs_say_so_and_finished_ones_stay() -> None:
    out, step = start(copies=20)
    step.cancel()
    assert step.wait(0)
    assert set(step.status.tolist()) <= {kernel.Status.OK, kernel.Status.CANCELLED}
    step.cancel()
    done = step.status == kernel.Status.OK
    for k in np.flatnonzero(done):
        assert np.abs(out[k] - reference(DATA[k % 6])).max() <= 1


def test_dropping_a_step_waits_for_its_running_jobs() -> None:
    for _ in range(20):
        _, step = start()
        del step
        gc.collect()
    out, step = start()
    assert step.wait(30)
    assert right(out)


def test_resizing_while_steps_run_loses_nothing() -> None:
    steps = [start() for _ in range(6)]
    for count in (1, 3, 0, 2, 1):
        kernel.set_threads(count)
    for out, step in steps:
        assert step.wait(30)
        assert right(out)


def test_many_callers_share_the_pool() -> None:
    wrong: list[int] = []

    def caller(number: int) -> None:
        for _ in range(5):
            out, step = start()
            if not (step.wait(30) and right(out)):
                wrong.append(number)

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert wrong == []


def test_a_forked_child_starts_threads_of_its_own_and_refuses_old_steps() -> None:
    _, before = start()
    child = os.fork()
    if child == 0:  # no assertion may unwind into pytest from here
        code = 1
        try:
            try:
                before.wait(1)
            except RuntimeError as error:
                if "before a fork" in str(error):
                    out, step = start()
                    code = 0 if step.wait(30) and right(out) and kernel.threads() == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert before.wait(30)


SCRIPT = """
    import numpy as np, signal, sys
    from headway.formats import kernel
    from tests.formats import test_native_pool as pool
    kernel.set_threads(2)
    steps = [pool.start(copies=20) for _ in range(5)]
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_the_process_ends_cleanly_with_steps_in_flight() -> None:
    done = run(SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_signal_interrupts_waiting() -> None:
    script = SCRIPT + (
        "    kernel.set_threads(0)\n"  # nobody works: the wait below would do it all
        "    signal.signal(signal.SIGALRM, lambda *_: sys.exit(5))\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "    while True:\n"
        "        pool.start(copies=40)[1].wait(60)\n"
    )
    done = run(script)
    assert (done.returncode, done.stderr) == (5, "")


HANGING = """
    import ctypes, fcntl, mmap, struct, threading
    import numpy as np
    from headway.formats import kernel
    from tests.formats import test_native_pool as pool

    # Pages that nobody serves: who reads one hangs in the fault, as in a mapped file whose server is gone.
    number = ctypes.CDLL(None, use_errno=True).syscall(323, 0o2000000)
    if number < 0:
        print("userfaultfd is refused")
        raise SystemExit
    room = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    fcntl.ioctl(number, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
    fcntl.ioctl(number, 0xC020AA00, struct.pack("QQQQ", address, len(room), 1, 0))

    kernel.set_threads(2)
    out = np.zeros(1 << 20, np.uint8)
    jobs = kernel.copy_jobs(1)
    jobs["source"], jobs["length"], jobs["out"], jobs["room"] = address, len(out), out.ctypes.data, len(out)
    stuck = kernel.submit([], kernel.image_jobs(0), jobs, keep=(room, out))
    assert not stuck.wait(0.5)
"""


def run_hanging(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script while one of the native threads hangs in a read."""
    done = run(HANGING + script)
    if "refused" in done.stdout:
        pytest.skip("this system lets us have no userfaultfd")
    return done


@pytest.mark.slow
def test_a_thread_that_hangs_in_a_read_holds_up_no_resize_nor_the_exit() -> None:
    script = (
        "    assert [kernel.set_threads(count) for count in (1, 0, 3, 2)] == [1, 0, 3, 2]\n"
        "    picture, step = pool.start()\n"
        "    assert step.wait(30) and pool.right(picture)\n"
        "    print('went on')\n"
    )
    done = run_hanging(script)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "1 decode threads hang in a read" in done.stderr


@pytest.mark.full
def test_cancelling_what_hangs_in_a_read_is_an_error_after_a_while() -> None:
    script = (
        "    try:\n"
        "        stuck.cancel()\n"
        "    except kernel.StalledError as error:\n"
        "        print('one line' if 'network mounts' in str(error) else error)\n"
    )
    done = run_hanging(script)
    assert (done.returncode, done.stdout) == (0, "one line\n"), done.stderr


def test_jobs_that_name_no_target_are_refused() -> None:
    jobs = kernel.image_jobs(1)
    jobs["spec"] = 1
    with pytest.raises(ValueError, match="names spec 1 of 1"):
        kernel.submit([TARGET], jobs)
    with pytest.raises(UsageError, match="expected SPEC, IMAGE and COPY"):
        kernel.submit([TARGET], kernel.copy_jobs(1))
    with pytest.raises(ValueError, match="impossible size"):
        kernel.submit(np.zeros(1, kernel.SPEC), kernel.image_jobs(0))
    with pytest.raises(ValueError, match=r"0\.\.256"):
        kernel.set_threads(257)


def test_switched_off_by_the_environment_it_says_so() -> None:
    script = """
        from headway.formats import kernel
        assert not kernel.available() and kernel.threads() == 0 == kernel.set_threads(4)
        assert kernel.xxh3_64(b"abc") == 8696274497037089104
        try:
            kernel.submit([], kernel.image_jobs(0))
        except kernel.HeadwayError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HEADWAY_NATIVE": "0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "HEADWAY_NATIVE=0" in done.stdout
    assert issubclass(UsageError, HeadwayError)
