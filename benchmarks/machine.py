"""What figures were measured on, and results written as the benchmarks' README asks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores, threads, the load before, versions, and the rate of a plain matrix product."""
    import sklearn
    import torch

    load = os.getloadavg()[0]
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "load before": load,
        "GFLOP/s of torch.mm, 2048 x 512 by 512 x 2048": product_rate(torch.randn(2048, 512)),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def product_rate(a: Any) -> float:
    """GFLOP/s, the best of twelve."""
    times = []
    for _ in range(12):
        start = time.perf_counter()
        a @ a.T
        times.append(time.perf_counter() - start)
    return 2 * len(a) ** 2 * a.shape[1] / min(times) / 1e9


def peak_mib() -> float:
    """The most memory this process has held. `ru_maxrss` would begin at what its parent held when it started."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def command() -> str:
    """What was typed to get here."""
    return "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def measured_alone(script: str, *options: str) -> dict[str, Any]:
    """What the script prints as JSON in a process of its own, so that its peak memory is its own."""
    finished = subprocess.run([sys.executable, script, *options], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def machine_lines(report: dict[str, Any]) -> list[str]:
    """Command and machine for a person, in Markdown."""
    lines = [f"`{report['command']}`", ""]
    for key, value in report["machine"].items():
        lines.append(f"- {key}: {value:.4g}" if isinstance(value, float) else f"- {key}: {value}")
    return lines


def write_results(name: str, report: dict[str, Any], lines: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
