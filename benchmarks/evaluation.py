"""How fast, how large and how right evaluation is, beside the libraries that people use for it.

    python benchmarks/evaluation.py                    everything: over half an hour, most of it scikit-learn's k-means
    python benchmarks/evaluation.py --parts retrieval cub kmeans

Each contender runs in a process of its own, one after the other and in turns, on the same arrays from the same file.
CPU seconds count both cores' work: on a busy machine half of them is what an idle one with two cores would take.
Writes benchmarks/results/evaluation.json and evaluation.md after every run; parts measured before stay as they are.
Vectors are clustered: class centres in 128 of the
dimensions, noise around them there, and a little in all; random vectors would have no neighbours worth ranking.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import peak_mib

RESULTS = Path(__file__).parent / "results"
SETS = {  # images, classes, noise
    "SOP size": (60_502, 11_316, 1.35),
    "a fifth of SOP": (12_000, 2_244, 1.35),
    "CUB size": (5_924, 100, 2.0),
}
RECALL_AT = (1, 10, 100, 1000)
Figures = dict[str, float]


def clustered(num: int, num_classes: int, noise: float, seed: int = 0, dim: int = 512) -> tuple[Any, Any]:
    """Unit vectors and labels; class sizes vary as in the real sets, two images at least."""
    rng = np.random.default_rng(seed)
    sizes = 2 + rng.multinomial(num - 2 * num_classes, np.full(num_classes, 1 / num_classes))
    labels = rng.permutation(np.repeat(np.arange(num_classes), sizes))
    basis = (rng.normal(size=(128, dim)) / np.sqrt(128 * dim)).astype(np.float32)
    centres = rng.normal(size=(num_classes, 128)).astype(np.float32)
    inner = centres[labels] + noise * rng.standard_normal((num, 128), dtype=np.float32)
    vectors = inner @ basis + 0.1 / np.sqrt(dim) * rng.standard_normal((num, dim), dtype=np.float32)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def our_retrieval(vectors: Any, labels: Any, device: str) -> Figures:
    from intrabatch.metrics import retrieval_figures

    ks = [k for k in RECALL_AT if k < len(labels)]
    return retrieval_figures(vectors, labels, ks=ks, device=device).summary()


def their_retrieval(vectors: Any, labels: Any, device: str) -> Figures:
    """The calculator extended by recall at K, as its documentation shows, with lists long enough for K = 1000."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    def recall_at(k: int) -> Callable[..., float]:
        def calculate(_: Any, knn_labels: Any, query_labels: Any, **__: Any) -> float:
            return float((knn_labels[:, :k] == query_labels[:, None]).any(1).double().mean())

        return calculate

    methods = {f"calculate_recall_at_{k}": recall_at(k) for k in RECALL_AT}
    include = ("precision_at_1", "r_precision", "mean_average_precision_at_r", *(f"recall_at_{k}" for k in RECALL_AT))
    calculator = type("Calculator", (AccuracyCalculator,), methods)(include, k=1000, device=torch.device("cpu"))
    found = calculator.get_accuracy(vectors, labels)
    return {
        "precision@1": found["precision_at_1"],
        "r-precision": found["r_precision"],
        "map@r": found["mean_average_precision_at_r"],
    } | {f"recall@{k}": found[f"recall_at_{k}"] for k in RECALL_AT}


def our_neighbours(vectors: Any, labels: Any, device: str, k: int) -> Figures:
    from intrabatch.neighbours import nearest

    return {"mean cosine": float(nearest(vectors, k, device=device).scores_Nk.mean())}


