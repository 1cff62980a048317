"""Time and memory of building the batches for message passing at test time, and of refining by them.

    python benchmarks/refine.py                  # 5,924 images (CUB): k-reciprocal, nearest, refine
    python benchmarks/refine.py --every          # all eight constructions
    python benchmarks/refine.py --images 60502   # Stanford Online Products

Each row runs in a process of its own, so that its peak memory is its own. Vectors are 512 numbers around class centres.
CPU seconds count both cores' work: on a busy machine half of them is what an idle one with two cores would take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

DIM, STEP = 512, "k-reciprocal, then refine"
QUICK = ("k-reciprocal", "nearest", STEP)


def vectors_of(num_images: int, per_class: int) -> np.ndarray:
    """Images about their class's centre, in directions that classes share; about 7 in 10 neighbours share the class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(max(1, num_images // per_class), 64)) @ rng.normal(size=(64, DIM)) / 8
    noise = 3 * rng.standard_normal((num_images, DIM), dtype=np.float32)
    return noise + centres.astype(np.float32)[np.arange(num_images) % len(centres)]


def measure(how: str, num_images: int) -> dict[str, float]:
    """One row: after a small warm-up the quickest of three runs, or a single one where it takes minutes."""
    from intrabatch.messages import MessagePassing
    from intrabatch.refine import neighbourhoods, refine

    vectors = vectors_of(num_images, 59 if num_images < 20_000 else 5)
    passing = MessagePassing(DIM)
    neighbourhoods(vectors[:500])
    runs = []
    for _ in range(3 if num_images < 20_000 and how in QUICK else 1):
        wall, cpu = time.perf_counter(), time.process_time()
        refine(vectors, passing) if how == STEP else neighbourhoods(vectors, how)
        runs.append((time.perf_counter() - wall, time.process_time() - cpu))
    seconds, cpu_seconds = min(runs)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak_mib}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=5924)
    parser.add_argument("--every", action="store_true", help="all eight constructions")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.row, arguments.images)))
        return
    from intrabatch.refine import CONSTRUCTIONS

    rows = [*(CONSTRUCTIONS if arguments.every else QUICK[:2]), STEP]
    print(f"{arguments.images} x {DIM}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| batches by | seconds | CPU seconds | peak memory MiB |\n|---|---|---|---|")
    for how in rows:
        command = [sys.executable, __file__, "--images", str(arguments.images), "--row", how]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"| {how} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['peak_mib']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
