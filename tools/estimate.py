"""`headway estimate`: what a job of so many ranks will get out of its input, what binds it, and what it needs.

This node's cost of a batch is measured with real ranks (under a minute), or read from a file that another node wrote; the job is
then simulated with the shipped scheduler and the set's own plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import human_bytes, human_time, report, say

if TYPE_CHECKING:
    from ..bench.batch_cost import NodeLimits
    from ..loader.plan import Plan
    from ..loader.scenario import Scenario, StoreModel
    from ..loader.simulate import Outcome
    from ._estimate_picture import SizeOfJob

__all__ = ["estimate_command"]

_MEASURING_RUNS = 14
_PICTURE_STEPS = 300
_PAGE_CACHE_SHARE = 0.6  # of the memory: a set larger than this is read from its disk


def estimate_command(
    location: Annotated[Path, typer.Argument(metavar="SET", help="Folder of a packed set; a part of the real one will do.")],
    ranks: Annotated[int, typer.Option(min=1, max=65536, help="Data-parallel ranks of the job.")] = 8,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Ranks of one node, which share its cores and its network.")] = 8,
    step_ms: Annotated[float, typer.Option(min=0, help="What a training step takes without waiting for input.")] = 100.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a rank and step.")] = 4,
    image: Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")] = "256x704",
    cores: Annotated[float | None, typer.Option(min=1, help="Cores of a node for loading; by default this one's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Decode threads a rank; by default its share of the cores.")] = None,
    memory_limit: Annotated[int, typer.Option(metavar="MB", min=16, help="LoaderOptions.memory_bytes of a rank.")] = 1024,
    headway: Annotated[float, typer.Option(metavar="S", min=0.1, help="Pace.headway_s: seconds to hold ready.")] = 2.0,
    items: Annotated[int | None, typer.Option(min=1, help="Items of the real set, where SET is a part of it.")] = None,
    store: Annotated[str, typer.Option(metavar="local|s3|gcs|azure|http", help="Where the set will lie.")] = "local",
    latency: Annotated[
        str, typer.Option(metavar="MS[:MS]", help="Store: median time to the first byte, and its p99.")
    ] = "30:200",
    bandwidth: Annotated[float, typer.Option(metavar="GB/S", min=0.001, help="Store: of one node.")] = 3.0,
    stalls: Annotated[
        str, typer.Option(metavar="SHARE:S", help="Store: share of requests that take so many seconds.")
    ] = "0.001:3",
    cached: Annotated[float, typer.Option(min=0, max=1, help="Store: share of the set in each node's cache at the start.")] = 0.0,
    steps: Annotated[int, typer.Option(min=60, max=100_000, help="Steps to simulate.")] = 500,
    limits: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the cost of a batch from this file instead of measuring.", exists=True),
    ] = None,
    write_limits: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the measured cost here.")] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how it changes with the number of ranks (.png or .jpg).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict throughput, stall share, binding resource, memory and cache of a job, by simulating it."""
    from ..bench.batch_cost import read_limits
    from ..bench.node_commands import image_size
    from ..formats import UsageError
    from ..loader.cores import decode_threads
    from ..loader.pace import Pace
    from ..loader.scenario import Job, Machine, Scenario
    from .progress import Bar

    if png is not None:
        from .picture import check_picture_name

        check_picture_name(png)
    size = image_size(image)
    per_node = min(ranks, gpus_per_node)
    job = Job(ranks=ranks, ranks_per_node=per_node, batch_size=batch_size, step_s=step_ms / 1e3)  # refused before it takes time
    with Bar("runs") as bar:
        found = read_limits(limits) if limits is not None else _measure(location, batch_size, size, bar)
        if write_limits is not None:
            write_limits.write_text(json.dumps(found.to_json(), indent=1) + "\n", "utf-8")
    node_cores = found.cores if cores is None else cores
    if threads is None:
        threads = decode_threads(per_node, int(node_cores))
    if threads * per_node > 4 * node_cores:
        raise UsageError(f"--threads {threads} for each of {per_node} ranks is far more than {node_cores:g} cores can run")
    plan, told = _plan(location, ranks * batch_size, items)
    job = replace(job, epoch_steps=plan.steps)
    scenario = Scenario(
        job=job,
        cost=found.cost(batch_size, ranks=per_node),
        machine=Machine(cores=node_cores, threads=threads, memory_bytes=float(memory_limit << 20)),
        store=_store(store, latency, bandwidth, stalls, cached, location, told),
        pace=Pace(headway_s=headway),
    )
    with Bar("steps") as bar:
        outcome, others = _simulate(scenario, plan, steps, bar)
        by_ranks = _by_ranks(scenario, lambda batch: _plan(location, batch, items)[0], bar) if png is not None else []
    facts: dict[str, Any] = {  # Any: plain JSON data
        "set": str(location),
        **told,
        "ranks": ranks,
        "nodes": job.nodes,
        "gpus_per_node": per_node,
        "batch_size": batch_size,
        "step_ms": step_ms,
        "cores": node_cores,
        "threads": threads,
        "store": store,
        "limits": found.to_json(),
        **asdict(outcome),
        "what_if": others,
    }
    if png is not None:
        from ._estimate_picture import draw_estimate
        from .picture import write_picture

        title = f"{batch_size} samples a rank, {step_ms:g} ms a step, {per_node} ranks a node, {store}"
        write_picture(draw_estimate(by_ranks, title), png)
        report(f"wrote {str(png)!r}")
    if as_json:
        say(json.dumps(facts))
    else:
        _print(facts, found, scenario)


