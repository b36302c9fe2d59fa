"""The Prometheus endpoint of a node: all its ranks on one port, read from their files when somebody asks.

Local rank 0 serves; the other ranks only write. So a scrape costs the ranks nothing, and a rank that hangs is still seen.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..formats import MissingExtra, UsageError
from .metrics import Metric, samples_of
from .run_files import RankFile, read_run

__all__ = ["Exporter"]

log = logging.getLogger("headway")

_LAST_BYTES: Final = 64 << 10  # a line of 256 steps has some 20 KB
_STALE_S: Final = 3600.0
"""A file this old when the endpoint starts belongs to an earlier run."""


class Exporter:
    """Serves the run directory's ranks of one node from `start` to `close`; loaders of a process share one."""

    def __init__(self, directory: str | os.PathLike[str], *, node: int, address: str, port: int) -> None:
        self._directory, self._node = Path(directory), node
        self._address, self._asked = address, port
        self._server: Any = None  # Any: prometheus_client has no types
        self._thread: threading.Thread | None = None
        self._since_s = time.time()

    @property
    def port(self) -> int:
        """The port that is served; 0: none is."""
        return 0 if self._server is None else int(self._server.server_port)

    def start(self) -> Exporter:
        """Serve, in a daemon thread; returns the exporter that serves, which may be an earlier loader's.

        Raises:
            MissingExtra: prometheus-client is not installed.
        """
        served = _serving.get((self._address, self._asked, self._directory, os.getpid()))
        if served is not None:
            return served
        try:
            from prometheus_client import start_http_server
            from prometheus_client.registry import CollectorRegistry
        except ImportError as error:
            raise MissingExtra("metrics", "Telemetry(prometheus_port=…)") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(self._asked, self._address, registry)
        except OSError as error:  # training does not depend on it
            log.warning("headway: no metrics on %s:%d: %s; choose another prometheus_port", self._address, self._asked, error)
            return self
        log.info("headway: metrics of this node's ranks on http://%s:%d/metrics", self._address, self.port)
        _serving[self._address, self._asked, self._directory, os.getpid()] = self
        return self

    def close(self) -> None:
        """Stop serving; harmless when repeated."""
        if self._server is not None:
            if self._thread is not threading.current_thread():  # where a loader happens to be collected there
                self._server.shutdown()
            self._server.server_close()
            self._server = None
            _serving.pop((self._address, self._asked, self._directory, os.getpid()), None)

    def describe(self) -> list[Any]:  # Any: prometheus_client has no types
        """Say nothing before there is something: prometheus_client asks when a collector is registered."""
        return []

    def collect(self) -> Iterator[Any]:  # Any: prometheus_client has no types
        """Yield a family for each metric, one sample a rank, loader and stage."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}  # Any: prometheus_client has no types
        for each in self._ranks():
            place = [str(each.rank), str(each.header.get("node", 0)), str(each.header.get("name", ""))]
            for metric, stage, value in samples_of(_merged(each)):
                family = families.get(metric.name)
                if family is None:
                    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    family = families[metric.name] = kind(metric.name, metric.help, labels=_labels(metric))
                family.add_metric([*place, stage] if metric.by_stage else place, value)
        yield from families.values()

    def _ranks(self) -> list[RankFile]:
        try:
            found = read_run(self._directory, last_bytes=_LAST_BYTES)
        except UsageError:  # no rank has begun
            return []
        oldest = self._since_s - _STALE_S
        return [each for each in found if each.header.get("node", 0) == self._node and each.modified_s >= oldest]


_serving: dict[tuple[str, int, Path, int], Exporter] = {}


def _labels(metric: Metric) -> list[str]:
    return ["rank", "node", "loader", *(["stage"] if metric.by_stage else [])]


def _merged(each: RankFile) -> dict[str, Any]:  # Any: JSON
    """Return the last totals and gauges, which need not be on one line."""
    found: dict[str, Any] = {}  # Any: JSON
    for key in ("total", "now"):
        found[key] = next((line[key] for line in reversed(each.lines) if isinstance(line.get(key), dict)), {})
    return found
