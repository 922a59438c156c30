"""Planned beside used blocks as vLLM serves asynchronously, in process 0, beside its own loggers (0.32, 0.33).

vLLM turns statistics on for whoever has an entry point for stat loggers, even where it was told to leave them off. So
the guard adds this one, where ``CACHEPLAN_PLAN`` names a plan.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from prometheus_client import Gauge
from vllm.v1.metrics import loggers

from cacheplan._guard import Guard
from cacheplan._vllm_platform import most_groups

# Where vLLM looks for the loggers of plugins, and who may have bound it.
FIND, BOUND = "load_stat_logger_plugin_factories", ("vllm.v1.metrics.loggers", "vllm.v1.engine.async_llm")

# Names and labels are of vLLM's own form.
PLANNED, USED, MOST = "vllm:kv_cache_planned_blocks", "vllm:kv_cache_used_blocks", "vllm:kv_cache_most_used_blocks"
GAUGES = {
    PLANNED: "Blocks that requests may hold by the plan of cacheplan, which leaves out the null block.",
    USED: "Blocks that requests hold or share.",
    MOST: "Most blocks that requests have held at once.",
}
LOG = logging.getLogger("vllm.cacheplan")


def install() -> None:
    """Has vLLM make our logger beside those of its plugins."""
    original = getattr(loggers, FIND)

    def factories() -> list[Any]:
        return [*original(), PlannedBlocks]

    for module in filter(None, map(sys.modules.get, BOUND)):
        if getattr(module, FIND, None) is original:
            setattr(module, FIND, factories)


class PlannedBlocks(loggers.AggregateStatLoggerBase):
    """Says after each step how many blocks are in use of those that were planned, and how many were at most."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        self._config, self._engines = vllm_config, engine_indexes or [0]
        guard = Guard.of_environment("vllm")
        self._planned = None if guard is None else _planned(guard)
        self._most: dict[int, int] = dict.fromkeys(self._engines, 0)
        self._used: dict[int, int] = dict(self._most)
        self._gauges: dict[str, Gauge] | None = None

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Takes the numbers of one engine's step."""
        if self._planned is None or scheduler_stats is None or engine_idx not in self._used:
            return
        # The null block is none of those that its share is of.
        self._used[engine_idx] = round(scheduler_stats.kv_cache_usage * (self._blocks() - 1))
        self._most[engine_idx] = max(self._most[engine_idx], self._used[engine_idx])
        if self._gauges is None:
            # vLLM unregisters all of its prefix when it makes its own, which is after ours.
            self._gauges = self._registered()
        labels = (self._config.model_config.served_model_name, str(engine_idx))
        values = {PLANNED: self._planned, USED: self._used[engine_idx], MOST: self._most[engine_idx]}
        for name, gauge in self._gauges.items():
            gauge.labels(*labels).set(values[name])

    def _registered(self) -> dict[str, Gauge]:
        form = {"labelnames": ["model_name", "engine"], "multiprocess_mode": "mostrecent"}
        try:
            return {name: Gauge(name, said, **form) for name, said in GAUGES.items()}
        except ValueError as error:
            # Another logger of this process has them; serving goes on.
            LOG.warning("cacheplan: no gauges of blocks: %s", error)
            return {}

    def log_engine_initialized(self) -> None:
        """Says what was planned and what there is."""
        if self._planned is not None:
            LOG.info("cacheplan: %s blocks planned, %s allocated", self._planned, self._blocks() - 1)

    def log(self) -> None:
        """Says what is in use, as often as vLLM logs its own numbers."""
        if self._planned is not None:
            for engine, used in self._used.items():
                said = (engine, used, self._most[engine], self._planned)
                LOG.info("cacheplan: engine %s uses %s blocks, at most %s so far, of %s planned", *said)

    def _blocks(self) -> int:
        """Those of one engine, all of which have as many: the config has their sum."""
        return int(self._config.cache_config.num_gpu_blocks or 1) // len(self._engines)


def _planned(guard: Guard) -> int | None:
    """The blocks for requests of the stage that has the fewest: all stages get as many."""
    if most_groups() is not None:
        LOG.info("cacheplan: the plan has the blocks of vLLM's own groups, so that no planned ones are told")
        return None
    blocks = [plan.data.get("engine", {}).get("num_blocks") for _, plan in guard.plans]
    known = [count for count in blocks if count is not None]
    if not known:
        LOG.warning("cacheplan: the plan is not `--as vllm`, so that no planned blocks are told")
        return None
    return int(min(known)) - 1
