"""`headway bench full`: every bench of one machine, one after the other, each part kept as soon as it is done.

A part is one `headway bench` command in a process of its own. Its JSON is its receipt: what is there is not run again, so a run
that was stopped goes on where it was. With a time limit, parts that no longer fit are left out and named; peers, the longest
parts, share what is left and end with the rounds they have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..formats.adapters import SourceSpec
from ..formats.packer import pack
from .make_data import make_data
from .peer_process import end_group
from .peer_resume import peers_with_state
from .result import read_result
from .workload_source import SPEC_KIND
from .workloads import WORKLOADS, Workload, workload

__all__ = ["FullOptions", "FullRun", "Part", "Sizes"]

_GRACE_S = 20.0
"""What a part may take beyond the limit it was given before it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How big the parts are; the defaults end in about 40 minutes on two cores."""

    samples: Mapping[str, int]
    """Of each workload."""
    seconds: float
    """A peer's window."""
    rounds: int
    node_s: float
    startup_items: Sequence[int]
    resume_batches: int

    @staticmethod
    def full() -> Sizes:
        """Return the sizes that results are published with."""
        samples = {name: load.samples for name, load in WORKLOADS.items()}
        items = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
        return Sizes(samples=samples, seconds=2.5, rounds=3, node_s=10.0, startup_items=items, resume_batches=100)

    @staticmethod
    def tiny() -> Sizes:
        """Return sizes that show in a few minutes whether everything runs; their numbers mean nothing."""
        samples = {"W1": 16, "W2": 192, "W3": 2048, "W4": 16}
        return Sizes(samples=samples, seconds=0.2, rounds=1, node_s=1.0, startup_items=(1_000, 10_000), resume_batches=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullOptions:
    """What to run, where, for how long."""

    out: Path
    cache: Path
    peers: str = ""
    """Comma-separated; empty: all."""
    limit_s: float | None = None
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One bench command of the run."""

    name: str
    """Its JSON is `<name>.json`."""
    arguments: Sequence[str]
    weight: float
    """About how many seconds it takes at full size: how much of the time left it may have."""
    takes_minutes: bool = False
    """It has --minutes and ends itself."""


class FullRun:
    """Makes data and sets, then runs the parts in order; `say` is told each step."""

    def __init__(self, options: FullOptions, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._options, self._say = options, say
        self._loads = {name: workload(name, samples=count) for name, count in options.sizes.samples.items()}

    def prepare(self) -> None:
        """Make workloads and headway's sets, install and pack for the peers; what is there is kept."""
        for name, load in self._loads.items():
            data = self._data(load)
            self._say(f"{name} in {str(data)!r}")
            make_data(load, data)
            if not (self._set(load) / "manifest.json").exists():
                pack(SourceSpec(kind=SPEC_KIND, path=str(data)), str(self._set(load)))
            self._bench(["peers", str(data), "--prepare", *self._peer_options()])
        items = ",".join(map(str, self._options.sizes.startup_items))
        self._bench(["startup", "--items", items, "--prepare", "--cache", str(self._options.cache)])

    def parts(self) -> list[Part]:
        """Return the parts, those that take least first: a limit then costs the fewest."""
        sizes, sets = self._options.sizes, {name: str(self._set(load)) for name, load in self._loads.items()}
        data = {name: str(self._data(load)) for name, load in self._loads.items()}
        window = ["--seconds", str(sizes.node_s)]
        found = [Part(name=f"limits-{name}", arguments=["limits", sets[name]], weight=12) for name in sets]
        found += [
            Part(name=f"node-{ranks}", arguments=["node", sets["W1"], "--ranks", str(ranks), *window], weight=45)
            for ranks in (1, 2, 4)
        ]
        found.append(
            Part(
                name="node-2-fed",
                arguments=["node", sets["W1"], "--ranks", "2", "--consumer-ms", "150", *window],
                weight=45,
            )
        )
        items = ",".join(map(str, sizes.startup_items))
        cache = ["--cache", str(self._options.cache)]
        stateful = peers_with_state()
        named = [name for name in self._options.peers.split(",") if name in stateful] or stateful
        resume = ["--batches", str(sizes.resume_batches), *cache, "--peers", ",".join(named)]
        found += [
            Part(
                name="own-cost",
                arguments=["own-cost", sets["W1"], "--rounds", str(2 * sizes.rounds), "--seconds", str(sizes.node_s / 2)],
                weight=100,
            ),
            Part(name="consumer", arguments=["consumer", sets["W1"], *window], weight=60),
            Part(name="startup", arguments=["startup", "--items", items, *cache], weight=60),
            Part(name="startup-W1", arguments=["startup", sets["W1"]], weight=20),
            Part(name="resume-W1", arguments=["resume", sets["W1"]], weight=25),
            Part(name="resume", arguments=["resume", data["W3"], *resume], weight=240),
        ]
        rounds = ["--rounds", str(sizes.rounds), "--seconds", str(sizes.seconds)]
        for name in data:
            arguments = ["peers", data[name], *rounds, *self._peer_options()]
            found.append(Part(name=f"peers-{name}", arguments=arguments, weight=480, takes_minutes=True))
        return found

    def run(self) -> dict[str, Any]:
        """Run what is missing; return and write `full.json`: each part with what became of it."""
        options = self._options
        options.out.mkdir(parents=True, exist_ok=True)
        begin, parts = time.monotonic(), self.parts()
        states: dict[str, Any] = {}
        for number, part in enumerate(parts):
            path = options.out / f"{part.name}.json"
            if path.exists():
                states[part.name] = {"state": "there already"}
                continue
            left = None if options.limit_s is None else options.limit_s - (time.monotonic() - begin)
            states[part.name] = self._one(part, path, left, parts[number:])
            self._write(states)
        self._write(states)
        return states

    def _one(self, part: Part, path: Path, left: float | None, open_parts: Sequence[Part]) -> dict[str, Any]:
        if left is not None and left < 5:
            self._say(f"{part.name}: no time left")
            return {"state": "left out: the time limit was reached"}
        arguments, limit_s = [*part.arguments, "--json", str(path)], None
        if left is not None:
            missing = [each for each in open_parts if not (self._options.out / f"{each.name}.json").exists()]
            share = left * part.weight / sum(each.weight for each in missing)
            if part.takes_minutes:
                arguments += ["--minutes", f"{max(0.1, 0.9 * share / 60):.2f}"]  # the rest: starting up, ceilings
            limit_s = left + _GRACE_S
        self._say(f"{part.name}: headway bench {' '.join(arguments)}")
        started = time.monotonic()
        error = self._bench(arguments, limit_s=limit_s, log=self._options.out / f"{part.name}.log")
        wall = round(time.monotonic() - started, 1)
        if error or not path.exists():
            self._say(f"{part.name}: {error or 'wrote nothing'}")
            return {"state": "failed", "why": error or "wrote nothing", "wall_s": wall}
        self._without_places(path)
        result = read_result(path)
        path.with_suffix(".log").unlink(missing_ok=True)
        return {"state": "done", "wall_s": wall, "quiet": result["quiet"]}

    def _without_places(self, path: Path) -> None:
        """Name the cache and the results' directory as such: where they lie says nothing, and results are published."""
        text = path.read_text("utf-8")
        for place, name in ((self._options.cache, "$CACHE"), (self._options.out, "$OUT")):
            text = text.replace(json.dumps(str(place))[1:-1], name)
        path.write_text(text, "utf-8")

    def _bench(self, arguments: Sequence[str], *, limit_s: float | None = None, log: Path | None = None) -> str:
        """Run one command; return "" or the last line of what it said before it failed."""
        command = [sys.executable, "-m", "headway.tools.main", "bench", *arguments]
        with open(log or os.devnull, "wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=None if log is None else sink, start_new_session=True)
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return f"ended after {limit_s:.0f} s"
            finally:
                if process.poll() is None:  # a time limit, or an interrupt: it ends its own processes when asked
                    process.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_S)
                end_group(process)
        if process.returncode == 0:
            return ""
        said = log.read_text("utf-8", "replace").strip().splitlines() if log is not None else []
        return f"ended with {process.returncode}: {said[-1] if said else 'no output'}"

    def _write(self, states: Mapping[str, Any]) -> None:
        part = self._options.out / ".full.json.part"
        part.write_text(json.dumps(states, indent=1) + "\n", "utf-8")
        part.replace(self._options.out / "full.json")

    def _peer_options(self) -> list[str]:
        return ["--cache", str(self._options.cache), *self._names()]

    def _names(self) -> list[str]:
        return ["--peers", self._options.peers] if self._options.peers else []

    def _data(self, load: Workload) -> Path:
        return self._options.cache / "data" / f"{load.name}-{load.samples}"

    def _set(self, load: Workload) -> Path:
        return self._options.cache / "sets" / f"{load.name}-{load.samples}"
