"""Plans from Python are the command's, read like records, and refuse what makes no sense."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import cacheplan
from conftest import ROOT, ZOO

COMMAND = os.environ.get("CACHEPLAN_COMMAND")


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
@pytest.mark.parametrize("config", ZOO, ids=lambda path: path.stem)
def test_a_plan_is_the_commands_byte_by_byte(config: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CACHEPLAN__")}
    flags = ["--device-memory", "8xh200", "--max-seq-len", "4096", "--format", "json"]
    ran = subprocess.run(
        [str(COMMAND), "plan", str(config), *flags], capture_output=True, text=True, check=False, env=environment
    )
    try:
        ours = cacheplan.plan(config, device="8xh200", max_seq_len=4096).to_json() + "\n"
    except cacheplan.CacheplanError as error:
        assert ran.returncode != 0, error
        return
    assert ran.returncode == 0, ran.stderr
    assert ours == ran.stdout


@pytest.mark.parametrize("config", ZOO, ids=lambda path: path.stem)
def test_every_key_of_a_plan_is_in_its_records(config: Path) -> None:
    plan = cacheplan.plan(config, max_seq_len=4096, host_bytes="8GiB")
    assert sum(pool.bytes for pool in plan.pools) == plan.totals.managed_bytes + plan.totals.unmanaged_bytes
    assert {resource.pool for resource in plan.resources} <= {pool.id for pool in plan.pools}
    assert sum(line.bytes for line in plan.ledger) >= sum(pool.bytes for pool in plan.pools if pool.bytes)
    assert plan.limits.max_batch_size == plan.capacity.sequences
    assert plan.slots.live == plan.capacity.sequences
    assert plan.model.layers > 0 and plan.parallel.tp == 1 and plan.fingerprint.model
    assert plan.host is not None and plan.host.bytes == 8 << 30
    assert plan.check() == []


def test_a_config_is_a_path_a_mapping_or_text_alike(hybrid: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(hybrid))
    plans = [
        cacheplan.plan(source, max_seq_len=512) for source in (path, str(path), tmp_path, hybrid, path.read_text())
    ]

    # What has a path is called by it.
    def unnamed(plan: cacheplan.Plan) -> dict[str, object]:
        return plan.data | {"model": {key: value for key, value in plan.data["model"].items() if key != "name"}}

    assert all(unnamed(plan) == unnamed(plans[0]) for plan in plans)
    assert plans[0].model.name and plans[3].model.name is None


def test_a_budget_is_a_file_text_a_mapping_or_keywords_alike(hybrid: dict[str, object], tmp_path: Path) -> None:
    text = "max_seq_len = 512\n[memory]\nbytes = '64MiB'\n[dtypes]\nkv = 'fp8_e4m3'\n"
    path = tmp_path / "budget.toml"
    path.write_text(text)
    mapping = {"max_seq_len": 512, "memory": {"bytes": "64MiB"}, "dtypes": {"kv": "fp8_e4m3"}}
    plans = [cacheplan.plan(hybrid, budget=budget) for budget in (path, str(path), text, mapping)]
    plans.append(cacheplan.plan(hybrid, max_seq_len=512, memory_bytes="64MiB", kv_dtype="fp8_e4m3"))
    assert all(plan == plans[0] for plan in plans)
    assert cacheplan.plan(hybrid, budget=path, max_seq_len=256).limits.max_seq_len == 256


def test_every_key_of_a_budget_is_a_keyword(hybrid: dict[str, object]) -> None:
    keys = cacheplan.budget_keys()
    assert len(keys) > 40 and len({key.keyword for key in keys}) == len(keys)
    for key in keys:
        # What is wrong of a value is said of the key by its keyword.
        with pytest.raises(cacheplan.BudgetError) as refused:
            cacheplan.plan(hybrid, **{key.keyword: "\x00no such value"})
        assert key.keyword in str(refused.value) or key.path in str(refused.value)


def test_an_odd_text_in_a_budget_keeps_its_meaning(hybrid: dict[str, object]) -> None:
    for odd in ("\x7f", '"\n[memory]\nbytes = 1', "\\u0041", "\U0001f600"):
        with pytest.raises(cacheplan.BudgetError):
            cacheplan.plan(hybrid, budget={"dtypes": {"kv": odd}})
        with pytest.raises(cacheplan.BudgetError):
            cacheplan.plan(hybrid, budget={odd: 1})


def test_errors_say_the_key_what_was_found_and_what_would_do(hybrid: dict[str, object]) -> None:
    with pytest.raises(cacheplan.BudgetError) as budget:
        cacheplan.plan(hybrid, max_sequence_len=3)
    assert budget.value.key == "max_sequence_len" and "max_seq_len" in str(budget.value.hint)
    with pytest.raises(cacheplan.ModelError) as model:
        cacheplan.plan({**hybrid, "model_type": "nemotronh"})
    assert (model.value.key, model.value.found) == ("model_type", "nemotronh")
    assert "nemotron_h" in str(model.value.hint)
    with pytest.raises(cacheplan.DoesNotFit) as short:
        cacheplan.plan(hybrid, memory_bytes="1KiB", max_seq_len=512)
    assert short.value.found is not None and short.value.found.endswith("bytes short")
    with pytest.raises(cacheplan.ModelError):
        cacheplan.plan(3)
    with pytest.raises(cacheplan.BudgetError):
        cacheplan.plan(hybrid, budget=3)
    with pytest.raises(cacheplan.BudgetError):
        cacheplan.plan(hybrid, device="h1000")
    with pytest.raises(cacheplan.BudgetError):
        cacheplan.plan(hybrid, stage=1)
    with pytest.raises(cacheplan.ModelError):
        cacheplan.plan("no/such/model")
    again = pickle.loads(pickle.dumps(short.value))
    assert (type(again), again.key, again.hint) == (cacheplan.DoesNotFit, short.value.key, short.value.hint)


def test_a_plan_is_explained_compared_exported_and_diffed(hybrid: dict[str, object]) -> None:
    plan = cacheplan.plan(hybrid, device="24GiB", max_seq_len=512)
    larger = cacheplan.plan(hybrid, device="48GiB", max_seq_len=512)
    assert f"{plan.capacity.sequences} sequences of 512 tokens" in plan.explain()
    assert plan.diff(plan) == "" and "capacity" in plan.diff(larger).lower()
    with pytest.raises(cacheplan.PlanError) as unknown:
        plan.explain("no such pool")
    assert unknown.value.found == "no such pool"
    engine = plan.engine("vllm", version="0.33.0")
    assert (engine.name, engine.version) == ("vllm", "0.33.0") and engine.sequences > 0
    export = plan.export("vllm", model="org/model")
    assert "org/model" in export.text and export.settings
    with pytest.raises(cacheplan.ExportError):
        plan.export("vllm", model="--trust-remote-code")
    with pytest.raises(cacheplan.EngineError):
        plan.engine("vlllm")
    row = plan.compare("vllm")
    assert row["engine"] == "vllm" and "changes" not in row
    beside = plan.compare("vllm", version="0.33.0", since="0.11.0")
    assert beside["version"] == "0.33.0" and all("since vllm" in change for change in beside.get("changes", []))
    assert plan._repr_html_().startswith("<svg") and repr(plan) == plan.table()


def test_ranks_are_a_plan_for_each_stage_and_what_all_agreed_on(hybrid: dict[str, object]) -> None:
    first, second = (
        cacheplan.plan(hybrid, device="24GiB", max_seq_len=512, tp=2, pp=2, host_bytes="1GiB", stage=stage)
        for stage in (0, 1)
    )
    ranks = second.ranks
    assert ranks is not None and ranks.stages == (first, second) and ranks.parallel == second.parallel
    for stage in ranks.stages:
        assert stage.capacity.sequences == ranks.agreement.sequences
        assert stage.capacity.spare_tokens == ranks.agreement.spare_tokens
        assert stage.host is not None and stage.host.sequences == ranks.agreement.host_sequences
        assert stage.check() == [] and stage.ranks == ranks
    other = cacheplan.plan(hybrid, device="48GiB", max_seq_len=512, tp=2, pp=2, host_bytes="1GiB").ranks
    assert other is not None and other.hash != ranks.hash
    assert cacheplan.plan(hybrid, max_seq_len=512).ranks is None
    with pytest.raises(cacheplan.PlanError):
        _ = pickle.loads(pickle.dumps(second)).ranks


@pytest.mark.skipif(COMMAND is None, reason="CACHEPLAN_COMMAND names no built command")
def test_ranks_are_the_commands(hybrid: dict[str, object], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(hybrid))
    flags = ["--device-memory", "24GiB", "--max-seq-len", "512", "--tp", "2", "--pp", "2", "--ranks"]
    asked = [str(COMMAND), "plan", str(config), *flags, "--format", "json"]
    said = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    ranks = cacheplan.plan(config, device="24GiB", max_seq_len=512, tp=2, pp=2).ranks
    assert ranks is not None and said["hash"] == ranks.hash
    assert said["stages"] == [stage.data for stage in ranks.stages]
    agreed = {key: value for key, value in asdict(ranks.agreement).items() if value is not None}
    assert said["agreement"] == agreed


def test_a_plan_travels_as_json_and_pickle(hybrid: dict[str, object]) -> None:
    plan = cacheplan.plan(hybrid, max_seq_len=512)
    for again in (cacheplan.Plan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        assert again == plan and hash(again) == hash(plan)
        with pytest.raises(cacheplan.PlanError) as unknown:
            again.explain()
        assert unknown.value.hint is not None
    damaged = json.loads(plan.to_json())
    damaged["pools"][0]["units"] += 1
    with pytest.raises(cacheplan.PlanFileError):
        cacheplan.Plan.from_json(json.dumps(damaged))


def test_a_device_by_its_bytes_is_that_of_its_size(hybrid: dict[str, object]) -> None:
    assert cacheplan.plan(hybrid, device=24 << 30).capacity == cacheplan.plan(hybrid, device="24GiB").capacity


def test_a_transformers_config_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_hidden_layers=3)
    plan = cacheplan.plan(config, max_seq_len=512, max_batch_size=2)
    assert plan.model.layers == 3


def test_the_examples_run() -> None:
    folder = ROOT / "python/examples"
    config = ROOT / "tests/fixtures/configs/Qwen__Qwen3-Next-80B-A3B-Thinking.json"
    for command in (["rent_a_gpu.py", str(config)], ["new_layer_kind.py"]):
        ran = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        assert "sequences" in ran.stdout or "cached" in ran.stdout
