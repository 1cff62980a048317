"""Time and memory of building the batches for message passing at test time, and of refining by them.

    python benchmarks/refine.py                  # at the size of CUB all eight ways, of SOP those that scale
    python benchmarks/refine.py --images 5924    # the first alone

Each row runs in a process of its own, so that its peak memory is its own. Vectors are 512 numbers around class centres.
CPU seconds count both cores' work: on a busy machine half of them is what an idle one with two cores would take.
Writes benchmarks/results/refine.json and refine.md.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from machine import command, machine, machine_lines, measured_alone, peak_mib, write_results

DIM, STEP = 512, "k-reciprocal, then refine"
QUICK = ("k-reciprocal", "nearest", STEP)
LARGE = 20_000
"""From here on only the quick ways: scikit-learn's clusterings take hours, and some a matrix of all pairs."""


def vectors_of(num_images: int, per_class: int) -> np.ndarray:
    """Images about their class's centre, in directions that classes share; about 7 in 10 neighbours share the class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(max(1, num_images // per_class), 64)) @ rng.normal(size=(64, DIM)) / 8
    noise = 3 * rng.standard_normal((num_images, DIM), dtype=np.float32)
    return noise + centres.astype(np.float32)[np.arange(num_images) % len(centres)]


def measure(how: str, num_images: int) -> dict[str, Any]:
    """One row: after a small warm-up the seconds of all runs, three where they are short."""
    from intrabatch.messages import MessagePassing
    from intrabatch.refine import neighbourhoods, refine

    vectors = vectors_of(num_images, 59 if num_images < LARGE else 5)
    passing = MessagePassing(DIM)
    neighbourhoods(vectors[:500])
    runs = []
    for _ in range(3 if num_images < LARGE and how in QUICK else 1):
        wall, cpu = time.perf_counter(), time.process_time()
        refine(vectors, passing) if how == STEP else neighbourhoods(vectors, how)
        runs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return {"seconds": [run[0] for run in runs], "cpu_seconds": [run[1] for run in runs], "peak_mib": peak_mib()}


def markdown(report: dict[str, Any]) -> list[str]:
    lines = ["# Message passing at test time: batches of neighbours", "", *machine_lines(report)]
    for num_images, rows in report["sizes"].items():
        matrix = int(num_images) ** 2 * 4 / 2**20
        lines += ["", f"## {int(num_images):,} x {DIM}; a matrix of all pairs would be {matrix:,.0f} MiB", ""]
        lines += ["| batches by | seconds (all runs) | CPU s | peak memory MiB |", "|---|---|---|---|"]
        for how, row in rows.items():
            every = ", ".join(f"{seconds:.1f}" for seconds in row["seconds"])
            cpu = min(row["cpu_seconds"])
            lines.append(f"| {how} | {min(row['seconds']):.1f} ({every}) | {cpu:.1f} | {row['peak_mib']:.0f} |")
        if "nearest" in rows:
            rate = 2 * int(num_images) ** 2 * DIM / min(rows["nearest"]["seconds"]) / 1e9
            lines += ["", f"nearest: {rate:.0f} GFLOP/s, counted as all pairs."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, nargs="+", default=[5924, 60502])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.row, arguments.images[0])))
        return
    from intrabatch.refine import CONSTRUCTIONS

    report: dict[str, Any] = {"command": command(), "machine": machine(), "sizes": {}}
    for num_images in arguments.images:
        rows = report["sizes"][str(num_images)] = {}
        for how in (*CONSTRUCTIONS, STEP) if num_images < LARGE else QUICK:
            rows[how] = measured_alone(__file__, "--images", str(num_images), "--row", how)
            print(f"{num_images:,}, {how}: {min(rows[how]['seconds']):.1f} s", flush=True)
    write_results("refine", report, markdown(report))


if __name__ == "__main__":
    main()
