"""vLLM's start beside a plan: the entry point ``cacheplan`` of ``vllm.general_plugins`` (0.32, 0.33)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from cacheplan._guard import Cache, Group, Guard, Start
from cacheplan._vllm_platform import most_groups

# Where the engine core has bound it; the groups came with 0.33.
CORE, PLANNER = "vllm.v1.engine.core", "get_kv_cache_configs"
PARAMETERS = ("vllm_config", "kv_cache_specs", "available_memory", "global_kv_cache_groups")


def install() -> None:
    """Wraps the engine core's planner where ``CACHEPLAN_PLAN`` names a plan; vLLM calls it in every process."""
    guard = Guard.of_environment("vllm")
    if guard is None:
        return
    core = import_module(CORE)
    original: Any = getattr(core, PLANNER, None)
    if hasattr(original, "guard"):
        return
    found = () if original is None else tuple(inspect.signature(original).parameters)
    if found not in (PARAMETERS, PARAMETERS[:-1]):
        what = (
            f"`{CORE}.{PLANNER}` takes {', '.join(found) or 'nothing that can be found'}, not {', '.join(PARAMETERS)}"
        )
        guard.differs(f"vLLM {_version()} cannot be guarded: {what}", found=_version())
        return
    core.get_kv_cache_configs = _guarded(original, guard)  # type: ignore[attr-defined]
    try:
        import_module("cacheplan._vllm_stats").install()
    except (ImportError, AttributeError) as error:
        # Numbers as it serves are no part of what the start is held to.
        guard.log.warning("cacheplan: blocks in use are not told: %r", error)


def _guarded(original: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    @functools.wraps(original)
    def planner(*args: Any, **kwargs: Any) -> Any:
        configs = original(*args, **kwargs)
        told = inspect.signature(original).bind(*args, **kwargs).arguments
        guard.hold(lambda: starts(told["vllm_config"], told["available_memory"], configs))
        return configs

    planner.guard = guard  # type: ignore[attr-defined]
    return planner


def starts(vllm_config: Any, available: list[int], configs: list[Any]) -> Iterator[tuple[str, Start]]:
    """What the ranks of one data-parallel replica are about to allocate; ranks that are alike once."""
    alike: dict[str, tuple[Start, list[int]]] = {}
    for rank, config in enumerate(configs):
        start = Start(_version(), _facts(vllm_config, min(available), config), _groups(vllm_config, config))
        alike.setdefault(start.json("vllm"), (start, []))[1].append(rank)
    parallel = vllm_config.parallel_config
    replica = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
    for start, ranks in alike.values():
        ranks_of = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        yield f"vLLM {start.version}, replica {replica}, {ranks_of}", start


def _facts(vllm_config: Any, available: int, config: Any) -> dict[str, int]:
    """As its log would say them; of what ranks can serve the least counts."""
    scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    blocks = [group.kv_cache_spec for group in config.kv_cache_groups]
    # As the engine chooses the one that it reports.
    reported = [spec.block_size for spec in blocks if getattr(spec, "prefix_cacheable", True)]
    speculation = getattr(vllm_config, "speculative_config", None)
    facts = {
        "max_seq_len": vllm_config.model_config.max_model_len,
        "max_batch_size": scheduler.max_num_seqs,
        "max_num_tokens": scheduler.max_num_batched_tokens,
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "draft_tokens": getattr(speculation, "num_speculative_tokens", None) or 0,
        "prefix_caching": int(bool(vllm_config.cache_config.enable_prefix_caching)),
    }
    if not blocks:
        return facts
    block = min(reported or [spec.block_size for spec in blocks])
    facts |= {"cache_bytes": available, "tokens_per_block": block}
    # The plan has those of vLLM's own grouping.
    return facts if most_groups() is not None else facts | {"groups": len(blocks), "num_blocks": config.num_blocks}


def _groups(vllm_config: Any, config: Any) -> tuple[Group, ...]:
    def group(one: Any) -> Group:
        spec = one.kv_cache_spec
        # Layers of one kind and several sizes keep theirs beside the group's.
        each = getattr(spec, "kv_cache_specs", None) or dict.fromkeys(one.layer_names, spec)
        caches = tuple(_cache(vllm_config, name, each[name]) for name in one.layer_names)
        return Group(type(spec).__name__, caches)

    return tuple(group(one) for one in config.kv_cache_groups)


def _cache(vllm_config: Any, name: str, spec: Any) -> Cache:
    # What pads a page to another's size is no cache.
    size = getattr(spec, "real_page_size_bytes", spec.page_size_bytes)
    states = getattr(spec, "dtypes", None)
    if states is not None:
        return Cache(_layer(name), tuple(map(str, states)), size)
    dtype = str(spec.dtype)
    if dtype == "torch.uint8":
        # Quantised ones are bytes to PyTorch.
        dtype = getattr(spec, "cache_dtype_str", None) or vllm_config.cache_config.cache_dtype
    return Cache(_layer(name), (dtype,), size, spec.block_size)


def _layer(name: str) -> int | None:
    """The number in ``model.layers.3.self_attn``."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _version() -> str:
    return str(import_module("vllm").__version__)
