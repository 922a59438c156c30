"""Sweeps leave nothing out, go on where they were interrupted, and run the same on Ray."""

from __future__ import annotations

import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cacheplan
from cacheplan import _sweep
from conftest import ZOO

MODELS = ZOO[:6]
BUDGETS = {str(tokens): {"device": "8xh200", "max_seq_len": tokens} for tokens in (1024, 2048, 4096)}


def test_a_sweep_leaves_nothing_out(hybrid: dict[str, object]) -> None:
    models = {"hybrid": hybrid, "wrong": {"model_type": "none such"}}
    budgets = {"short": {"max_seq_len": 256, "device": "24GiB"}, "tiny": {"memory_bytes": "1KiB"}}
    rows = list(cacheplan.sweep(models, budgets, ["vllm", "no-engine"], ["chat"]))
    told = [(row["model"], row["budget"], row["engine"], row["workload"], row["error"] is None) for row in rows]
    assert told == [
        ("hybrid", "short", None, None, True),
        ("hybrid", "short", "vllm", None, True),
        ("hybrid", "short", "no-engine", None, False),
        ("hybrid", "short", None, "chat", True),
        ("hybrid", "tiny", None, None, False),
        ("wrong", "short", None, None, False),
        ("wrong", "tiny", None, None, False),
    ]
    plan = cacheplan.plan(hybrid, **budgets["short"])
    assert rows[0]["sequences"] == plan.capacity.sequences
    assert rows[1]["sequences"] == plan.engine("vllm").sequences
    assert rows[3]["hit_rate"] == plan.simulate("chat", policies=["coverage"]).data[0]["hit_rate"]


def test_an_interrupted_sweep_goes_on_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(cacheplan.sweep(MODELS, BUDGETS, ["vllm"]))
    file = tmp_path / "sweep.jsonl"
    begun = cacheplan.sweep(MODELS, BUDGETS, ["vllm"], file=file)
    assert list(itertools.islice(begun, 9)) == whole[:9]
    begun.close()
    kept = file.read_bytes().splitlines(keepends=True)
    assert 0 < len(kept) < len(MODELS) * len(BUDGETS)
    # Its last line was cut while it was written.
    file.write_bytes(b"".join(kept)[:-20])
    planned = 0

    def counted(*arguments: Any, **keys: Any) -> cacheplan.Plan:
        nonlocal planned
        planned += 1
        return cacheplan.plan(*arguments, **keys)

    monkeypatch.setattr("cacheplan._sweep.plan", counted)
    assert list(cacheplan.sweep(MODELS, BUDGETS, ["vllm"], file=file)) == whole
    assert planned == len(MODELS) * len(BUDGETS) - (len(kept) - 1)
    # All of it is there now, and is read.
    assert list(cacheplan.sweep(MODELS, BUDGETS, ["vllm"], file=file)) == whole
    assert planned == len(MODELS) * len(BUDGETS) - (len(kept) - 1)
    # A budget that was changed under its old name is planned anew.
    changed = {**BUDGETS, "1024": {"device": "8xh200", "max_seq_len": 512}}
    rows = list(cacheplan.sweep(MODELS, changed, ["vllm"], file=file))
    assert rows == list(cacheplan.sweep(MODELS, changed, ["vllm"])) and rows != whole


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    for text in ("not ours", '{"a": 1}\n', "[]\n", '{"key": "', '{"key": 1, "rows": []}\nnot ours'):
        file = tmp_path / "other.txt"
        file.write_text(text)
        if text == '{"key": "':
            assert len(list(cacheplan.sweep(MODELS[:1], BUDGETS, file=file))) == 3
            assert all(json.loads(line) for line in file.read_text().splitlines())
            continue
        with pytest.raises(cacheplan.BudgetError) as refused:
            list(cacheplan.sweep(MODELS[:1], BUDGETS, file=file))
        assert refused.value.key == "file" and file.read_text() == text


@pytest.mark.skipif("CACHEPLAN_RAY" not in os.environ, reason="a cluster of two nodes is started with CACHEPLAN_RAY=1")
def test_a_sweep_on_ray_survives_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    do = _sweep._do
    budgets = {str(tokens): {"device": "8xh200", "max_seq_len": tokens} for tokens in range(512, 512 * 41, 512)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        doomed = lost.node_id
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()

        def marked(share: Any) -> Any:
            node = ray.get_runtime_context().get_node_id()
            (tmp_path / f"{node}-{share.cases[0].key}").touch()
            if node == doomed:
                # It never ends what it has begun.
                time.sleep(3600)
            return do(share)

        monkeypatch.setattr("cacheplan._sweep._do", marked)
        with ThreadPoolExecutor(1) as driver:
            swept = driver.submit(list, cacheplan.sweep(ZOO, budgets, ["vllm", "sglang"], ray=cluster.address))
            end = time.monotonic() + 120
            while not list(tmp_path.glob(f"{doomed}-*")):
                assert time.monotonic() < end, "the node got no share"
                time.sleep(0.1)
            cluster.remove_node(lost, allow_graceful=False)
            on_ray = swept.result(timeout=120)
    finally:
        ray.shutdown()
        cluster.shutdown()
    begun = {path.name.split("-")[1] for path in tmp_path.glob(f"{doomed}-*")}
    again = {path.name.split("-")[1] for path in tmp_path.iterdir() if not path.name.startswith(doomed)}
    assert begun and begun <= again
    monkeypatch.undo()
    assert on_ray == list(cacheplan.sweep(ZOO, budgets, ["vllm", "sglang"]))
