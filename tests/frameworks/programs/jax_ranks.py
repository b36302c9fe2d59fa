"""JAX on two processes: each hands in its own samples, and a global array holds the global batch."""

from __future__ import annotations

import json
import os

import jax
import numpy as np

from headway.loader.jax_view import jax_batches, jax_topology

from .common import arguments, make_loader


def main() -> None:
    """Sum a global array on both processes, and write down what each saw."""
    given = arguments()
    rank = int(os.environ["RANK"])
    jax.distributed.initialize(f"127.0.0.1:{given.port}", num_processes=2, process_id=rank)
    loader = make_loader(given, topology=jax_topology())
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / f"{given.called}-{rank}.jsonl").open("w") as diary:
        for batch in jax_batches(loader, sharding):
            stamps, mask = batch["stamp"], batch["LIDAR"]["mask"]
            entry = {
                "ids": batch["id"].tolist(),
                "shape": list(mask.shape),
                "is_global": isinstance(mask, jax.Array) and isinstance(stamps, np.ndarray),
                "loaded": loader.stats()["steps"],
                "there": int(jax.jit(lambda value: value.sum())(mask)),
            }
            diary.write(json.dumps(entry) + "\n")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
