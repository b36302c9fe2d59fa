"""A Grafana dashboard of the metrics that a node's Prometheus endpoint serves; `headway top --grafana` prints it for import."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["dashboard"]

Json = dict[str, Any]  # Any: JSON

_SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN: Final = '{loader=~"$loader",rank=~"$rank"}'

# Title, unit as Grafana calls it, (expression, legend)…
_PANELS: Final[tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]] = (
    (
        "Share of its time that each rank waits for input",
        "percentunit",
        ((f"sum by (rank) (rate(headway_wait_seconds_total{_CHOSEN}[$__rate_interval]))", "rank {{rank}}"),),
    ),
    (
        "What is waited for: seconds a second, all ranks",
        "s",
        ((f"sum by (stage) (rate(headway_wait_seconds_total{_CHOSEN}[$__rate_interval]))", "{{stage}}"),),
    ),
    ("Seconds of input ready ahead", "s", ((f"headway_ahead_seconds{_CHOSEN}", "rank {{rank}}"),)),
    ("Samples a second", "short", ((f"rate(headway_samples_total{_CHOSEN}[$__rate_interval])", "rank {{rank}}"),)),
    (
        "Time of a step, and the present wait",
        "s",
        (
            (f"headway_step_seconds{_CHOSEN}", "step, rank {{rank}}"),
            (f"headway_waiting_seconds{_CHOSEN}", "waiting, rank {{rank}}"),
        ),
    ),
    (
        "Threads at work, by stage",
        "short",
        ((f"sum by (stage) (rate(headway_busy_seconds_total{_CHOSEN}[$__rate_interval]))", "{{stage}}"),),
    ),
    (
        "Chosen by the loader",
        "short",
        (
            (f"headway_decode_threads{_CHOSEN}", "decode threads, rank {{rank}}"),
            (f"headway_batches_ahead{_CHOSEN}", "batches ahead, rank {{rank}}"),
            (f"headway_requests_in_flight{_CHOSEN}", "requests at once, rank {{rank}}"),
        ),
    ),
    (
        "Batch memory",
        "bytes",
        (
            (f"headway_memory_held_bytes{_CHOSEN}", "held, rank {{rank}}"),
            (f"headway_memory_bytes{_CHOSEN}", "budget, rank {{rank}}"),
        ),
    ),
    (
        "Store: bytes a second, and requests under way",
        "short",
        (
            (f"rate(headway_fetched_bytes{_CHOSEN}[$__rate_interval])", "bytes/s, rank {{rank}}"),
            (f"headway_requests_running{_CHOSEN}", "requests, rank {{rank}}"),
        ),
    ),
    (
        "Node cache: share of reads that it answered",
        "percentunit",
        ((f"headway_cache_hits{_CHOSEN} / (headway_cache_hits{_CHOSEN} + headway_cache_misses{_CHOSEN})", "rank {{rank}}"),),
    ),
)


def dashboard() -> Json:
    """Return the dashboard, as Grafana imports it."""
    panels = [_panel(number, *panel) for number, panel in enumerate(_PANELS)]
    return {
        "title": "headway",
        "uid": "headway",
        "tags": ["headway"],
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("loader", "label_values(headway_steps_total, loader)"),
                _variable("rank", 'label_values(headway_steps_total{loader=~"$loader"}, rank)'),
            ]
        },
        "panels": panels,
    }


def _panel(number: int, title: str, unit: str, targets: tuple[tuple[str, str], ...]) -> Json:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(targets)
        ],
    }


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
