"""Tiers are answered as the command answers them, in records that lose nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import cacheplan
from conftest import ROOT
from test_answers import COMMAND, command

PLAIN = ROOT / "tests/fixtures/configs/Qwen__Qwen3-0.6B.json"
NEMOTRON = ROOT / "tests/fixtures/configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four documents in turn, which together do not fit a device of one and a half."""
    lines = []
    for at in range(16):
        first = at % 4 * 20
        blocks = [*range(first, first + 15), 1000 + at]
        line = {"timestamp": at, "input_length": 8000, "output_length": 10, "hash_ids": blocks}
        lines.append(json.dumps(line))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


def small() -> cacheplan.Plan:
    """Room for 12,000 tokens of 112 KiB beside the weights."""
    return cacheplan.plan(PLAIN, device="l4", max_seq_len=16_384, memory_bytes="3GiB", weights="1GiB")


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
def test_tiers_are_the_commands_byte_by_byte(trace: Path) -> None:
    plan = ["--device", "l4", "--max-seq-len", "16384", "--memory-bytes", "3GiB", "--weights", "1GiB"]
    asked = ["--trace", str(trace), "--host", "16GiB", "--disk", "64GiB", "--target-hit", "0.6", "--prices", "2,0.1"]
    told = small().tiers(
        trace=trace, host="16GiB", disk=64 << 30, target_hit=0.6, prices=(2, 0.1), running=1, host_rate="60GB"
    )
    more = ["--running", "1", "--host-rate", "60GB", "--json"]
    assert told.to_json() + "\n" == command("tiers", str(PLAIN), *plan, *asked, *more)
    nano = cacheplan.plan(NEMOTRON, device="h200", max_seq_len=16_384, checkpoints=64)
    ours = cacheplan.tiers(nano, "chat", host="64GiB", policy="coverage", stored_states="int8", chunk=128)
    flags = ["--device", "h200", "--max-seq-len", "16384", "--checkpoints", "64", "--workload", "chat"]
    more = ["--host", "64GiB", "--policy", "coverage", "--stored-states", "int8", "--chunk", "128", "--json"]
    assert ours.to_json() + "\n" == command("tiers", str(NEMOTRON), *flags, *more)


def test_records_have_all_that_the_answer_has(trace: Path) -> None:
    told = small().tiers(trace=trace, host="16GiB", target_hit=0.7, running=1)
    answer, data = told.answer, told.data["answer"]
    assert json.loads(json.dumps(dataclasses.asdict(answer))) == data
    # Of 16 prompts the first four are new, and of each other 15 of 15.6 blocks were there.
    assert answer.ceiling == pytest.approx(12 * 15 * 512 / (16 * 8000), abs=0.001)
    assert told.chosen is not None and told.chosen.hit_rate >= 0.7 > answer.planned.hit_rate
    assert 0 < told.chosen.sizes.host.bytes <= 16 << 30 and told.chosen.sizes.disk.bytes == 0
    assert any("--kv-offloading-size" in line for flags in told.engines for line in flags.lines)
    assert told.svg().startswith("<svg") and repr(told) == told.table()
    assert small().tiers(trace=trace, host="1GiB", target_hit=0.99).chosen is None


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("host", {"host": "much"}),
        ("host", {"host": 0}),
        ("disk", {"disk": "2048TiB"}),
        ("target_hit", {"target_hit": 1.5}),
        ("policy", {"policy": "newest"}),
        ("stored_states", {"stored_states": "int4"}),
        ("running", {"running": 0}),
        ("chunk", {"chunk": -1}),
        ("prices", {"prices": (1,)}),
        ("workload", {"workload": "chatter"}),
    ],
)
def test_what_is_no_question_is_refused_by_its_key(key: str, asked: dict[str, Any]) -> None:
    with pytest.raises(cacheplan.PlanError) as refused:
        small().tiers(**{"workload": "rag", **asked})
    assert refused.value.key == key
