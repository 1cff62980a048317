"""Names and numbers as a reader wants them: `recall@1` 0.4283 becomes Recall@1 42.8.

Figures that are fractions of one are written in percent with one decimal, and more of them is better; any other
figure is written as it is and never called best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .content import Row

FRACTIONS = {
    "recall": "Recall",
    "precision": "Precision",
    "hit": "Hit",
    "map": "MAP",
    "mrr": "MRR",
    "r_precision": "R-precision",
    "nmi": "NMI",
    "ami": "AMI",
    "ari": "ARI",
    "f1": "F1",
    "purity": "Purity",
    "accuracy": "Accuracy",
}
HISTORY = {
    "loss": "Loss",
    "loss/auxiliary": "Auxiliary loss",
    "loss/messages": "Message-passing loss",
    "learning_rate": "Learning rate",
    "images_per_second": "Images per second",
}
MISSING = "–"


def _stem(metric: str) -> str:
    return metric.partition("@")[0].lower().replace("-", "_").replace(" ", "_")


def is_fraction(metric: str) -> bool:
    """Whether this metric is a fraction of one, the last part of its name deciding: val/recall@1 is."""
    return _stem(metric.rpartition("/")[2]) in FRACTIONS


def metric_title(metric: str) -> str:
    """recall@1 -> Recall@1, map@r -> MAP@R, num_queries -> Num queries."""
    stem, at, k = metric.partition("@")
    title = FRACTIONS.get(_stem(stem)) or stem.replace("_", " ")
    return title[:1].upper() + title[1:] + at + k.upper()


def metric_text(metric: str, value: float | None) -> str:
    """The figure as it stands in the table; a missing one, or one that is not a number, is a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{100 * value:.1f}" if is_fraction(metric) else number_text(value)


def number_text(value: float) -> str:
    """Three significant digits, or the whole number if longer, thousands set apart: 1,234 and 0.0123 and 8e-5."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 < exponent < 7:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{_trimmed(mantissa)}e{int(power)}"
    return _trimmed(f"{value:,.{max(0, 2 - exponent)}f}")


def _trimmed(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def history_title(key: str) -> str:
    """What a curve shows: loss/auxiliary -> Auxiliary loss, val/recall@1 -> Validation Recall@1, %."""
    if key in HISTORY:
        return HISTORY[key]
    split, slash, metric = key.partition("/")
    if not is_fraction(key):
        return metric_title(key)
    where = {"val": "Validation ", "test": "Test ", "train": "Training "}.get(split, f"{split} ") if slash else ""
    return f"{where}{metric_title(metric or key)}, %"


def metric_names(rows: Iterable[Row]) -> list[str]:
    """Every metric of any row once, in the order they first appear."""
    return list(dict.fromkeys(metric for row in rows for metric in row.metrics))


def best_rows(rows: Sequence[Row], metric: str) -> set[int]:
    """The rows to set in bold: the best figure as printed, ties included; none when there is nothing to compare."""
    shown = {i: row.metrics[metric] for i, row in enumerate(rows) if math.isfinite(row.metrics.get(metric, math.nan))}
    if len(shown) < 2 or not is_fraction(metric):
        return set()
    best = metric_text(metric, max(shown.values()))
    return {i for i, value in shown.items() if metric_text(metric, value) == best}
