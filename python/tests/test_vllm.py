"""Our platform, builder and logger of vLLM; stand-ins have the names, signatures and attributes that 0.33 has there."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest

import cacheplan
from cacheplan import _vllm_guard, _vllm_platform
from conftest import ROOT, put

PLANNING, INTERFACE = "vllm.v1.core.kv_cache_planning", "vllm.v1.kv_cache_interface"


class Vendor:
    """What vLLM detects by itself."""

    @classmethod
    def get_kv_cache_config_builder_cls(cls, vllm_config: Any) -> str:
        return str(vllm_config)


@pytest.fixture
def platforms(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Two that can be probed, of which one is there and one cannot be asked for."""
    for name in ("vllm", "vllm.v1", "vllm.v1.core"):
        put(monkeypatch, name)
    module = put(
        monkeypatch,
        "vllm.platforms",
        builtin_platform_plugins={"cuda": lambda: "a_vendor.Vendor", "tpu": lambda: None, "rocm": lambda: 1 // 0},
    )
    put(monkeypatch, "vllm.platforms.interface", Platform=Vendor)
    put(monkeypatch, "a_vendor", Vendor=Vendor)
    monkeypatch.setenv(_vllm_platform.GROUPS, "16")
    _vllm_platform._platform.cache_clear()
    caplog.set_level(logging.INFO, "vllm.cacheplan")
    return module


def test_vllm_finds_the_platform_and_no_logger_of_ours() -> None:
    (found,) = entry_points(group="vllm.platform_plugins", name="cacheplan")
    assert found.load() is _vllm_platform.platform
    # One would turn statistics on for everybody.
    assert not entry_points(group="vllm.stat_logger_plugins", name="cacheplan")


@pytest.mark.parametrize("said", [None, ""])
def test_there_is_no_platform_of_ours_unless_groups_are_asked_for(
    said: str | None, platforms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(_vllm_platform.GROUPS)
    if said is not None:
        monkeypatch.setenv(_vllm_platform.GROUPS, said)
    assert _vllm_platform.platform() is None


@pytest.mark.parametrize("said", ["0", "-1", "many", "1e9", "9" * 5000])
def test_groups_that_are_no_number_are_refused(said: str, platforms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_vllm_platform.GROUPS, said)
    with pytest.raises(cacheplan.BudgetError, match=_vllm_platform.GROUPS):
        _vllm_platform.platform()


def test_it_is_the_detected_platform_but_for_the_builder(platforms: Any) -> None:
    name = _vllm_platform.platform()
    assert name == "cacheplan._vllm_platform.Platform"
    ours: Any = import_module(name.rpartition(".")[0]).Platform
    assert issubclass(ours, Vendor) and import_module("cacheplan._vllm_platform").Platform is ours
    assert ours.get_kv_cache_config_builder_cls(_vllm_platform.THEIRS) == _vllm_platform.OURS
    assert ours.get_kv_cache_config_builder_cls("a_vendor.Builder") == "a_vendor.Builder"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tpu": lambda: "another.Vendor"}, "several platforms"),
        ({"cuda": lambda: None}, "no platform"),
        ({}, "in one way alone"),
    ],
)
def test_where_it_cannot_be_the_platform_is_vllms_own_and_why_is_said(
    change: Any, why: str, platforms: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    platforms.builtin_platform_plugins |= change
    if not change:
        put(monkeypatch, "vllm.platforms.interface", Platform=object)
    assert _vllm_platform.platform() is None
    assert why in caplog.text


@dataclass(frozen=True)
class Spec:
    """Of attention, a window or states: the blocks of a group that a sequence holds are said."""

    kind: str
    blocks: int
    block_size: int = 16
    page_size_padded: int | None = None

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or 4096

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        return self.blocks * self.page_size_bytes


@dataclass
class KVCacheGroupSpec:
    layer_names: list[str]
    kv_cache_spec: Any
    is_eagle_group: bool = False


class DefaultKVCacheConfigBuilder:
    """vLLM's rule for kinds of equal pages, and its block as wide as the widest group."""

    def get_kv_cache_groups(self, vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[KVCacheGroupSpec]:
        kinds: dict[Any, list[str]] = {}
        for name, spec in kv_cache_spec.items():
            kinds.setdefault(spec, []).append(name)
        least, most = (function(map(len, kinds.values())) for function in (min, max))
        size = most if most < 1.5 * least else least
        counts = [(spec, names, -(-len(names) // size)) for spec, names in kinds.items()]
        return [KVCacheGroupSpec(names[at::count], spec) for spec, names, count in counts for at in range(count)]

    def get_kv_cache_config_from_groups(self, vllm_config: Any, groups: list[Any], num_blocks: int) -> Any:
        size = num_blocks * max(len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in groups)
        return SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=size)])


@pytest.fixture
def builder(platforms: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    put(monkeypatch, PLANNING, DefaultKVCacheConfigBuilder=DefaultKVCacheConfigBuilder)
    put(monkeypatch, INTERFACE, KVCacheGroupSpec=KVCacheGroupSpec)
    monkeypatch.delitem(sys.modules, "cacheplan._vllm_builder", raising=False)
    yield import_module("cacheplan._vllm_builder")
    sys.modules.pop("cacheplan._vllm_builder", None)


def config(**changes: Any) -> SimpleNamespace:
    told = {
        "max_model_len": 4096,
        "supports_kv_cache_grouping": False,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "num_gpu_blocks_override": None,
        "speculative_config": None,
        "kv_transfer_config": None,
    } | changes
    one = SimpleNamespace(**told)
    return SimpleNamespace(model_config=one, parallel_config=one, cache_config=one, **told)


GEMMA = {f"model.layers.{at}": Spec("full", 256) if at % 6 == 5 else Spec("window", 257) for at in range(26)}


KINDS = {
    # Layers and blocks of each kind, the size now, the most groups, and the best size.
    "gemma 3": ([(4, 256), (22, 257)], 4, 16, 2),
    "too few groups": ([(4, 256), (22, 257)], 4, 12, None),
    "nemotron-h 56b": ([(10, 1), (54, 3)], 10, 16, 5),
    "more groups": ([(10, 1), (54, 3)], 10, 32, 2),
    "nothing is padded": ([(18, 256), (18, 257)], 18, 64, None),
    "groups of 9 would pad the first kind more": ([(10, 1), (54, 3)], 10, 8, None),
    "two pages of 1,548 are not worth it": ([(6, 256), (10, 1)], 6, 16, None),
    "every sixth page": ([(20, 8), (30, 8)], 20, 8, 10),
}


@pytest.mark.parametrize("case", KINDS)
def test_groups_of_the_best_size_hold_a_sequence_in_fewest_pages(case: str, builder: Any) -> None:
    kinds, now, most, size = KINDS[case]
    made = [builder.Kind(None, tuple(map(str, range(layers))), blocks) for layers, blocks in kinds]
    assert builder.best(made, now, most) == size


def test_no_grouping_of_each_kind_alone_takes_fewer_pages(builder: Any) -> None:
    """Every way to cut both kinds into groups, and not only those of one size."""

    def cuts(layers: int, largest: int) -> Any:
        if layers == 0:
            yield []
        for first in range(min(layers, largest), 0, -1):
            yield from ([first, *rest] for rest in cuts(layers - first, first))

    for few, many in [(2, 5), (3, 7), (4, 6), (3, 8)]:
        made = [builder.Kind(None, ("",) * few, 5), builder.Kind(None, ("",) * many, 3)]
        pages = min(max(a + b) * (len(a) * 5 + len(b) * 3) for a in cuts(few, few) for b in cuts(many, many))
        size = builder.best(made, few, few + many) or few
        assert size * sum(kind.groups(size) * kind.blocks for kind in made) == pages


def test_layers_are_dealt_out_in_the_models_order_each_once(builder: Any, caplog: pytest.LogCaptureFixture) -> None:
    groups = builder.Builder().get_kv_cache_groups(config(), dict(GEMMA))
    assert sorted(name for group in groups for name in group.layer_names) == sorted(GEMMA)
    assert {len(group.layer_names) for group in groups} == {2} and len(groups) == 13
    assert all(GEMMA[name] == group.kv_cache_spec for group in groups for name in group.layer_names)
    # As vLLM deals them, for stages of a pipeline to have some of each.
    assert groups[0].layer_names == ["model.layers.0", "model.layers.13"]
    assert (
        "13 groups of at most 2 layers, not 7: a sequence of 4096 tokens takes 27353088 bytes, not 29458432"
        in caplog.text
    )


STAYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one kind": ({}, {"a": Spec("full", 4), "b": Spec("full", 4)}, "one group holds all layers"),
    "nothing to gain": ({}, {"a": Spec("full", 4), "b": Spec("window", 2)}, "none of at most 16 hold more"),
    "a model's own": ({"supports_kv_cache_grouping": True}, GEMMA, "the model says its own"),
    "stages": ({"pipeline_parallel_size": 2}, GEMMA, "ranks have layers or tokens of their own"),
    "context ranks": ({"decode_context_parallel_size": 2}, GEMMA, "ranks have layers or tokens of their own"),
    "drafts": ({"speculative_config": 1}, GEMMA, "drafts count on"),
    "a connector": ({"kv_transfer_config": 1}, GEMMA, "blocks are sent to others"),
    "stated blocks": ({"num_gpu_blocks_override": 9}, GEMMA, "the number of blocks is stated"),
    "pages": (
        {},
        {name: Spec("full", 4, page_size_padded=8192 if name.endswith("3") else None) for name in GEMMA},
        "pages are of several sizes",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_otherwise_groups_are_vllms_own_and_why_is_said(
    case: str, builder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    changes, layers, why = STAYS[case]
    theirs = DefaultKVCacheConfigBuilder().get_kv_cache_groups(config(**changes), layers)
    assert builder.Builder().get_kv_cache_groups(config(**changes), layers) == theirs
    assert f"groups are vLLM's own: {why}" in caplog.text


def test_groups_that_are_flagged_or_merged_of_unlike_layers_stay(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def flagged(self: Any, vllm_config: Any, layers: dict[str, Any]) -> Any:
        return [KVCacheGroupSpec([name], spec, is_eagle_group=True) for name, spec in layers.items()]

    def merged(self: Any, vllm_config: Any, layers: dict[str, Any]) -> Any:
        return [
            KVCacheGroupSpec(list(layers)[:4], Spec("both", 9)),
            KVCacheGroupSpec(list(layers)[4:], Spec("both", 9)),
        ]

    for rule in (flagged, merged):
        monkeypatch.setattr(DefaultKVCacheConfigBuilder, "get_kv_cache_groups", rule)
        assert builder.Builder().get_kv_cache_groups(config(), GEMMA) == rule(None, None, GEMMA)


@dataclass
class Gauge:
    """A gauge of Prometheus: one of a name, and its values by labels."""

    name: str
    documentation: str
    labelnames: list[str]
    multiprocess_mode: str
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    registered = {}  # type: ignore[var-annotated]  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.name in self.registered:
            raise ValueError("Duplicated timeseries")
        self.registered[self.name] = self

    def labels(self, *labels: str) -> Any:
        return SimpleNamespace(set=lambda value: self.values.__setitem__(labels, value))


@pytest.fixture
def stats(platforms: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Gauge, "registered", {})
    put(monkeypatch, "prometheus_client", Gauge=Gauge)
    loggers = put(
        monkeypatch,
        "vllm.v1.metrics.loggers",
        AggregateStatLoggerBase=object,
        load_stat_logger_plugin_factories=lambda: ["another's"],
    )
    put(monkeypatch, "vllm.v1.metrics", loggers=loggers)
    find = loggers.load_stat_logger_plugin_factories
    put(monkeypatch, "vllm.v1.engine.async_llm", load_stat_logger_plugin_factories=find)
    monkeypatch.delitem(sys.modules, "cacheplan._vllm_stats", raising=False)
    yield import_module("cacheplan._vllm_stats")
    sys.modules.pop("cacheplan._vllm_stats", None)


def served(blocks: int) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="qwen"), cache_config=SimpleNamespace(num_gpu_blocks=blocks)
    )


@pytest.fixture
def planned(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The blocks of a plan that the guard is told of, the null block included."""
    made = cacheplan.plan(
        ROOT / "tests/fixtures/configs/Qwen__Qwen3-8B.json",
        engine="vllm@0.33.0",
        max_seq_len=4096,
        cache_bytes=f"{20 << 30}B",
    )
    path = tmp_path / "plan.json"
    path.write_text(made.to_json())
    monkeypatch.setenv("CACHEPLAN_PLAN", str(path))
    blocks: int = made.data["engine"]["num_blocks"]
    assert blocks == 9102
    return blocks


def test_our_logger_is_made_beside_those_of_plugins_wherever_that_is_bound(stats: Any) -> None:
    stats.install()
    for name in stats.BOUND:
        assert sys.modules[name].load_stat_logger_plugin_factories() == ["another's", stats.PlannedBlocks]


def test_blocks_in_use_stand_beside_those_planned(
    stats: Any, planned: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(_vllm_platform.GROUPS)
    # Two replicas, whose blocks the config has together.
    logger = stats.PlannedBlocks(served(2 * 9102), [0, 3])
    logger.log_engine_initialized()
    assert f"cacheplan: {planned - 1} blocks planned, 9101 allocated" in caplog.text
    assert not Gauge.registered, "vLLM would unregister them"
    for engine, usage in ((0, 0.5), (3, 1.0), (0, 0.25)):
        logger.record(SimpleNamespace(kv_cache_usage=usage), None, engine_idx=engine)
    logger.record(None, None)
    values = {name: gauge.values for name, gauge in Gauge.registered.items()}
    assert values == {
        "vllm:kv_cache_planned_blocks": {("qwen", "0"): 9101, ("qwen", "3"): 9101},
        "vllm:kv_cache_used_blocks": {("qwen", "0"): 2275, ("qwen", "3"): 9101},
        "vllm:kv_cache_most_used_blocks": {("qwen", "0"): 4550, ("qwen", "3"): 9101},
    }
    assert all(gauge.labelnames == ["model_name", "engine"] for gauge in Gauge.registered.values())
    logger.log()
    assert "engine 0 uses 2275 blocks, at most 4550 so far, of 9101 planned" in caplog.text
    # Another of this process finds the names taken, and serving goes on.
    other = stats.PlannedBlocks(served(9102), [0])
    other.record(SimpleNamespace(kv_cache_usage=0.5), None)
    assert "no gauges of blocks: Duplicated timeseries" in caplog.text


def test_it_counts_nothing_without_a_plan(stats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEPLAN_PLAN", raising=False)
    logger = stats.PlannedBlocks(served(9102))
    logger.record(SimpleNamespace(kv_cache_usage=0.5), None)
    logger.log_engine_initialized()
    logger.log()
    assert not Gauge.registered


def test_blocks_of_our_own_groups_are_not_told_beside_the_plans(
    stats: Any, planned: int, caplog: pytest.LogCaptureFixture
) -> None:
    logger = stats.PlannedBlocks(served(9102))
    logger.record(SimpleNamespace(kv_cache_usage=0.5), None)
    assert not Gauge.registered and "blocks of vLLM's own groups" in caplog.text


def test_the_guard_leaves_blocks_of_our_own_groups_out(platforms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=4096),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=2048),
    )
    decided = SimpleNamespace(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["a"], Spec("full", 4))])
    assert {"groups", "num_blocks"}.isdisjoint(_vllm_guard._facts(told, 1, decided))
    monkeypatch.delenv(_vllm_platform.GROUPS)
    assert _vllm_guard._facts(told, 1, decided)["num_blocks"] == 9