def _measure(location: Path, batch_size: int, image: tuple[int, int], bar: Any) -> NodeLimits:  # Any: a progress.Bar
    """Run the loader here for a while and return what a batch costs."""
    from ..bench.batch_cost import measure_node
    from ..bench.machine import NoiseMeter
    from ..bench.node import NodeBench

    report("measuring what a batch costs on this node (under a minute)")
    bar.begin("measuring", _MEASURING_RUNS)
    with NoiseMeter() as meter:
        found = measure_node(NodeBench(location), batch_size=batch_size, image=image, progress=bar.advance)
    if not meter.noise.quiet:
        report(f"others used {meter.noise.others:.1f} cores of this node meanwhile: a quiet node will do better than predicted")
    return found


def _plan(location: Path, global_batch: int, items: int | None) -> tuple[Plan, dict[str, Any]]:  # Any: plain JSON data
    """Return the plan of an epoch of the set (or of one of `items` like it) and its facts."""
    import numpy as np

    from ..formats import UsageError
    from ..formats.packed_set import open_set
    from ..loader.plan import Plan
    from ..loader.sampler import ViewInfo
    from ..loader.shuffled import Shuffled, default_block_items
    from ..loader.view import View

    with open_set(location) as packed:
        info = View(packed).info
        size = sum(shard.data.bytes for shard in packed.manifest.shards)
    block = default_block_items(info)
    count = info.items if items is None else items
    if count < global_batch:
        raise UsageError(
            f"{count:,} items do not fill one step of {global_batch:,} samples; if SET is a part of the real one, give --items"
        )
    view = ViewInfo(view_id=info.view_id, items=count, drive_starts=np.array([0, count]))
    plan = Plan(view, Shuffled(block_items=block, drop_last=True), seed=0, epoch=0, segments=[(global_batch, 0)])
    return plan, {"items": count, "set_bytes": int(size * count / info.items), "steps_in_epoch": plan.steps}


def _store(
    kind: str, latency: str, bandwidth: float, stalls: str, cached: float, location: Path, told: dict[str, Any]
) -> StoreModel:  # Any: plain JSON data
    """Return the store as flags describe it; a local set too large for the page cache is read from its disk."""
    from ..bench.limits import measure_limits
    from ..bench.machine import describe
    from ..formats import UsageError
    from ..formats.packed_set import open_set
    from ..loader.scenario import StoreModel

    if kind not in ("local", "s3", "gcs", "azure", "http"):
        raise UsageError(f"--store {kind!r} is none of local, s3, gcs, azure, http")
    if kind == "local":
        if told["set_bytes"] < _PAGE_CACHE_SHARE * describe().memory_limit_bytes:
            return StoreModel()
        with open_set(location) as packed:
            disk = [limit.per_core for limit in measure_limits(packed) if "from disk" in limit.what]
        return StoreModel(latency_s=1e-4, bandwidth=disk[0]) if disk else StoreModel()
    median_ms, p99_ms = _pair("--latency", latency)
    share, stall_s = _pair("--stalls", stalls)
    return StoreModel(
        latency_s=median_ms / 1e3,
        latency_p99_s=(p99_ms or median_ms) / 1e3,
        stall_share=min(share, 0.5),
        stall_s=stall_s,
        bandwidth=bandwidth * 1e9,
        cached_share=cached,
    )


def _pair(flag: str, text: str) -> tuple[float, float]:
    from ..formats import UsageError

    first, _, second = text.partition(":")
    try:
        values = float(first), float(second) if second else 0.0
    except ValueError:
        values = -1.0, -1.0
    if not all(0 <= value < 1e6 for value in values):
        raise UsageError(f"{flag} {text!r} is not one number, or two with a colon between")
    return values


