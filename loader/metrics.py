"""Names of everything measured and everything chosen automatically: what the ledger's lines, Prometheus and Grafana call it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["METRICS", "Metric", "samples_of"]

Line = dict[str, Any]  # Any: JSON, see run_files


@dataclass(frozen=True, slots=True)
class Metric:
    """One series for each rank."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    key: str
    """Where a line has it: in "total" (counters) or "now" (gauges)."""
    scale: float = 1.0
    by_stage: bool = False


METRICS: Final = (
    Metric("headway_steps_total", "counter", "Batches handed over.", "steps"),
    Metric("headway_samples_total", "counter", "Samples handed over, without padding.", "samples"),
    Metric("headway_bytes_total", "counter", "Bytes of batches handed over.", "bytes"),
    Metric("headway_consumer_seconds_total", "counter", "Time the consumer spent on itself.", "consumer_ns", 1e-9),
    Metric(
        "headway_wait_seconds_total", "counter", "Time the consumer waited, by what its batch was in.", "waits_ns", 1e-9, True
    ),
    Metric("headway_busy_seconds_total", "counter", "Time at work by stage, summed over threads.", "busy_ns", 1e-9, True),
    Metric("headway_ahead_seconds", "gauge", "Seconds of input that lie ready ahead of the consumer.", "headway_s"),
    Metric("headway_samples_per_second", "gauge", "Recent rate of samples.", "samples_per_s"),
    Metric("headway_ready_batches", "gauge", "Batches that lay ready when the consumer last asked.", "ready"),
    Metric("headway_step_seconds", "gauge", "Recent time of a step, waits included.", "step_s"),
    Metric("headway_waiting_seconds", "gauge", "How long the consumer has been waiting for its present batch.", "waiting_s"),
    Metric("headway_decode_threads", "gauge", "Decode threads that may work now (chosen; num_workers).", "decode_threads"),
    Metric("headway_batches_ahead", "gauge", "Batches made ahead (chosen; LoaderOptions.prefetch).", "batches_ahead"),
    Metric("headway_own_step_seconds", "gauge", "The consumer's own time a step, as the governor sees it.", "own_step_s"),
    Metric("headway_feeder_processes", "gauge", "Feeder processes (chosen; Transforms.processes).", "feeder_processes"),
    Metric("headway_memory_bytes", "gauge", "Budget of batch memory (LoaderOptions.memory_bytes).", "memory_bytes"),
    Metric("headway_memory_held_bytes", "gauge", "Batch memory held, in use or idle.", "memory_held_bytes"),
    Metric("headway_memory_leased_bytes", "gauge", "Batch memory that somebody can still see.", "memory_leased_bytes"),
    Metric(
        "headway_requests_in_flight",
        "gauge",
        "Requests to a store allowed at once (chosen; Pace.requests).",
        "requests_in_flight",
    ),
    Metric("headway_requests_running", "gauge", "Requests to a store under way.", "requests_running"),
    Metric("headway_encoded_bytes", "gauge", "Payloads held in memory, fetched and not yet decoded.", "encoded_bytes"),
    Metric("headway_encoded_steps", "gauge", "Steps whose payloads are here and not yet decoded.", "encoded_steps"),
    Metric(
        "headway_hedge_after_seconds", "gauge", "When a request gets a second one (chosen; Pace.hedge_after_s).", "hedge_after_s"
    ),
    Metric("headway_store_requests", "gauge", "Requests to stores so far, without second ones.", "store_requests"),
    Metric("headway_store_requests_hedged", "gauge", "Second requests to stores so far.", "store_requests_hedged"),
    Metric("headway_store_first_byte_seconds", "gauge", "Median time to the first byte of an answer.", "store_first_byte_s"),
    Metric("headway_store_answer_seconds", "gauge", "Median time to the last byte of an answer.", "store_answer_s"),
    Metric("headway_fetched_bytes", "gauge", "Bytes fetched from stores so far.", "fetched_bytes"),
    Metric("headway_cache_hits", "gauge", "Reads that the node cache answered so far.", "cache_hits"),
    Metric("headway_cache_misses", "gauge", "Reads that had to be fetched so far.", "cache_misses"),
)
_GAUGES: Final = {metric.key: metric for metric in METRICS if metric.kind == "gauge"}
_TOTALS: Final = [metric for metric in METRICS if metric.kind == "counter"]


def samples_of(line: Line) -> Iterator[tuple[Metric, str, float]]:
    """Yield (metric, stage or "", value) of a line; what is chosen but not listed here comes under its own name."""
    total = line.get("total", {})
    for metric in _TOTALS:
        value = total.get(metric.key)
        if metric.by_stage and isinstance(value, dict):
            for stage, count in value.items():
                yield metric, str(stage), count * metric.scale
        elif isinstance(value, int | float):
            yield metric, "", value * metric.scale
    for key, value in line.get("now", {}).items():
        if isinstance(value, int | float) and key != "at_ns":
            metric = _GAUGES.get(key) or Metric(f"headway_{key}", "gauge", f"Chosen or measured: {key}.", key)
            yield metric, "", float(value)
