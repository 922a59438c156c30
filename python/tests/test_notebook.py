"""The notebook runs from its first cell to its last, and what it plots is what plans say."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

NOTEBOOK = ROOT / "python/examples/capacity.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_runs_and_plots_what_plans_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, Any] = {}
    figures = []
    for cell in code_cells():
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
        figures += [names["figure"]] if cell.rstrip().endswith("figure") else []
    assert len(figures) == 2
    hybrid, dense = (line.get_ydata() for line in figures[0].axes[0].get_lines())
    assert list(hybrid) == sorted(hybrid, reverse=True)
    assert all(more > less for more, less in zip(hybrid[3:], dense[3:], strict=True)), "as the text says"
    bars = [bar.get_width() * (1 << 30) for bar in figures[1].axes[0].patches]
    assert sum(bars) == pytest.approx(sum(line.bytes for line in names["lines"]))
    assert "would admit" in capsys.readouterr().out


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
    assert Path(NOTEBOOK).read_text().endswith("\n")
