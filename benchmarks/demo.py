"""How long the demo takes, part by part, and how fast it trains.

    python benchmarks/demo.py            # about three minutes; writes results/demo.{json,md}
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def timed_demo(out: Path) -> dict[str, float]:
    """Wall and CPU seconds of one `intrabatch demo` in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "intrabatch", "demo", "--out", str(out), "--quiet"], check=True)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": seconds, "cpu_seconds": cpu, "peak_mib": after.ru_maxrss / 1024}


def images_per_second(run: Path) -> float:
    """The mean over epochs, of training alone."""
    speeds = [json.loads(line)["images_per_second"] for line in (run / "history.jsonl").read_text().splitlines()]
    return sum(speeds) / len(speeds)


def glyph_seconds() -> float:
    """Making the demo's images, fonts compared and all."""
    code = "import time; from intrabatch import glyphs; t = time.time(); glyphs(); print(time.time() - t)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    report = {"machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
              "load_before": os.getloadavg()[0], "runs": 1}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        report |= {"making_glyphs_seconds": glyph_seconds()} | timed_demo(out)
        for name in ("cross-entropy", "with-messages"):
            report[f"training_images_per_second {name}"] = images_per_second(out / name)
        report["rows"] = json.loads((out / "metrics.json").read_text())["rows"]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "demo.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = ["# The demo", "", "`python benchmarks/demo.py`", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {round(value, 2) if isinstance(value, float) else value} |"
              for key, value in report.items() if key != "rows"]  # fmt: skip
    lines += ["", "| in percent, unseen scripts | recall@1 | map@r | nmi |", "|---|---|---|---|"]
    for name, row in report["rows"].items():
        cells = [f"{100 * row[key]:.1f}" if key in row else "" for key in ("recall@1", "map@r", "nmi")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (RESULTS / "demo.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
