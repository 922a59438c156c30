"""The table of questions that command, library and page answer alike, through Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cacheplan
from conftest import ROOT

COMMAND = os.environ.get("CACHEPLAN_COMMAND")
QUESTIONS: list[dict[str, Any]] = json.loads((ROOT / "tests/fixtures/questions.json").read_text())


def config(name: str) -> Path:
    return ROOT / "tests/fixtures/configs" / f"{name}.json"


def by_command(question: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    budget = folder / "budget.toml"
    budget.write_text(question["budget"])
    arguments = ["plan", str(config(question["model"])), "--format", "json", "--budget", str(budget)]
    arguments += ["--stage", str(question.get("stage", 0))]
    if question["device"]:
        arguments += ["--device-memory", question["device"]]
    if "draft" in question:
        arguments += ["--draft", str(config(question["draft"]))]
    if "engine" in question:
        arguments += ["--as", question["engine"]]
    if "measured" in question:
        measured = folder / "measured.toml"
        measured.write_text(question["measured"])
        arguments += ["--measured", str(measured)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CACHEPLAN__")}
    return subprocess.run(
        [str(COMMAND), *arguments], capture_output=True, text=True, check=False, env=environment, timeout=300
    )


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
@pytest.mark.parametrize("question", QUESTIONS, ids=[question["name"] for question in QUESTIONS])
def test_python_answers_as_the_command_does(question: dict[str, Any], tmp_path: Path) -> None:
    expected = by_command(question, tmp_path)
    keywords: dict[str, Any] = {"stage": question.get("stage", 0), "engine": question.get("engine")}
    if question["device"]:
        keywords["device"] = question["device"]
    if "draft" in question:
        keywords["draft"] = config(question["draft"])
    if "measured" in question:
        keywords["measured"] = tmp_path / "measured.toml"

    def ask() -> dict[str, Any]:
        # An empty text is a path of nothing.
        budget = question["budget"] or None
        plan = cacheplan.plan(config(question["model"]), budget=budget, **keywords)
        again = cacheplan.Plan.from_json(plan.to_json())
        assert (again.to_json(), again.table()) == (plan.to_json(), plan.table())
        if "engine" in question:
            assert question["engine"].partition("@")[0] in plan.table()
        answer: dict[str, Any] = json.loads(plan.to_json())
        return answer

    if expected.returncode == 0:
        assert ask() == json.loads(expected.stdout)
    else:
        with pytest.raises(cacheplan.CacheplanError):
            ask()