def faiss_neighbours(vectors: Any, labels: Any, device: str, k: int) -> Figures:
    """Its exact index; of each list the first place is taken for the image itself, as its users do."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return {"mean cosine": float(index.search(vectors, k + 1)[0][:, 1:].mean())}


def our_figures(vectors: Any, labels: Any, device: str) -> Figures:
    """As `intrabatch evaluate` gives them: NMI of three seeds, intervals over classes."""
    from intrabatch.config import EvalConfig
    from intrabatch.evaluate import measure_vectors

    metrics: Figures = measure_vectors(vectors, labels, None, EvalConfig(), device)["metrics"]
    return metrics


def our_clusters(vectors: Any, labels: Any, device: str, seed: int) -> Figures:
    from intrabatch.clustering import nmi_figures

    return nmi_figures(vectors, labels, seeds=(seed,), device=device).summary()


def their_clusters(vectors: Any, labels: Any, device: str, seed: int) -> Figures:
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    clusters = KMeans(len(np.unique(labels)), n_init=1, random_state=seed).fit(vectors)
    return {"nmi": normalized_mutual_info_score(labels, clusters.labels_)}


CONTENDERS: dict[str, Callable[..., Figures]] = {
    "intrabatch retrieval": our_retrieval,
    "pytorch-metric-learning retrieval": their_retrieval,
    "intrabatch all figures": our_figures,
    **{f"intrabatch, {k} nearest": lambda *a, k=k: our_neighbours(*a, k) for k in (10, 1000)},
    **{f"faiss, {k} nearest": lambda *a, k=k: faiss_neighbours(*a, k) for k in (10, 1000)},
    **{f"intrabatch k-means, seed {seed}": lambda *a, seed=seed: our_clusters(*a, seed) for seed in range(3)},
    **{f"scikit-learn k-means, seed {seed}": lambda *a, seed=seed: their_clusters(*a, seed) for seed in range(3)},
}
PHASES = {  # functions of the library, and what they stand for
    "products": "products of blocks",
    "_sort_rows": "sorting",
    "counts_above": "counting, sorting included",
    "_scores_of_positives": "exact scores of positives",
    "_exact_figures": "exact figures where rounding could decide",
    "_greedy_seeds": "greedy seeds, products included",
    "_assigned": "assigning, products included",
    "agreement": "agreement with the labels",
}


def run_here(contender: str, file: str, device: str) -> None:
    """In a child: a warm-up on 1,500 rows or so, one timed run, then seconds, memory and figures as JSON."""
    with np.load(file) as arrays:
        vectors, labels = arrays["vectors"], arrays["labels"]
    few = labels <= np.searchsorted(np.bincount(labels).cumsum(), 1500)
    CONTENDERS[contender](vectors[few], labels[few], device)
    profile = cProfile.Profile()
    start, start_cpu = time.perf_counter(), time.process_time()
    if "intrabatch" in contender:
        profile.enable()
    figures = CONTENDERS[contender](vectors, labels, device)
    profile.disable()
    result = {"seconds": time.perf_counter() - start, "cpu seconds": time.process_time() - start_cpu}
    if "intrabatch" in contender:
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        result["phases"] = {PHASES[name]: entry[3] for (_, _, name), entry in stats.items() if name in PHASES}
    print(json.dumps(result | {"peak MiB": peak_mib(), "figures": figures}))


def measured(contender: str, file: Path, device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", contender, "--file", str(file), "--device", device]
    quiet = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    print(f"  {contender}: {result['seconds']:.1f} s, CPU {result['cpu seconds']:.1f} s", flush=True)
    return result


def side_by_side(file: Path, contenders: list[str], device: str, repeats: int) -> Iterator[dict[str, dict[str, Any]]]:
    """All contenders in turns; of each the quickest run so far, with the seconds of all: after every run."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for name in contenders:
            runs.setdefault(name, []).append(measured(name, file, device))
            yield {
                one: min(found, key=lambda run: run["seconds"]) | {"all seconds": [run["seconds"] for run in found]}
                for one, found in runs.items()
            }


def machine() -> dict[str, Any]:
    """What the figures were measured on, and the matrix-product rates to hold them against."""
    import faiss
    import pytorch_metric_learning
    import sklearn
    import torch

    from intrabatch.scores import products, ready_for_products

    a = torch.randn(2048, 512)
    ready = ready_for_products(a)

    def rate(product: Callable[[], Any]) -> float:
        times = []
        for _ in range(30):
            start = time.perf_counter()
            product()
            times.append(time.perf_counter() - start)
        return 2 * 2048 * 2048 * 512 / min(times) / 1e9

    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "GFLOP/s of a product of 2048 x 512, as made here": rate(lambda: products(ready, ready)),
        "GFLOP/s of the same by torch.mm": rate(lambda: a @ a.T),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
            "faiss": faiss.__version__,
            "pytorch-metric-learning": pytorch_metric_learning.__version__,
        },
    }


