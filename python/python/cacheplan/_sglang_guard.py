"""SGLang's start beside a plan: the entry point ``cacheplan`` of ``sglang.srt.plugins`` (0.5.23)."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import Any

from cacheplan import _sglang_states
from cacheplan._errors import CacheplanError
from cacheplan._guard import Cache, Group, Guard, Start

# What profiles the bytes for caches, and what makes the pools of the sizes that follow.
MODULE, OWNER = "sglang.srt.mem_cache.kv_cache_configurator", "KVCacheConfigurator"
PROFILE, POOLS = "_profile_available_bytes", "_init_pools"
PARAMETERS = {
    PROFILE: ("self", "pre_model_load_memory"),
    POOLS: ("self", "sizes", "req_to_token_pool", "token_to_kv_pool_allocator"),
}


def install() -> None:
    """Hooks into the making of pools where ``CACHEPLAN_PLAN`` names a plan, and into what is published where
    ``CACHEPLAN_STATE_EVENTS`` is 1; SGLang calls it in every process.

    SGLang logs what a plugin raises and goes on without it, so that what is to end a start leaves as ``SystemExit``.
    """
    if os.environ.get(_sglang_states.VARIABLE) == "1":
        _sglang_states.install()
    try:
        guard = Guard.of_environment("sglang")
        if guard is not None:
            _hook(guard)
    except CacheplanError as error:
        raise SystemExit(f"cacheplan: {error}") from error


def _hook(guard: Guard) -> None:
    owner = getattr(import_module(MODULE), OWNER, None)
    for name, parameters in PARAMETERS.items():
        method = getattr(owner, name, None)
        found = () if method is None else tuple(inspect.signature(method).parameters)
        if found != parameters:
            what = (
                f"`{OWNER}.{name}` takes {', '.join(found) or 'nothing that can be found'}, not {', '.join(parameters)}"
            )
            guard.differs(f"SGLang {_version()} cannot be guarded: {what}", found=_version())
            return
    registry = import_module("sglang.srt.plugins.hook_registry")
    profiled: dict[int, int] = {}

    def remember(result: int, configurator: Any, *args: Any, **kwargs: Any) -> None:
        profiled[id(configurator)] = result

    def judge(configurator: Any, *, sizes: Any, **kwargs: Any) -> None:
        # A draft's pools follow those of the model.
        if not configurator.is_draft_worker:
            who = f"SGLang {_version()}, device {configurator.gpu_id}"
            guard.hold(lambda: [(who, start_of(configurator, sizes, profiled.get(id(configurator))))])

    register, hook = registry.HookRegistry.register, registry.HookType
    register(f"{MODULE}.{OWNER}.{PROFILE}", remember, hook.AFTER)
    register(f"{MODULE}.{OWNER}.{POOLS}", judge, hook.BEFORE)


def start_of(configurator: Any, sizes: Any, profiled: int | None) -> Start:
    """What the pools of ``sizes`` will be."""
    model, args = configurator.model_config, configurator.server_args
    context = import_module("sglang.srt.runtime_context")
    schedule, parallel = context.get_schedule(), context.get_parallel()
    full = sizes.full_max_total_num_tokens
    facts = {
        "max_seq_len": model.context_len,
        "max_batch_size": sizes.max_running_requests,
        "tp": args.tp_size,
        "pp": args.pp_size,
        "tokens_per_block": configurator.page_size,
        "no_prefix_caching": int(bool(args.disable_radix_cache)),
        "tokens": sizes.max_total_num_tokens if full is None else full,
    }
    if sizes.swa_max_total_num_tokens is not None:
        facts["window_tokens"] = sizes.swa_max_total_num_tokens
    states = configurator.mambaish_config
    held = 0
    if states is not None:
        facts["state_slots"] = schedule.max_mamba_cache_size
        # One slot pads batches.
        held = (schedule.max_mamba_cache_size + 1) * states.mamba2_cache_params.mamba_cache_per_req
    if schedule.max_total_tokens is not None:
        # They leave bytes over, however many there are.
        facts["max_total_tokens"] = schedule.max_total_tokens
    elif profiled is not None:
        facts["cache_bytes"] = profiled + held
    return Start(_version(), facts, _groups(configurator, parallel))


def _groups(configurator: Any, parallel: Any) -> tuple[Group, ...]:
    info, states, model = configurator.layer_info, configurator.mambaish_config, configurator.model_config
    own = range(info.start_layer, info.end_layer)
    groups = []
    if configurator.is_hybrid_swa:
        wide = model.swa_head_dim + model.swa_v_head_dim
        heads = model.get_swa_num_kv_heads(parallel.attn_tp_size)
        groups.append(_pages(configurator, "swa", info.swa_attention_layer_ids, heads * wide))
        full = info.full_attention_layer_ids
    else:
        full = list(own) if states is None else [layer for layer in states.full_attention_layer_ids if layer in own]
    if configurator.use_mla_backend:
        entry = model.kv_lora_rank + model.qk_rope_head_dim
    else:
        entry = model.get_num_kv_heads(parallel.attn_tp_size, parallel.attn_dcp_size) * (
            model.head_dim + model.v_head_dim
        )
    groups.append(_pages(configurator, "mla" if configurator.use_mla_backend else "full", full, entry))
    if states is not None:
        groups.append(_states(states.mamba2_cache_params, own))
    return tuple(group for group in groups if group.caches)


def _pages(configurator: Any, kind: str, layers: list[int], elements: int) -> Group:
    dtype, page = configurator.kv_cache_dtype, configurator.page_size
    size = page * elements * dtype.itemsize
    return Group(kind, tuple(Cache(layer, (str(dtype),), size, page) for layer in layers))


def _states(params: Any, own: range) -> Group:
    size = params.mamba_cache_per_req // max(len(params.layers), 1)
    dtypes = (str(params.dtype.conv), str(params.dtype.temporal))
    return Group("mamba", tuple(Cache(layer, dtypes, size) for layer in params.layers if layer in own))


def _version() -> str:
    return str(import_module("sglang.version").__version__)
