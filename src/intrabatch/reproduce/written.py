"""A table written down: means and intervals over repetitions, gains paired by seed, and the Markdown of it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..statistics import over_seeds
from .study import Study

BEST_TEST = "best_test_percent"
WATCHED = "recall@1 of the best TEST epoch that was measured: to stand beside papers that choose so, no result"
Figures = dict[str, Any]


def table_of(study: Study, outcomes: Sequence[Figures], jobs: int = 1) -> Figures:
    """All rows so far: the paper's figure and ours with its interval, in percent, and the gain over the baseline."""
    table = study.table
    base = {one["recipe"]: one for one in outcomes if one["row"] == table.baseline and "metrics" in one}
    return {
        "table": study.name,
        "about": table.about,
        "figures": list(table.figures),
        "paper_on": table.paper_on,
        "baseline": table.baseline,
        "seeds": study.seeds,
        "jobs": jobs,
        "changes": list(study.changes),
        "rows": [row_of(one, table.figures, base.get(one["recipe"])) for one in outcomes],
    }


def row_of(outcome: Figures, names: Sequence[str], base: Figures | None) -> Figures:
    """An outcome with its means and intervals."""
    if "metrics" not in outcome:
        return outcome
    ours = {
        name: _percent([one[name] for one in outcome["metrics"]]) for name in names if name in outcome["metrics"][0]
    }
    row = outcome | {"ours": ours}
    if "best_test" in outcome:
        row[BEST_TEST] = _percent(outcome["best_test"])
    if base and base is not outcome and len(outcome["metrics"]) > 1:
        pairs = list(zip(outcome["metrics"], base["metrics"], strict=True))
        row["gain"] = {name: _percent([own[name] - other[name] for own, other in pairs]) for name in ours}
    return row


def _percent(values: Sequence[float]) -> dict[str, float]:
    """The mean over repetitions and, of two or more, half of its 95 % interval."""
    percents = [100 * value for value in values]
    if len(percents) == 1:
        return {"mean": percents[0]}
    interval = over_seeds(percents)
    return {"mean": interval.mean, "half": interval.high - interval.mean}


def table_lines(table: Figures) -> list[str]:
    """The table for a person, in Markdown: in each cell the paper's figure and ours."""
    names, seeds = table["figures"], table["seeds"]
    papers = any(row["paper"] for row in table["rows"])
    gained = seeds > 1 and any("gain" in row for row in table["rows"])
    against = [f"{names[0]} against {table['baseline']}"] if gained else []
    watched = any(BEST_TEST in row for row in table["rows"])
    header = ["data", "row", *names, *against, "protocol", *([WATCHED] if watched else [])]
    lines = [f"# {table['table']}: {table['about']}", "", _explained(table, papers), ""]
    lines += [_line(header), _line(["---"] * len(header))]
    for row in table["rows"]:
        cells = [_figure(row, name, papers) for name in names]
        gain = [_cell(row.get("gain", {}).get(names[0]), sign="+")] if gained else []
        best = [_cell(row.get(BEST_TEST))] if watched else []
        lines.append(_line([row["recipe"], row["row"], *cells, *gain, _protocol(row), *best]))
    return [*lines, "", *_footer(table)]


def _explained(table: Figures, papers: bool) -> str:
    paper = f"the paper's figure on {table['paper_on']}" if table["paper_on"] else "the paper's figure"
    cell = f"{paper} / ours" if papers else "our figure"
    interval = ""
    if table["seeds"] > 1:
        interval = f" Ours: mean of {table['seeds']} repetitions ± half of the 95 % t interval"
        interval += "; a gain is paired by seed."
    return f"Each cell: {cell}, in percent.{interval}"


def _figure(row: Figures, name: str, papers: bool) -> str:
    """Ours, after the paper's in a table that has any."""
    paper, ours = (row["paper"] or {}).get(name), _cell(row.get("ours", {}).get(name))
    return f"{'–' if paper is None else f'{paper:.1f}'} / {ours}" if papers else ours


def _cell(found: dict[str, float] | None, sign: str = "") -> str:
    if found is None:
        return "–"
    half = f" ± {found['half']:.1f}" if "half" in found else ""
    return f"{found['mean']:{sign}.1f}{half}"


def _protocol(row: Figures) -> str:
    if "not_run" in row:
        return f"not run: {row['not_run']}"
    protocol = row["protocol"]
    judges = "validation" if protocol.get("split") == "val" else "unseen"
    return f"{protocol['epoch_chosen']} of {protocol['epochs']} epochs, {protocol['num_classes']} {judges} classes"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _footer(table: Figures) -> list[str]:
    """How the table was made, and on what."""
    sets = "".join(f" --set {change}" for change in table["changes"])
    jobs = f" --jobs {table['jobs']}" if table.get("jobs", 1) > 1 else ""
    lines = [f"Made by `intrabatch reproduce {table['table']} --seeds {table['seeds']}{jobs}{sets}`."]
    made = [_made_with(row["environment"]) for row in table["rows"] if "environment" in row]
    took = [
        f"{row['recipe']}, {row['row']} {sum(row['seconds']) / len(row['seconds']) / 60:.1f}"
        for row in table["rows"]
        if min(row.get("seconds", [0])) > 0
    ]
    told = [f"Minutes of training, evaluation left out: {'; '.join(took)}."] if took else []
    return [*lines, *dict.fromkeys(made), *told]


def _made_with(made: Figures) -> str:
    """Versions and machine; rows of one table may differ in them."""
    commit = made["git"] or ""
    changed = ", with uncommitted changes" if commit.endswith("-dirty") else ""
    said = f" (commit {commit.removesuffix('-dirty')[:7]}{changed})" if commit else ""
    versions = f"intrabatch {made['intrabatch']}{said}, torch {made['packages']['torch']}"
    system, threads = made["platform"].partition("-")[0], made["cpu_threads"]
    return f"{versions}, {system}, device {made['device']}, {threads} thread{'s' * (threads > 1)} a training."