RETRIEVAL = ["intrabatch retrieval", "pytorch-metric-learning retrieval"]
OURS = [name for name in CONTENDERS if name.startswith("intrabatch k-means")]
THEIRS = [name for name in CONTENDERS if name.startswith("scikit-learn k-means")]
TEN, THOUSAND = ([f"intrabatch, {k} nearest", f"faiss, {k} nearest"] for k in (10, 1000))
PARTS = {  # title, set, contenders, and how often: None for as often as asked
    "retrieval": ("Recall@1..1000, R-precision, MAP@R (ours: and MAP)", "SOP size", RETRIEVAL, None),
    "nearest-10": ("10 nearest of each image", "a fifth of SOP", TEN, None),
    "nearest-1000": ("1,000 nearest of each image", "a fifth of SOP", THOUSAND, None),
    "cub": ("All figures, NMI of three seeds, intervals", "CUB size", ["intrabatch all figures"], None),
    "kmeans": ("NMI of greedy k-means++", "a fifth of SOP", OURS + THEIRS, 1),
    "kmeans-full": ("NMI of greedy k-means++", "SOP size", OURS + THEIRS[:2], 1),
}


def markdown(report: dict[str, Any]) -> str:
    lines = ["# Evaluation: speed, memory and agreement", ""]
    for key, value in report["machine"].items():
        lines.append(f"- {key}: {value:.4g}" if isinstance(value, float) else f"- {key}: {value}")
    for name in PARTS:
        if name in report["parts"]:
            lines += part_lines(report["parts"][name], report["machine"])
    return "\n".join(lines) + "\n"


def part_lines(part: dict[str, Any], here: dict[str, Any]) -> list[str]:
    num, num_classes, _ = SETS[part["set"]]
    lines = ["", f"## {part['title']}: {part['set']}, {num:,} x 512, {num_classes:,} classes", ""]
    lines += [f"`{part['command']}`, load before {part['load before']:.1f}", ""]
    lines += ["| | seconds (all runs) | CPU s | ours quicker by (CPU) | peak MiB | figures |", "|---|" + "---|" * 5]
    ours = [run for name, run in part["runs"].items() if name.startswith("intrabatch")]
    for name, run in part["runs"].items():
        figures = ", ".join(f"{key} {value:.4f}" for key, value in run["figures"].items())
        every = ", ".join(f"{seconds:.1f}" for seconds in run["all seconds"])
        times = [run[key] / np.mean([other[key] for other in ours]) for key in ("seconds", "cpu seconds")]
        ratio = "" if name.startswith("intrabatch") else f"{times[0]:.1f} ({times[1]:.1f})"
        cells = [name, f"{run['seconds']:.1f} ({every})", f"{run['cpu seconds']:.1f}", ratio]
        memory = f"{run['peak MiB']:.0f}" if "peak MiB" in run else "not measured"
        lines.append(f"| {' | '.join(cells)} | {memory} | {figures} |")
    for name, run in part["runs"].items():
        if run.get("phases"):
            shares = ", ".join(f"{key} {value:.1f}" for key, value in run["phases"].items())
            lines += ["", f"Seconds in {name}: {shares}."]
        if name == "intrabatch retrieval":
            done = 512 * num * num / 1e9
            peak = here["GFLOP/s of a product of 2048 x 512, as made here"]
            lines += [
                "",
                f"{2 * done / run['seconds']:.0f} GFLOP/s counted as all pairs both ways. Half of them are computed: "
                f"{done / run['phases']['products of blocks']:.0f} GFLOP/s in the products alone, "
                f"{done / run['seconds']:.0f} over all, beside {peak:.0f} of a plain product.",
            ]
    return lines


def load_report() -> dict[str, Any]:
    """What was measured before on this machine, so that parts can be measured one at a time."""
    here, file = machine(), RESULTS / "evaluation.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    same = [before.get("machine", {}).get(key) == here[key] for key in ("processor", "cores", "versions")]
    return {"machine": here, "parts": before["parts"] if all(same) else {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of intrabatch; the others run on the CPU")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_here(options.child, options.file, options.device)
    command = "python benchmarks/" + " ".join([Path(__file__).name, *sys.argv[1:]])
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.parts:
            report = load_report()
            title, set_name, contenders, repeats = PARTS[name]
            print(f"{title}: {set_name}", flush=True)
            part: dict[str, Any] = {"title": title, "set": set_name, "command": command}
            part["load before"] = os.getloadavg()[0]
            file = Path(folder) / f"{set_name}.npz"
            if not file.exists():
                vectors, labels = clustered(*SETS[set_name])
                np.savez(file, vectors=vectors, labels=labels)
            for runs in side_by_side(file, contenders, options.device, repeats or options.repeats):
                report["parts"][name] = part | {"runs": runs}
                (RESULTS / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n")
                (RESULTS / "evaluation.md").write_text(markdown(report))


if __name__ == "__main__":
    main()
