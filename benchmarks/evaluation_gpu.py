"""How fast and how right evaluation is on a GPU, at the size of Stanford Online Products and of CUB.

    python benchmarks/evaluation_gpu.py --out FOLDER                            on a CUDA device: about a minute
    python benchmarks/evaluation_gpu.py --out FOLDER --device cpu --scale small   a rehearsal

Needs nothing but the library; scikit-learn, which it brings along, checks the agreement figures. Every part runs once
to warm up on a few images, then some times at full size, the device waited for before and after.
Retrieval is held against rankings of sampled queries made by sorting float64 products with NumPy, and against the CPU.
Writes FOLDER/evaluation_gpu.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from evaluation import RECALL_AT, SETS, clustered

from intrabatch import clustering, metrics, scores
from intrabatch.clustering import cluster, nmi_figures
from intrabatch.metrics import agreement, retrieval_figures
from intrabatch.neighbours import nearest

SMALL = {"SOP size": (3_000, 560, 1.35), "CUB size": (1_000, 20, 2.0)}
PHASES = [  # owner, function, what it stands for
    (metrics, "points", "copying to the device and checking"),
    (clustering, "points", "copying to the device and checking"),
    (metrics, "_scores_of_positives", "exact scores of positives"),
    (scores.Points, "keys", "products of all pairs, made keys"),
    (metrics, "counts_above", "counting"),
    (metrics, "figures_of_ranks", "figures from ranks"),
    (clustering, "_greedy_seeds", "greedy seeds"),
    (clustering, "_proposals", "greedy seeds: proposals"),
    (clustering._Data, "distances", "greedy seeds: products"),
    (clustering._Seeding, "record", "greedy seeds: recording"),
    (clustering._Seeding, "choose", "greedy seeds: choices"),
    (clustering, "_assigned", "assigning to the nearest centre"),
    (clustering, "_means", "means of clusters"),
    (clustering, "agreement", "agreement with the labels"),
]


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], Any], device: str, repeats: int) -> tuple[list[float], Any]:
    """Seconds of each run, and what the last one returned."""
    seconds, found = [], None
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        found = work()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds, found


def phases_of(work: Callable[[], Any], device: str) -> dict[str, float]:
    """Where the time goes: seconds in each phase, the device waited for around each, which makes the whole slower."""
    spent = {name: 0.0 for _, _, name in PHASES}

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            seconds, found = seconds_of(lambda: function(*args, **options), device, 1)
            spent[name] += seconds[0]
            return found

        return run

    patches = [patch.object(owner, name, timed(getattr(owner, name), text)) for owner, name, text in PHASES]
    for one in patches:
        one.start()
    try:
        whole = seconds_of(work, device, 1)[0][0]
    finally:
        for one in patches:
            one.stop()
    return {name: value for name, value in spent.items() if value > 0} | {"whole, waited for": whole}


def product_rates(device: str, num: int) -> dict[str, float]:
    """TFLOP/s of plain matrix products of `num` vectors with some, to hold the rest against."""
    rates = {}
    for kind in (torch.float32, torch.float64):
        a = torch.randn(num, 512, dtype=kind, device=device)
        for rows in (277, 2048):
            seconds, _ = seconds_of(lambda a=a, rows=rows: a[:rows] @ a.T, device, 5)
            name = f"{str(kind).removeprefix('torch.')}, {rows} x {num} x 512"
            rates[name] = 1024e-12 * rows * num / min(seconds)
    return rates


def slow_figures(vectors: Any, labels: Any, queries: Any) -> dict[str, Any]:
    """From the definitions, by sorting float64 cosines; of equally near images the lower index is ahead."""
    long = vectors.astype(np.float64)
    long /= np.linalg.norm(long, axis=1, keepdims=True)
    found: dict[str, list[float]] = {}
    for query in queries:
        near = np.round(long @ long[query] * 2**30)
        near[query] = -np.inf
        ranking = np.argsort(-near, kind="stable")[:-1]
        places = np.flatnonzero(labels[ranking] == labels[query]) + 1
        precisions = np.arange(1, len(places) + 1) / places
        one = {f"recall@{k}": float(places[0] <= k) for k in RECALL_AT if k < len(labels)}
        one |= {"precision@1": float(places[0] == 1), "r-precision": float((places <= len(places)).mean())}
        one |= {"map@r": float(precisions[places <= len(places)].sum() / len(places)), "map": float(precisions.mean())}
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


class Bench:
    """The parts, each of which adds to the report; one that fails says so, and the others go on."""

    def __init__(self, device: str, scale: str, repeats: int) -> None:
        self.device, self.repeats, self.start = device, repeats, time.perf_counter()
        self.sets = {name: (SMALL if scale == "small" else SETS)[name] for name in SMALL}
        self.seconds: dict[str, list[float]] = {}
        self.notes: dict[str, Any] = {}
        self.failures: list[str] = []

    def part(self, name: str, work: Callable[[], Any]) -> None:
        try:
            self.notes[name] = work()
            print(f"{time.perf_counter() - self.start:5.1f} s  {name}: {json.dumps(self.notes[name])}", flush=True)
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {type(error).__name__}: {error}")

    def time(self, name: str, work: Callable[[], Any], repeats: int | None = None) -> Any:
        seconds, found = seconds_of(work, self.device, repeats or self.repeats)
        self.seconds[name] = seconds
        return found

    def run(self) -> None:
        self.part("TFLOP/s of plain products", lambda: product_rates(self.device, self.sets["SOP size"][0]))
        for name, sizes in self.sets.items():
            vectors, labels = clustered(*sizes)
            few = labels <= np.searchsorted(np.bincount(labels).cumsum(), 1500)
            self.part(f"{name}: warm-up", lambda v=vectors, t=labels, f=few: self.everything(v[f], t[f]))
            self.part(f"{name}: all figures", lambda v=vectors, t=labels, n=name: self.figures(n, v, t))
            self.part(f"{name}: where the time goes", lambda v=vectors, t=labels: self.phases(v, t))
            self.part(f"{name}: largest difference from sorted float64", lambda v=vectors, t=labels: self.sampled(v, t))
            self.part(f"{name}: beside the CPU", lambda v=vectors, t=labels, n=name: self.beside_cpu(n, v, t))
            self.part(f"{name}: k-means", lambda v=vectors, t=labels, n=name: self.clusters(n, v, t))
            self.part(f"{name}: neighbours", lambda v=vectors, n=name: self.neighbours(n, v))
            self.part(f"{name}: with intervals", lambda v=vectors, t=labels, n=name: self.measured(n, v, t))
        self.part("many thresholds", self.many_thresholds)

    def retrieval(self, vectors: Any, labels: Any) -> Any:
        ks = [k for k in RECALL_AT if k < len(labels)]
        return retrieval_figures(vectors, labels, ks=ks, device=self.device)

    def everything(self, vectors: Any, labels: Any) -> dict[str, float]:
        """What the headline counts: R@1..1000, R-precision, MAP@R, MAP, and NMI, AMI and ARI of greedy k-means++."""
        return self.retrieval(vectors, labels).summary() | nmi_figures(vectors, labels, device=self.device).summary()

    def figures(self, name: str, vectors: Any, labels: Any) -> dict[str, float]:
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        whole = f"{name}: retrieval and NMI together"
        found: dict[str, float] = self.time(whole, lambda: self.everything(vectors, labels))
        self.time(f"{name}: retrieval", lambda: self.retrieval(vectors, labels))
        self.time(f"{name}: NMI, AMI, ARI", lambda: nmi_figures(vectors, labels, device=self.device))
        peak = 0 if self.device == "cpu" else torch.cuda.max_memory_allocated()
        rate = 1024e-12 * len(labels) ** 2 / min(self.seconds[f"{name}: retrieval"])
        return found | {"peak MiB on the device": peak / 2**20, "TFLOP/s of retrieval, all pairs": rate}

    def phases(self, vectors: Any, labels: Any) -> dict[str, float]:
        return phases_of(lambda: self.everything(vectors, labels), self.device)

    def sampled(self, vectors: Any, labels: Any) -> dict[str, float]:
        found = self.retrieval(vectors, labels)
        places = np.linspace(0, len(found.queries) - 1, 200).astype(int)
        slow = slow_figures(vectors, labels, found.queries[places])
        return {name: float(np.abs(values - found.values[name][places]).max()) for name, values in slow.items()}

    def beside_cpu(self, name: str, vectors: Any, labels: Any) -> dict[str, float]:
        """The largest difference of any query's figure from the CPU's, which come by way of float32 and bounds."""
        here = self.retrieval(vectors, labels)
        ks = [k for k in RECALL_AT if k < len(labels)]
        there = self.time(f"{name}: retrieval on the CPU", lambda: retrieval_figures(vectors, labels, ks=ks), 1)
        return {figure: float(np.abs(values - there.values[figure]).max()) for figure, values in here.values.items()}

    def clusters(self, name: str, vectors: Any, labels: Any) -> dict[str, Any]:
        from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, normalized_mutual_info_score

        k = int(labels.max()) + 1
        runs = [cluster(vectors, k, seed=seed, device=self.device) for seed in (0, 0, 1, 2)]
        found = [agreement(labels, run.assignments) for run in runs]
        checks = {"nmi": normalized_mutual_info_score, "ari": adjusted_rand_score}
        if k < 1000:
            checks["ami"] = adjusted_mutual_info_score
            on_cpu = [agreement(labels, cluster(vectors, k, seed=seed).assignments)["nmi"] for seed in range(3)]
        worst = {key: abs(check(labels, runs[-1].assignments) - found[-1][key]) for key, check in checks.items()}
        by_random = f"{name}: NMI with random seeds"
        self.time(by_random, lambda: nmi_figures(vectors, labels, recipe="random", device=self.device))
        return {
            "nmi of seeds 0, 0, 1, 2": [one["nmi"] for one in found],
            "iterations": [run.num_iterations for run in runs],
            "the same seed gives the same clusters": bool((runs[0].assignments == runs[1].assignments).all()),
            "largest difference from scikit-learn's formulas": worst,
        } | ({"nmi of seeds 0, 1, 2 on the CPU": on_cpu} if k < 1000 else {})

    def neighbours(self, name: str, vectors: Any) -> dict[str, Any]:
        for k in (10, min(1000, len(vectors) - 1)):
            found = self.time(f"{name}: {k} nearest of each", lambda k=k: nearest(vectors, k, device=self.device), 2)
        on_cpu = nearest(vectors[:1000], 10, gallery_GD=vectors).indices_Nk
        here = nearest(vectors[:1000], 10, gallery_GD=vectors, device=self.device).indices_Nk
        return {"the same as on the CPU": bool((on_cpu == here).all()), "first": found.indices_Nk[0, :5].tolist()}

    def measured(self, name: str, vectors: Any, labels: Any) -> dict[str, Any]:
        from intrabatch.config import EvalConfig
        from intrabatch.evaluate import measure_vectors

        config = EvalConfig(recall_at=tuple(k for k in RECALL_AT if k < len(labels)))
        work = f"{name}: all figures with intervals over classes"
        found = self.time(work, lambda: measure_vectors(vectors, labels, None, config, self.device), 2)
        return {key: value for key, value in found["intervals"].items()}

    def many_thresholds(self) -> dict[str, bool]:
        """The other way of counting on a device, which only classes of hundreds of images take."""
        found_BG = torch.randint(0, 50_000, (300, 5_000), device=self.device)
        bars_BT = torch.randint(0, 50_000, (300, metrics.COMPARED + 9), device=self.device)
        counted = metrics._counts_by_comparison(found_BG, bars_BT)
        return {"both ways of counting agree": bool((metrics.counts_above(found_BG, bars_BT) == counted).all())}

    def report(self) -> dict[str, Any]:
        return {
            "command": f"python benchmarks/{Path(__file__).name} --out FOLDER --device {self.device}",
            "machine": {
                "device": self.device if self.device == "cpu" else torch.cuda.get_device_name(),
                "cores": os.cpu_count(),
                "load before": os.getloadavg()[0],
                "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            },
            "sets (images, classes, noise)": self.sets,
            "seconds": self.seconds,
            "notes": self.notes,
            "failures": self.failures,
            "seconds in all": time.perf_counter() - self.start,
        }


def markdown(report: dict[str, Any]) -> str:
    lines = ["# Evaluation on a GPU", "", f"`{report['command']}`", ""]
    lines += [f"- {key}: {value}" for key, value in report["machine"].items()]
    lines += [f"- {key}: {num:,} x 512, {classes:,} classes" for key, (num, classes, _) in report[SET_KEY].items()]
    lines += ["", "| | best seconds | all runs |", "|---|---|---|"]
    for name, seconds in report["seconds"].items():
        lines.append(f"| {name} | {min(seconds):.3f} | {', '.join(f'{one:.3f}' for one in seconds)} |")
    for name, note in report["notes"].items():
        shown = [f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}" for key, value in note.items()]
        lines += ["", f"{name}: {', '.join(shown)}."]
    return "\n".join([*lines, "", *(f"FAILED {failure}" for failure in report["failures"])]) + "\n"


SET_KEY = "sets (images, classes, noise)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", choices=["full", "small"], default="full")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    bench = Bench(options.device, options.scale, options.repeats)
    bench.run()
    report = bench.report()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "evaluation_gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "evaluation_gpu.md").write_text(markdown(report))
    print(markdown(report))
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
