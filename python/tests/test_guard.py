"""Guards at an engine's start; stand-ins have the names, signatures and attributes that vLLM and SGLang have there."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import cacheplan
from cacheplan import _sglang_guard, _vllm_guard
from conftest import ROOT, put

BYTES = 20 << 30
CORE = "vllm.v1.engine.core"


@dataclass(frozen=True)
class DType:
    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


BF16, F32, BYTE = DType("bfloat16", 2), DType("float32", 4), DType("uint8", 1)


@dataclass(frozen=True)
class FullAttentionSpec:
    """Of Qwen3-8B, where nothing else is said."""

    block_size: int = 16
    num_kv_heads: int = 8
    head_size: int = 128
    dtype: DType = BF16
    padding: int = 0

    @property
    def real_page_size_bytes(self) -> int:
        return 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @property
    def page_size_bytes(self) -> int:
        return self.real_page_size_bytes + self.padding


@dataclass(frozen=True)
class MambaSpec:
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    block_size: int = 4096
    prefix_cacheable = True

    @property
    def real_page_size_bytes(self) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    page_size_bytes = real_page_size_bytes


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict[str, Any]
    block_size: int = 16


def group(spec: Any, *layers: int) -> SimpleNamespace:
    return SimpleNamespace(layer_names=[f"model.layers.{layer}.self_attn.attn" for layer in layers], kv_cache_spec=spec)


def rank(*groups: SimpleNamespace, blocks: int) -> SimpleNamespace:
    return SimpleNamespace(num_blocks=blocks, kv_cache_groups=list(groups))


def config(**parallel: int) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=4096),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=False),
        parallel_config=SimpleNamespace(
            **{"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_rank": 0} | parallel
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=2048),
        speculative_config=None,
    )


def planner_of_32(vllm_config: Any, kv_cache_specs: Any, available_memory: Any) -> Any:
    return kv_cache_specs


def planner_of_33(vllm_config: Any, kv_cache_specs: Any, available_memory: Any, global_kv_cache_groups: Any) -> Any:
    return kv_cache_specs


QWEN = group(FullAttentionSpec(), *range(36))


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a plan down and names it to the guard."""

    def write(name: str = "Qwen__Qwen3-8B", engine: str = "vllm@0.33.0", **keys: Any) -> Path:
        told = {"max_seq_len": 4096, "max_num_tokens": 2048, "max_batch_size": 8, "cache_bytes": f"{BYTES}B"}
        made = cacheplan.plan(ROOT / f"tests/fixtures/configs/{name}.json", engine=engine, **told | keys)
        path = tmp_path / "plan.json"
        path.write_text(made.to_json())
        monkeypatch.setenv("CACHEPLAN_PLAN", str(path))
        return path

    return write


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> ModuleType:
    """The engine core as 0.33 binds its planner, which here gives what it is given."""
    for name in ("vllm.v1", "vllm.v1.engine"):
        put(monkeypatch, name)
    put(monkeypatch, "vllm", __version__="0.33.0")
    put(monkeypatch, "cacheplan._vllm_stats", install=lambda: None)
    monkeypatch.delenv("CACHEPLAN_GROUPS", raising=False)
    caplog.set_level(logging.INFO, "vllm.cacheplan")
    return put(monkeypatch, CORE, get_kv_cache_configs=planner_of_33)


def start(core: ModuleType, *ranks: Any, available: list[int] | None = None, told: Any = None) -> Any:
    more = [None] if core.get_kv_cache_configs.__wrapped__ is planner_of_33 else []
    available = available or [BYTES] * len(ranks)
    return core.get_kv_cache_configs(told or config(), list(ranks), available, *more)


