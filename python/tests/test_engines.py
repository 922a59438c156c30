"""Engines that are installed are asked in their own words; here stand-ins with the names that ours calls are asked."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest

import cacheplan
from cacheplan import sglang, vllm
from conftest import ROOT, put

QWEN = ROOT / "tests/fixtures/configs/Qwen__Qwen3-8B.json"
BYTES = 20 << 30


class Layer:
    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def get_kv_cache_spec(self, config: Any) -> Any:
        return self.spec


class Told(SimpleNamespace):
    """A context manager that does nothing, as `set_current_vllm_config` returns one."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> SimpleNamespace:
    """vLLM 0.33.0 as far as a plan of Qwen3-8B in 20 GiB goes; its numbers are those that it gave."""
    state = SimpleNamespace(blocks=9102, groups=["all"], specs=None)

    def configs(config: Any, specs: Any, available: list[int], groups: Any) -> list[Any]:
        assert (available, groups) == ([BYTES], state.groups)
        state.specs = specs
        return [SimpleNamespace(num_blocks=state.blocks, kv_cache_groups=groups)]

    platform = SimpleNamespace(get_device_capability=lambda: SimpleNamespace(to_int=lambda: 90))
    put(monkeypatch, "vllm")
    put(monkeypatch, "vllm.config", set_current_vllm_config=lambda config: Told())
    put(monkeypatch, "vllm.platforms", current_platform=platform)
    for package in ("vllm.v1", "vllm.v1.core", "vllm.model_executor", "vllm.model_executor.layers"):
        put(monkeypatch, package)
    put(monkeypatch, "vllm.model_executor.layers.attention_layer_base", AttentionLayerBase=Layer)
    put(
        monkeypatch,
        "vllm.v1.core.kv_cache_utils",
        get_max_concurrency_for_kv_cache_config=lambda config, made: made.num_blocks / 256,
    )
    put(
        monkeypatch,
        "vllm.v1.core.kv_cache_planning",
        get_global_kv_cache_groups=lambda config, specs: state.groups,
        get_kv_cache_configs=configs,
    )
    put(monkeypatch, "vllm.v1.core.single_type_kv_cache_manager", register_all_kvcache_specs=lambda config: None)
    monkeypatch.setattr(vllm, "_version", lambda: "0.33.0")
    (tmp_path / "config.json").write_text(QWEN.read_text())
    state.config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), hf_config=None, max_model_len=4096),
        cache_config=SimpleNamespace(
            cache_dtype="auto", enable_prefix_caching=False, block_size=16, kv_cache_layout=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
        compilation_config=SimpleNamespace(
            static_forward_context={"0": Layer("spec"), "1": object(), "2": Layer(None)}
        ),
        adjust_dcp_kv_cache_interleave_size=lambda groups: None,
    )
    return state


def test_vllms_planner_stands_beside_ours(engine: SimpleNamespace) -> None:
    equal = vllm.compare(engine.config, BYTES)
    assert engine.specs == [{"0": "spec"}]
    assert equal.theirs == vllm.Planned(num_blocks=9102, groups=1, block_size=16, tokens=145632)
    assert equal.theirs == equal.ours and equal.differences == {} and "differs" not in str(equal)
    assert equal.plan.model.type == "qwen3"
    engine.blocks = 8000
    fewer = vllm.compare(engine.config, BYTES, specs={"0": "given"})
    assert engine.specs == [{"0": "given"}]
    assert fewer.differences == {"num_blocks": (8000, 9102), "tokens": (128000, 145632)}
    assert str(fewer).count("differs") == 2


def test_what_vllm_is_told_reaches_our_plan(engine: SimpleNamespace) -> None:
    engine.config.cache_config.cache_dtype = "fp8"
    engine.config.cache_config.block_size, engine.config.cache_config.user_specified_block_size = 32, True
    engine.config.parallel_config.tensor_parallel_size = 2
    told = vllm.compare(engine.config, BYTES)
    assert told.plan.parallel.tp == 2 and told.plan.resources[0].dtype == "f8_e4m3"
    assert told.ours.block_size == 32
    engine.config.cache_config.num_gpu_blocks_override = 7700
    assert vllm.compare(engine.config, BYTES).ours.num_blocks == 7700


def test_a_planner_that_has_moved_on_is_refused(engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "vllm.v1.core.kv_cache_planning")
    with pytest.raises(cacheplan.EngineError) as moved:
        vllm.compare(engine.config, BYTES)
    assert (moved.value.key, moved.value.found) == ("vllm", "0.33.0")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_engine_that_is_not_installed_is_named(name: str, llama: cacheplan.Plan) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(cacheplan.EngineError) as absent:
        vllm.compare(None, BYTES) if name == "vllm" else sglang.server_args(llama, "org/model")
    assert (absent.value.key, absent.value.hint) == (name, f"pip install {name}")


def test_sglang_reads_a_plans_flags(monkeypatch: pytest.MonkeyPatch, llama: cacheplan.Plan) -> None:
    class ServerArgs(SimpleNamespace):
        @staticmethod
        def add_cli_args(parser: Any) -> None:
            parser.add_argument("--model-path")
            for setting in llama.export("sglang", model="org/model").settings:
                options = {"action": "store_true"} if setting.value is True else {"type": type(setting.value)}
                parser.add_argument(f"--{setting.key}", **options)

        @classmethod
        def from_cli_args(cls, parsed: Any) -> ServerArgs:
            return cls(**vars(parsed))

    for package in ("sglang", "sglang.srt"):
        put(monkeypatch, package)
    put(monkeypatch, "sglang.srt.server_args", ServerArgs=ServerArgs)
    told = sglang.server_args(llama, "org/model", flags=("--context-length=99",))
    assert (told.model_path, told.context_length) == ("org/model", 99)
    assert told.max_running_requests == llama.limits.max_batch_size
    with pytest.raises(cacheplan.EngineError) as unknown:
        sglang.server_args(llama, "org/model", flags=("--max-total-tokens=many",))
    assert unknown.value.key == "sglang"