def _simulate(scenario: Scenario, plan: Plan, steps: int, bar: Any) -> tuple[Outcome, list[dict[str, Any]]]:  # Any: a Bar; JSON
    """Return what comes of the job, and of the same with one thing changed."""
    from ..loader.simulate import simulate

    machine, cost = scenario.machine, scenario.cost
    changes = {
        "twice the cores": replace(scenario, machine=replace(machine, cores=2 * machine.cores, threads=2 * machine.threads)),
        "half the decode work (pack images at training size)": replace(
            scenario, cost=replace(cost, parallel_s=cost.parallel_s / 2, cpu_s=cost.cpu_s / 2)
        ),
    }
    if not scenario.store.is_local:
        changes |= {
            "twice the bandwidth": replace(scenario, store=replace(scenario.store, bandwidth=2 * scenario.store.bandwidth)),
            "half the latency": replace(
                scenario,
                store=replace(
                    scenario.store, latency_s=scenario.store.latency_s / 2, latency_p99_s=scenario.store.latency_p99_s / 2
                ),
            ),
            "twice the headway and memory": replace(
                scenario,
                pace=replace(scenario.pace, headway_s=2 * scenario.pace.headway_s),
                machine=replace(machine, memory_bytes=2 * machine.memory_bytes),
            ),
            "half of the set in each node's cache": replace(scenario, store=replace(scenario.store, cached_share=0.5)),
        }
    bar.begin("simulating", steps * (1 + len(changes)))
    outcome = simulate(scenario, plan, steps=steps, progress=bar.advance)
    others = []
    for name, changed in changes.items():
        other = simulate(changed, plan, steps=steps, progress=bar.advance)
        gain = other.samples_per_s / outcome.samples_per_s - 1
        others.append({"change": name, "samples_per_s": other.samples_per_s, "gain": gain, "stall_share": other.stall_share})
    return outcome, sorted(others, key=lambda row: -float(str(row["gain"])))


def _by_ranks(scenario: Scenario, plan_of: Callable[[int], Plan], bar: Any) -> list[SizeOfJob]:  # Any: a progress.Bar
    """Return what the job comes to with one node, two, four … up to its own number of ranks."""
    from ..loader.simulate import simulate
    from ._estimate_picture import SizeOfJob

    job = scenario.job
    nodes = sorted({2**power for power in range(job.nodes.bit_length()) if 2**power <= job.nodes} | {job.nodes})
    bar.begin("simulating by ranks", _PICTURE_STEPS * len(nodes))
    found = []
    for count in nodes:
        smaller = replace(scenario, job=replace(job, ranks=count * job.ranks_per_node))
        plan = plan_of(smaller.job.ranks * job.batch_size)
        smaller = replace(smaller, job=replace(smaller.job, epoch_steps=plan.steps))
        outcome = simulate(smaller, plan, steps=_PICTURE_STEPS, progress=bar.advance)
        found.append(SizeOfJob(smaller.job.ranks, outcome.samples_per_s, outcome.stall_share, outcome.binding))
    return found


def _print(facts: dict[str, Any], limits: NodeLimits, scenario: Scenario) -> None:  # Any: plain JSON data
    job, cost = scenario.job, scenario.cost
    say(
        f"{job.ranks:,} ranks on {job.nodes:,} nodes × {job.batch_size} samples, steps of {facts['step_ms']:g} ms, "
        f"{facts['items']:,} items ({human_bytes(facts['set_bytes'])}), {facts['steps_in_epoch']:,} steps an epoch"
    )
    say(
        f"a batch costs {1e3 * (cost.serial_s + cost.parallel_s / facts['threads']):.1f} ms with {facts['threads']} threads and "
        f"{1e3 * cost.cpu_s:.1f} ms of CPU; {human_bytes(cost.encoded_bytes)} stored, {human_bytes(cost.decoded_bytes)} decoded"
        f"  (measured at {limits.image}, {limits.cores:g} cores)"
    )
    say("")
    gpu_hours = facts["stall_share"] * job.ranks
    ahead = f"{facts['batches_ahead']} batches decoded" + (
        f", {facts['steps_ahead']} more encoded" if facts["steps_ahead"] else ""
    )
    rows = [
        ("throughput", f"{facts['samples_per_s']:,.1f} samples/s, {facts['samples_per_s'] / job.ranks:,.2f} a rank"),
        ("stall share", f"{facts['stall_share']:.1%}" + (f" = {gpu_hours:,.1f} GPU hours an hour" if gpu_hours > 0.05 else "")),
        ("binding", f"{facts['binding']}"),
        ("in use", ", ".join(f"{name} {share:.0%}" for name, share in facts["utilisation"].items() if share >= 0.005)),
        ("epoch", human_time(facts["items"] / facts["samples_per_s"])),
        ("first batch", human_time(facts["first_batch_s"])),
        ("ready ahead", f"{facts['headway_s']:.2f} s: {ahead}"),
        ("memory a rank", human_bytes(facts["memory_bytes"])),
    ]
    if not scenario.store.is_local:
        rows += [
            ("cache a node", f"{human_bytes(facts['cache_bytes'])} so that nothing is read twice in an epoch"),
            (
                "requests",
                f"{facts['requests_in_flight']:.0f} in flight a rank, {facts['hedged'] / max(facts['requests'], 1):.2%} twice",
            ),
        ]
    for name, text in rows:
        say(f"  {name:<14} {text}")
    say("\nwith one thing changed:")
    for row in facts["what_if"]:
        say(
            f"  {row['change']:<52} {row['samples_per_s']:>12,.1f} samples/s  {row['gain']:+7.1%}  stall {row['stall_share']:.1%}"
        )
