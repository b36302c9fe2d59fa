"""Starting Ray on a machine that others use as well."""

from __future__ import annotations

import os

import ray

__all__ = ["start_ray"]


def start_ray(tries: int = 5) -> None:
    """Start a Ray of two CPUs; again where it gave up: it grants its own processes 30 s, whatever the machine's load."""
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    for left in reversed(range(tries)):
        try:
            ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise
