"""Names of processes: told apart across ends, restarts, containers and machines that share a folder."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time

import pytest

from headway.formats.process_name import LEASE_S, NAME_PATTERN, is_alive, process_name

OLD = 0.0  # long before any lease


def other(name: str, *, boot: str | None = None, namespace: str | None = None) -> str:
    number, began, own_boot, own_namespace = name.split("-")
    return f"{number}-{began}-{boot or own_boot}-{namespace or own_namespace}"


def test_a_process_knows_itself() -> None:
    assert re.fullmatch(NAME_PATTERN, process_name())
    assert is_alive(process_name(), OLD)


def test_a_process_that_ended_is_gone_whatever_it_refreshed() -> None:
    program = "from headway.formats.process_name import process_name; print(process_name())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not is_alive(done.stdout.strip(), time.time())


def test_a_number_that_is_used_again_is_another_process() -> None:
    number, began, *place = process_name().split("-")
    assert not is_alive("-".join([number, str(int(began) + 1), *place]), time.time())


@pytest.mark.parametrize("away", [{"boot": "0123abcd"}, {"namespace": "4026539999"}])
def test_what_cannot_be_looked_up_lives_as_long_as_its_lease(away: dict[str, str]) -> None:
    gone = f"999999999-1-{process_name().split('-', 2)[2]}"
    assert not is_alive(gone, time.time())
    assert is_alive(other(gone, **away), time.time())
    assert is_alive(other(gone, **away), time.time() - LEASE_S / 2)
    assert not is_alive(other(gone, **away), time.time() - 2 * LEASE_S)


def test_a_process_without_descriptors_declares_nobody_dead() -> None:
    name = process_name()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        alive = is_alive(name, OLD)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert alive


CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]


def has_containers() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


def test_a_pid_namespace_is_part_of_the_name() -> None:
    if not has_containers():
        pytest.skip("this system lets us make no pid namespace")
    program = "import sys; from headway.formats.process_name import *; print(process_name(), is_alive(sys.argv[1], 0.0))"
    done = subprocess.run(
        [*CONTAINER, sys.executable, "-c", program, process_name()], capture_output=True, text=True, check=True, timeout=60
    )
    name, seen = done.stdout.split()
    assert name.split("-")[2] == process_name().split("-")[2]
    assert name.split("-")[3] != process_name().split("-")[3]
    assert seen == "False", "not refreshed since 1970"
    assert is_alive(name, time.time()), "it has ended, which cannot be seen from here"
    assert os.getpid() != int(name.split("-")[0])
