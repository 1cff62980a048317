"""Time and memory of one training step of a head over C classes: full, the batch's classes only, hierarchical.

    python benchmarks/many_classes.py                 # C = 1e3, 1e4, 1e5, 1e6, D = 512, 54 images of 6 classes
    python benchmarks/many_classes.py --classes 1000

A step is loss, gradient and update, with RAdam, or SparseAdam where the gradient is sparse. Each row runs in a process
of its own, so that its peak memory is its own; one that would need more memory than is free is skipped, and says so.
CPU time counts both cores' work and bears a busy machine better than the clock does.
Writes benchmarks/results/many_classes.json and many_classes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any

import torch
from machine import command, machine, machine_lines, measured_alone, peak_mib, write_results

DIM, BATCH, BATCH_CLASSES, STEPS = 512, 54, 6, 20
HEADS = ("full", "batch classes", "batch classes + 1,000 negatives", "hierarchical")


def head_of(kind: str, num_classes: int) -> torch.nn.Module:
    from intrabatch.heads import LinearHead
    from intrabatch.many_classes import BatchClassesHead, HierarchicalHead

    if kind == "full":
        return LinearHead(DIM, num_classes)
    if kind == "hierarchical":
        return HierarchicalHead(DIM, num_classes)
    negatives = min(1000, num_classes - 1) if "negatives" in kind else 0
    return BatchClassesHead(DIM, num_classes, negatives=negatives)


def measure(kind: str, num_classes: int) -> dict[str, Any]:
    """The time of every step, and the peak memory; other classes in every step."""
    from intrabatch.many_classes import sparse_parameters

    head = head_of(kind, num_classes)
    sparse = sparse_parameters(head)
    optimizer = torch.optim.SparseAdam(sparse) if sparse else torch.optim.RAdam(head.parameters(), foreach=False)
    generator = torch.Generator().manual_seed(0)
    milliseconds, cpu_milliseconds = [], []
    for _ in range(STEPS):
        classes = torch.randint(num_classes, (BATCH_CLASSES,), generator=generator)
        labels, feats = classes.repeat_interleave(BATCH // BATCH_CLASSES), torch.randn(BATCH, DIM, generator=generator)
        start, cpu_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        head(feats.requires_grad_(), labels).backward()
        optimizer.step()
        milliseconds.append(1000 * (time.perf_counter() - start))
        cpu_milliseconds.append(1000 * (time.process_time() - cpu_start))
    return {"ms": milliseconds, "cpu_ms": cpu_milliseconds, "peak_mib": peak_mib()}


def skipped(kind: str, num_classes: int) -> str:
    """Why this row cannot run here, or nothing: weights and two moments; in full a gradient and RAdam's five copies."""
    needed = num_classes * DIM * (9 if kind == "full" else 3) * 4 / 2**30
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"skipped: needs {needed:.1f} GiB, {free:.1f} free" if needed > 0.8 * free else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.row, arguments.classes[0])))
        return
    report: dict[str, Any] = {"command": command(), "machine": machine(), "rows": []}
    report |= {"dim": DIM, "batch": BATCH, "batch_classes": BATCH_CLASSES, "steps": STEPS}
    for num_classes in arguments.classes:
        for kind in HEADS:
            row: dict[str, Any] = {"classes": num_classes, "head": kind}
            reason = skipped(kind, num_classes)
            options = ("--classes", str(num_classes), "--row", kind)
            row |= {"skipped": reason} if reason else measured_alone(__file__, *options)
            report["rows"].append(row)
            print(row, flush=True)
    write_results("many_classes", report, markdown(report))


def markdown(report: dict[str, Any]) -> list[str]:
    lines = ["# One training step of a head over many classes", "", *machine_lines(report)]
    lines.append(f"- n: {DIM} numbers, {BATCH} images of {BATCH_CLASSES} classes, {STEPS} steps a row")
    lines += [
        "",
        "| classes | head | step ms, quickest (median) | CPU ms, median | peak memory MiB |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        start = f"| {row['classes']:,} | {row['head']} | "
        if "skipped" in row:
            lines.append(start + f"{row['skipped']} | | |")
            continue
        times = f"{min(row['ms']):.1f} ({median(row['ms']):.1f}) | {median(row['cpu_ms']):.1f}"
        lines.append(start + f"{times} | {row['peak_mib']:.0f} |")
    return lines


if __name__ == "__main__":
    main()
