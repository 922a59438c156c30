"""What is asked beside a plan is answered as the command answers it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import cacheplan
from conftest import ROOT

COMMAND = os.environ.get("CACHEPLAN_COMMAND")
LLAMA = ROOT / "tests/fixtures/configs/meta-llama__Meta-Llama-3.1-8B.json"
NEMOTRON = ROOT / "tests/fixtures/configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json"
PRICES = 'currency = "USD"\n[per_hour]\nh100 = 2.5\nh200 = 3\nb200 = 5\nmi300x = 2\n'


def command(*arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CACHEPLAN__")}
    ran = subprocess.run(
        [str(COMMAND), *arguments], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
def test_a_fit_is_the_commands_byte_by_byte(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    flags = ["--context", "32768", "--sequences", "100", "--format", "json"]
    plain = cacheplan.fit(NEMOTRON, context=32_768, sequences=100)
    assert plain.to_json() + "\n" == command("fit", str(NEMOTRON), *flags)
    priced = cacheplan.plan(NEMOTRON, max_seq_len=32_768).fit(100, gpus=["h100", "24GiB"], max_gpus=4, prices=prices)
    more = ["--gpus", "h100,24GiB", "--max-gpus", "4", "--prices", str(prices)]
    assert priced.to_json() + "\n" == command("fit", str(NEMOTRON), *flags, *more)
    assert priced.best is not None and priced.data["currency"] == "USD"
    assert priced.csv() == command("fit", str(NEMOTRON), *flags[:-1], "csv", *more)
    stated = {"kv_dtype": "fp8", "ssm_dtype": "f32", "engines": ["vllm"], "margin": 20}
    told = cacheplan.fit(NEMOTRON, context=32_768, sequences=100, gpus=["h100"], max_gpus=2, **stated)
    more = ["--gpus", "h100", "--max-gpus", "2", "--kv-dtype", "fp8", "--ssm-dtype", "f32", "--as", "vllm"]
    assert told.to_json() + "\n" == command("fit", str(NEMOTRON), *flags, *more, "--margin", "20")
    assert any(fit.get("engine") for fit in told.data["fits"])


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
@pytest.mark.parametrize("workload", ["chat", "agents", "rag"])
def test_a_simulation_is_the_commands_byte_by_byte(workload: str, tmp_path: Path) -> None:
    plan = cacheplan.plan(NEMOTRON, max_seq_len=16_384, checkpoints=8)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    flags = ["--workload", workload, "--policy", "coverage", "--format", "json"]
    ours = plan.simulate(workload, policies=["coverage"])
    assert ours.to_json() + "\n" == command("simulate", "--plan", str(path), *flags)
    free = cacheplan.simulate(workload, policies=["coverage"], checkpoints=3, kv_tokens="unlimited", chunk=128)
    sizes = ["--checkpoints", "3", "--kv-tokens", "unlimited", "--chunk", "128"]
    assert free.to_json() + "\n" == command("simulate", *flags, *sizes)


def handing(**keys: object) -> cacheplan.Handing:
    prefill = cacheplan.plan(LLAMA, device="2xh100", tokens_per_block=32)
    decode = cacheplan.plan(LLAMA, device="4xh100", tokens_per_block=32, tp=1, dp=4)
    return cacheplan.disaggregate(prefill, decode, **{"prompt": 8192, "output": 512, "link": 50e9} | keys)


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
def test_sides_of_their_own_are_the_commands_byte_by_byte() -> None:
    sides = ["--prefill", "2xh100", "--decode", "4xh100", "--on-decode", "tp=1", "--on-decode", "dp=4"]
    request = ["--link", "50", "--prompt", "8192", "--output", "512", "--tokens-per-block", "32"]
    assert handing().to_json() + "\n" == command("disaggregate", str(LLAMA), *sides, *request, "--json")


def test_what_is_handed_over_is_counted_and_what_cannot_be_is_refused(llama: cacheplan.Plan) -> None:
    ours = handing()
    # 32 layers of 8 heads of 128 channels, keys and values of 16 bits.
    assert ours.data["handover"]["bytes"] == 131_072 * 8192
    assert "HANDED OVER" in ours.table() and repr(ours) == ours.table()
    for wrong in ({"link": 0}, {"output": 1}, {"prompt": 200_000}):
        with pytest.raises(cacheplan.PlanError):
            handing(**wrong)
    read = cacheplan.Plan.from_json(llama.to_json())
    with pytest.raises(cacheplan.PlanError) as refused:
        cacheplan.disaggregate(read, llama, prompt=64, output=8, link=1e9)
    assert refused.value.hint is not None


def test_a_trace_is_simulated(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]}
    trace.write_text("".join(json.dumps({**line, "timestamp": at}) + "\n" for at in range(0, 4000, 1000)))
    simulation = cacheplan.simulate(trace=trace, policies=["complete-lru"])
    assert [report["scenario"]["policy"] for report in simulation.data] == ["complete-lru"]
    assert 0 < simulation.data[0]["hit_rate"] < 1
    assert simulation.svg().startswith("<svg") and "complete-lru" in repr(simulation)


def test_what_cannot_be_asked_is_refused(tmp_path: Path, llama: cacheplan.Plan) -> None:
    for key, asked in {
        "gpus": {"gpus": ["h1000"]},
        "weights": {"weights": "many"},
        "engines": {"engines": ["vlm"]},
        "prices": {"prices": {"currency": "USD", "per_hour": {"h100": -1}}},
    }.items():
        with pytest.raises(cacheplan.BudgetError) as refused:
            llama.fit(8, **asked)
        assert refused.value.key == key
    with pytest.raises(cacheplan.PlanError) as again:
        cacheplan.Plan.from_json(llama.to_json()).fit(8)
    assert again.value.hint is not None
    nothing = llama.fit(10**9, gpus=["24GiB"], max_gpus=1)
    assert nothing.best is None and nothing.data["fits"]
    for key, sizes in {
        "workload": {"workload": "chatter"},
        "policies": {"workload": "chat", "policies": ["newest"]},
        "checkpoints": {"workload": "chat", "checkpoints": "few"},
        "trace": {"trace": tmp_path / "none.jsonl"},
    }.items():
        with pytest.raises(cacheplan.PlanError) as refused_plan:
            llama.simulate(**sizes)
        assert refused_plan.value.key == key
    with pytest.raises(cacheplan.PlanError):
        llama.simulate()


def test_a_cache_that_nobody_knows_is_planned_as_data(hybrid: dict[str, object]) -> None:
    ring = cacheplan.Cache("acme.embedding_ring", {"length": 64, "channels": 256}, "f16", layers=[1, 3])
    keys = cacheplan.Cache("acme.keys", {"width": 32}, "bf16", layers=[0], growth="paged", window=256)
    table = cacheplan.Cache("acme.table", {"rows": 10, "columns": 4}, "int8", growth="fixed")
    plan = cacheplan.plan(hybrid, caches=[ring, keys, table], max_seq_len=1024, max_batch_size=4)
    ours = {resource.name: resource for resource in plan.resources if resource.kind.startswith("acme.")}
    assert list(ours) == ["embedding_ring_1", "embedding_ring_3", "keys_0", "table"]
    assert ours["embedding_ring_1"].bytes_per_sequence == 64 * 256 * 2
    assert (ours["keys_0"].bytes_per_token, ours["table"].bytes_fixed) == (64, 40)
    assert plan.check() == [] and "acme.embedding_ring" in plan.explain("embedding_ring_1")
    without = cacheplan.plan(hybrid, max_seq_len=1024, max_batch_size=4)
    assert len(plan.resources) == len(without.resources) + 4
    # A book serves them as it serves all others.
    with cacheplan.CacheBook(plan) as book:
        assert book.step([(book.admit(5), 5)]).total_tokens == 5
    for wrong in (
        cacheplan.Cache("ring", {"length": 64}, "f16", layers=[1]),
        cacheplan.Cache("acme.ring", {"length": 0}, "f16", layers=[1]),
        cacheplan.Cache("acme.ring", {"length": 64}, "f15", layers=[1]),
        cacheplan.Cache("acme.ring", {"length": 64}, "f16", layers=[4]),
        cacheplan.Cache("acme.ring", {"length": 64}, "f16", growth="sometimes"),
    ):
        with pytest.raises(cacheplan.ModelError) as refused:
            cacheplan.plan(hybrid, caches=[wrong])
        assert refused.value.key == "caches"
    with pytest.raises(cacheplan.ModelError, match="embedding_ring_1"):
        cacheplan.plan(hybrid, caches=[ring, ring])
