"""`headway bench predict`: predictions of the simulation beside real runs on this node, and what simulating 1,024 ranks takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from ..formats import UsageError
from ..tools.console import report
from .machine import NoiseMeter
from .result_output import HtmlOption, JsonOption, finish

__all__ = ["predict"]

_TOLERANCE = 0.15


def predict(
    loads: Annotated[str, typer.Option(metavar="W1,…", help="Which workloads; by default all four.")] = "W1,W2,W3,W4",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long a run streams.")] = 3.0,
    repeats: Annotated[int, typer.Option(min=0, help="Further runs of a configuration while others use the machine.")] = 2,
    simulated_ranks: Annotated[int, typer.Option(min=0, help="Ranks of the job whose simulation is timed; 0: none is.")] = 1024,
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the sets here; by default in a temporary one.")
    ] = None,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """Throughput that the simulation foretells beside what real ranks then reach, for a dozen configurations."""
    from .predict import CONFIGURATIONS, predict_all, time_simulation

    wanted = [name.strip() for name in loads.split(",")]
    chosen = [configuration for configuration in CONFIGURATIONS if configuration.load in wanted]
    if unknown := set(wanted) - {configuration.load for configuration in CONFIGURATIONS}:
        raise UsageError(f"--loads names {sorted(unknown)}, and there are W1, W2, W3 and W4")
    started = time.monotonic()
    simulation = time_simulation(ranks=simulated_ranks) if simulated_ranks else {}
    if simulation:
        report(
            f"{simulation['steps']:,} steps of {simulation['ranks']:,} ranks over {simulation['items']:,} items simulated in "
            f"{simulation['wall_s']:.1f} s and {simulation['peak_rss_mib']:,.0f} MiB"
        )
    with tempfile.TemporaryDirectory(prefix="headway-predict-") as name, NoiseMeter() as meter:
        place = Path(name) if scratch is None else scratch
        place.mkdir(parents=True, exist_ok=True)
        rows = predict_all(place, chosen, seconds=seconds, repeats=repeats, say=report)
    errors = sorted(abs(float(row["error"])) for row in rows if row["error"] is not None)
    summary = {
        "configurations": len(rows),
        "within_15_percent": sum(error <= _TOLERANCE for error in errors),
        "median_error": errors[len(errors) // 2] if errors else None,
        "largest_error": errors[-1] if errors else None,
        "simulated_ranks": simulation.get("ranks"),
        "simulation_s": simulation.get("wall_s"),
        "simulation_peak_mib": simulation.get("peak_rss_mib"),
    }
    conditions = {"loads": wanted, "seconds": seconds, "repeats": repeats, "simulation": simulation}
    finish("predict", rows, conditions, summary, started, meter, json_path, html_path)