def test_it_does_nothing_without_a_plan(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEPLAN_PLAN", raising=False)
    _vllm_guard.install()
    assert core.get_kv_cache_configs is planner_of_33


def test_both_engines_find_it() -> None:
    for group, module in (("vllm.general_plugins", _vllm_guard), ("sglang.srt.plugins", _sglang_guard)):
        (found,) = entry_points(group=group, name="cacheplan")
        assert found.load() is module.install


@pytest.mark.parametrize("planner", [planner_of_32, planner_of_33])
def test_a_start_as_planned_goes_on_and_its_log_names_the_owners(
    planner: Any, core: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = plan()
    monkeypatch.setenv("CACHEPLAN_ENFORCE", "refuse")
    core.get_kv_cache_configs = planner
    _vllm_guard.install()
    _vllm_guard.install()
    assert core.get_kv_cache_configs.__wrapped__ is planner, "wrapped once"
    decided = rank(QWEN, blocks=9102)
    assert start(core, decided) == [decided]
    owner, table = (record.getMessage() for record in caplog.records)
    assert owner == (
        "cacheplan: vLLM 0.33.0, replica 0, rank 0, group 0: FullAttentionSpec of layers 0-35, torch.bfloat16, "
        "64.00 KiB per block of 16 tokens; kv_cache_manager: one of 36 kv_paged alike in kv_factor 2, "
        "head_dim 128, bf16"
    )
    assert table.startswith(f"cacheplan: vLLM 0.33.0, replica 0, rank 0 is as {path} plans it\nvllm 0.33.0\n")


def test_a_start_is_held_to_the_plan_where_nobody_can_count_blocks_in_use(
    core: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan()
    put(monkeypatch, "cacheplan._vllm_stats")
    _vllm_guard.install()
    assert hasattr(core.get_kv_cache_configs, "guard")
    assert "blocks in use are not told: AttributeError" in caplog.text


DRIFTS = {
    "fewer bytes": (rank(QWEN, blocks=4551), 10 << 30, "cache_bytes", "the engine has 10.00 GiB less"),
    "other blocks": (
        rank(group(FullAttentionSpec(block_size=32), *range(36)), blocks=4551),
        BYTES,
        "tokens_per_block",
        "the engine was told another, or took its kernel's",
    ),
    "another dtype": (
        rank(group(FullAttentionSpec(dtype=BYTE), *range(36)), blocks=18204),
        BYTES,
        "num_blocks, FullAttentionSpec",
        "layers 0-35: f8_e4m3, planned bf16",
    ),
    "layers left out": (
        rank(group(FullAttentionSpec(), *range(35)), blocks=9102),
        BYTES,
        "layers",
        "layer 35: planned",
    ),
}


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("enforce", ["off", "warn", "refuse"])
def test_another_start_is_logged_warned_of_or_refused(
    drift: str,
    enforce: str,
    core: ModuleType,
    plan: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    decided, available, names, reason = DRIFTS[drift]
    path = plan()
    monkeypatch.setenv("CACHEPLAN_ENFORCE", enforce)
    _vllm_guard.install()
    told = config()
    told.cache_config.cache_dtype = "fp8"
    said = f"vLLM 0.33.0, replica 0, rank 0 is not as {path} plans it: {names}\n"
    if enforce == "refuse":
        with pytest.raises(cacheplan.EngineError) as refused:
            start(core, decided, available=[available], told=told)
        text = str(refused.value)
        assert text.startswith(said) and reason in text and text.endswith("CACHEPLAN_ENFORCE=warn")
        assert (refused.value.key, refused.value.found) == ("vllm", names)
    else:
        assert start(core, decided, available=[available], told=told) == [decided]
        last = caplog.records[-1]
        assert last.levelno == {"off": logging.INFO, "warn": logging.WARNING}[enforce]
        assert last.getMessage().startswith("cacheplan: " + said) and reason in last.getMessage()


def test_ranks_that_are_alike_are_judged_once_and_the_least_of_their_bytes_counts(
    core: ModuleType, plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plan(tp=2)
    _vllm_guard.install()
    halved = rank(group(FullAttentionSpec(num_kv_heads=4), *range(36)), blocks=18204)
    told = config(tensor_parallel_size=2, data_parallel_index=3)
    start(core, halved, halved, available=[BYTES + 4096, BYTES], told=told)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is as ")[0] for line in said[1:]] == ["cacheplan: vLLM 0.33.0, replica 3, ranks 0, 1"], (
        said
    )


def test_every_pipeline_stage_is_held_to_its_own_plan(
    core: ModuleType, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan(pp=2)
    whole = ROOT / "tests/fixtures/configs/Qwen__Qwen3-8B.json"
    ranks = cacheplan.plan(
        whole, engine="vllm", pp=2, max_seq_len=4096, max_num_tokens=2048, max_batch_size=8, cache_bytes=f"{BYTES}B"
    ).ranks
    assert ranks is not None
    files = []
    for number, stage in enumerate(ranks.stages):
        files.append(tmp_path / f"stage{number}.json")
        files[-1].write_text(stage.to_json())
    monkeypatch.setenv("CACHEPLAN_PLAN", os.pathsep.join(map(str, files)))
    _vllm_guard.install()
    stages = [rank(group(FullAttentionSpec(), *layers), blocks=18204) for layers in (range(18), range(18, 36))]
    start(core, *stages, told=config(pipeline_parallel_size=2))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert f"rank 0 is as {files[0]} plans it" in text and f"rank 1 is as {files[1]} plans it" in text, text


def test_a_hybrids_states_and_layers_of_several_sizes_are_read_from_their_specs(core: ModuleType) -> None:
    own = {"model.layers.1.mixer": FullAttentionSpec(num_kv_heads=2, padding=64), "visual.attn": FullAttentionSpec()}
    mixed = SimpleNamespace(layer_names=list(own), kv_cache_spec=UniformTypeKVCacheSpecs(own))
    state = MambaSpec(shapes=((96, 3), (8, 16, 16)), dtypes=(BF16, F32), block_size=4096)
    (only,) = _vllm_guard.starts(config(), [BYTES], [rank(group(state, 0, 2), mixed, blocks=7)])
    who, told = only
    assert who == "vLLM 0.33.0, replica 0, rank 0"
    states, pages = told.groups
    assert [(cache.layer, cache.bytes, cache.tokens) for cache in states.caches] == [(0, 8768, None), (2, 8768, None)]
    assert states.caches[0].dtypes == ("torch.bfloat16", "torch.float32")
    assert [(cache.layer, cache.bytes, cache.tokens) for cache in pages.caches] == [(1, 16384, 16), (None, 65536, 16)]
    assert told.facts["tokens_per_block"] == 16 and told.facts["groups"] == 2


@pytest.mark.parametrize("enforce", ["warn", "refuse"])
def test_a_planner_of_another_signature_is_not_wrapped_and_said(
    enforce: str, core: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan()
    monkeypatch.setenv("CACHEPLAN_ENFORCE", enforce)

    def moved(vllm_config: Any, specs: Any) -> Any: ...

    core.get_kv_cache_configs = moved
    said = f"vLLM 0.33.0 cannot be guarded: `{CORE}.get_kv_cache_configs` takes vllm_config, specs, not vllm_config, "
    if enforce == "refuse":
        with pytest.raises(cacheplan.EngineError, match=CORE):
            _vllm_guard.install()
    else:
        _vllm_guard.install()
        assert said in caplog.text
    assert core.get_kv_cache_configs is moved


@pytest.mark.parametrize("enforce", ["warn", "refuse"])
def test_a_decision_that_cannot_be_read_is_said(
    enforce: str, core: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan()
    monkeypatch.setenv("CACHEPLAN_ENFORCE", enforce)
    _vllm_guard.install()
    unknown = SimpleNamespace(num_blocks=1)
    said = "what this vllm decided cannot be read: AttributeError"
    if enforce == "refuse":
        with pytest.raises(cacheplan.EngineError, match=said):
            start(core, unknown)
    else:
        assert start(core, unknown) == [unknown] and said in caplog.text


@pytest.mark.parametrize(
    ("named", "enforce", "error"),
    [("absent.json", "off", cacheplan.BudgetError), (None, "stop", cacheplan.BudgetError)],
)
def test_a_plan_that_cannot_be_read_ends_the_start(
    named: str | None,
    enforce: str,
    error: type[Exception],
    core: ModuleType,
    plan: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan()
    if named is not None:
        monkeypatch.setenv("CACHEPLAN_PLAN", named)
    monkeypatch.setenv("CACHEPLAN_ENFORCE", enforce)
    with pytest.raises(error, match=named or "stop"):
        _vllm_guard.install()


class HookType(Enum):
    BEFORE, AFTER = "before", "after"


class Configurator:
    """SGLang's, as far as the guard looks at it: Qwen3-8B in pages of one token."""

    def __init__(self, tokens: int, **more: Any) -> None:
        self.page_size, self.kv_cache_dtype, self.gpu_id, self.is_draft_worker = 1, BF16, 0, False
        self.is_hybrid_swa, self.use_mla_backend, self.mambaish_config = False, False, None
        self.layer_info = SimpleNamespace(start_layer=0, end_layer=36)
        self.model_config = SimpleNamespace(
            context_len=4096, head_dim=128, v_head_dim=128, get_num_kv_heads=lambda tp, dcp: 8 // tp
        )
        self.server_args = SimpleNamespace(tp_size=1, pp_size=1, disable_radix_cache=True)
        self.tokens = tokens
        vars(self).update(more)

    def _profile_available_bytes(self, pre_model_load_memory: int) -> int:
        return pre_model_load_memory

    def _init_pools(self, *, sizes: Any, req_to_token_pool: Any, token_to_kv_pool_allocator: Any) -> Any:
        return sizes

    def configure(self, free: int) -> Any:
        self._profile_available_bytes(free)
        sizes = SimpleNamespace(
            max_total_num_tokens=self.tokens,
            max_running_requests=8,
            full_max_total_num_tokens=None,
            swa_max_total_num_tokens=None,
        )
        return self._init_pools(sizes=sizes, req_to_token_pool=None, token_to_kv_pool_allocator=None)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Calls hooks as SGLang's registry does."""

    class Configured(Configurator): ...

    def register(target: str, hook: Any, kind: HookType) -> None:
        original = getattr(Configurator, target.rpartition(".")[2])

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kind is HookType.BEFORE:
                assert hook(self, *args, **kwargs) is None
                return original(self, *args, **kwargs)
            result = original(self, *args, **kwargs)
            assert hook(result, self, *args, **kwargs) is None
            return result

        setattr(Configured, original.__name__, wrapped)

    for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.mem_cache"):
        put(monkeypatch, name)
    put(monkeypatch, "sglang.version", __version__="0.5.23")
    put(
        monkeypatch,
        "sglang.srt.plugins.hook_registry",
        HookRegistry=SimpleNamespace(register=register),
        HookType=HookType,
    )
    put(monkeypatch, _sglang_guard.MODULE, KVCacheConfigurator=Configured)
    schedule = SimpleNamespace(max_mamba_cache_size=None, max_total_tokens=None)
    put(
        monkeypatch,
        "sglang.srt.runtime_context",
        get_schedule=lambda: schedule,
        get_parallel=lambda: SimpleNamespace(attn_tp_size=1, attn_dcp_size=1),
    )
    caplog.set_level(logging.INFO, "sglang.cacheplan")
    return SimpleNamespace(Configured=Configured, schedule=schedule)


def test_sglangs_pools_are_held_to_the_plan_before_they_are_made(
    sglang: Any, plan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = plan(engine="sglang@0.5.23", prefix_caching=False)
    monkeypatch.setenv("CACHEPLAN_ENFORCE", "refuse")
    _sglang_guard.install()
    # 36 layers of 4 KiB a token.
    sglang.Configured(145635).configure(BYTES)
    assert f"SGLang 0.5.23, device 0 is as {path} plans it\nsglang 0.5.23\n" in caplog.text
    assert (
        "group 0: full of layers 0-35, torch.bfloat16, 4.00 KiB per block of 1 tokens; kv_cache_manager" in caplog.text
    )
    with pytest.raises(cacheplan.EngineError, match=r"device 0 is not as .* plans it: cache_bytes\n"):
        sglang.Configured(72817).configure(BYTES // 2)
    with pytest.raises(cacheplan.EngineError, match="layers 0-35: f32, planned bf16"):
        sglang.Configured(145635, kv_cache_dtype=F32).configure(BYTES)
    # The draft's are another's.
    sglang.Configured(1, is_draft_worker=True).configure(1)


def test_sglangs_stated_tokens_may_leave_bytes_over(sglang: Any, plan: Any, caplog: pytest.LogCaptureFixture) -> None:
    (pool,) = json.loads(plan(engine="sglang@0.5.23", prefix_caching=False).read_text())["pools"]
    _sglang_guard.install()
    tokens = (pool["units"] - pool["reserved"]) * pool["tokens_per_block"]
    sglang.schedule.max_total_tokens = tokens
    sglang.Configured(tokens).configure(2 * BYTES)
    assert "is as" in caplog.text and "cache_bytes" not in caplog.text
    sglang.Configured(1000).configure(2 * BYTES)
    assert "plans it: tokens\n" in caplog.text
    sglang.schedule.max_total_tokens = 1000
    sglang.Configured(1000).configure(2 * BYTES)
    assert "plans it: max_total_tokens, tokens\n" in caplog.text


def test_what_sglang_would_swallow_ends_the_start(sglang: Any, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(engine="sglang@0.5.23")
    monkeypatch.setenv("CACHEPLAN_ENFORCE", "refuse")
    monkeypatch.delattr(Configurator, "_init_pools")
    with pytest.raises(SystemExit, match=r"`KVCacheConfigurator\._init_pools` takes nothing that can be found"):
        _sglang_guard.install()


def test_windows_latents_and_states_of_sglang_are_read_from_its_configurator(sglang: Any) -> None:
    states = SimpleNamespace(
        full_attention_layer_ids=[1, 40],
        mamba2_cache_params=SimpleNamespace(
            layers=[0, 2, 41], mamba_cache_per_req=3 * 9344, dtype=SimpleNamespace(conv=BF16, temporal=F32)
        ),
    )
    sizes = SimpleNamespace(
        max_total_num_tokens=640, max_running_requests=2, full_max_total_num_tokens=512, swa_max_total_num_tokens=128
    )
    sglang.schedule.max_mamba_cache_size = 7
    told = _sglang_guard.start_of(sglang.Configured(640, mambaish_config=states), sizes, 1000)
    assert (told.facts["tokens"], told.facts["window_tokens"], told.facts["state_slots"]) == (512, 128, 7)
    assert told.facts["cache_bytes"] == 1000 + 8 * 3 * 9344
    assert [(group.kind, [cache.layer for cache in group.caches]) for group in told.groups] == [
        ("full", [1]),
        ("mamba", [0, 2]),
    ]
    windowed = sglang.Configured(640, is_hybrid_swa=True, use_mla_backend=True)
    windowed.layer_info = replace_namespace(
        windowed.layer_info, swa_attention_layer_ids=[0], full_attention_layer_ids=[1]
    )
    windowed.model_config = replace_namespace(
        windowed.model_config,
        swa_head_dim=64,
        swa_v_head_dim=32,
        get_swa_num_kv_heads=lambda tp: 2,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
    )
    swa, mla = _sglang_guard.start_of(windowed, sizes, None).groups
    assert (swa.kind, swa.caches[0].bytes, mla.kind, mla.caches[0].bytes) == ("swa", 384, "mla", 1152)


def replace_namespace(namespace: SimpleNamespace, **names: Any) -> SimpleNamespace:
    return SimpleNamespace(**vars(namespace) | names)
