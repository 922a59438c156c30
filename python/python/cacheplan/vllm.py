"""The installed vLLM's planner beside our model of it, for one of its own configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cacheplan._errors import EngineError
from cacheplan._plan import Plan, plan

__all__ = ["Comparison", "Planned", "compare", "planned"]


@dataclasses.dataclass(frozen=True)
class Planned:
    """What vLLM's planner says. ``tokens`` are those of all sequences of ``max_model_len`` that run at once."""

    num_blocks: int
    groups: int
    block_size: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """vLLM's own answer, our model's, and where they differ: key by key, vLLM's number first."""

    version: str
    theirs: Planned
    ours: Planned
    plan: Plan = dataclasses.field(repr=False)

    @property
    def differences(self) -> dict[str, tuple[int, int]]:
        pairs = {field.name: (getattr(self.theirs, field.name), getattr(self.ours, field.name)) for field in FIELDS}
        # Tokens are rounded from a fraction of sequences.
        slack = {"tokens": 1}
        return {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) > slack.get(name, 0)}

    def __str__(self) -> str:
        lines = [f"{'':12}{'vLLM ' + self.version:>16}{'cacheplan':>16}"]
        for field in FIELDS:
            theirs, ours = getattr(self.theirs, field.name), getattr(self.ours, field.name)
            differs = "  differs" if field.name in self.differences else ""
            lines.append(f"{field.name:12}{theirs:>16}{ours:>16}{differs}")
        return "\n".join(lines)


FIELDS = dataclasses.fields(Planned)


def compare(vllm_config: Any, available_bytes: int, *, specs: Mapping[str, Any] | None = None) -> Comparison:
    """Runs vLLM's planner in this process, and ours beside it.

    ``vllm_config`` is a ``VllmConfig`` (``EngineArgs(…).create_engine_config()``), ``available_bytes`` what a rank has
    for caches, as vLLM logs it. ``specs`` are the layers' as a worker's ``get_kv_cache_spec()`` gives them; without
    them the model is built on the meta device, which takes no memory.

    Raises :class:`cacheplan.EngineError` where vLLM is not installed or its planner is of an unknown version, and what
    planning raises.
    """
    theirs = planned(vllm_config, available_bytes, specs=specs)
    made = plan(_source(vllm_config.model_config), **_budget(vllm_config, available_bytes))
    told = made.engine("vllm", version=_version())
    ours = Planned(*(getattr(told, field.name) or 0 for field in FIELDS))
    return Comparison(_version(), theirs, ours, made)


def planned(vllm_config: Any, available_bytes: int, *, specs: Mapping[str, Any] | None = None) -> Planned:
    """What the installed vLLM's planner says alone; arguments and errors are those of :func:`compare`."""
    config_module, utils = _module("vllm.config"), _module("vllm.v1.core.kv_cache_utils")
    managers = _module("vllm.v1.core.single_type_kv_cache_manager")
    try:
        # Its functions have moved.
        planning = import_module("vllm.v1.core.kv_cache_planning")
    except ImportError:
        planning = utils
    with config_module.set_current_vllm_config(vllm_config):
        layers = dict(specs) if specs is not None else _specs(vllm_config)
        try:
            managers.register_all_kvcache_specs(vllm_config)
            groups = getattr(planning, "get_global_kv_cache_groups", None)
            if groups is None:
                made = planning.get_kv_cache_configs(vllm_config, [layers], [available_bytes])[0]
            else:
                all_groups = groups(vllm_config, [layers])
                vllm_config.adjust_dcp_kv_cache_interleave_size(all_groups)
                made = planning.get_kv_cache_configs(vllm_config, [layers], [available_bytes], all_groups)[0]
            concurrency = utils.get_max_concurrency_for_kv_cache_config(vllm_config, made)
        except (AttributeError, TypeError) as error:
            message = f"the planner of vLLM {_version()} is not known: {error}"
            raise EngineError(message, key="vllm", found=_version(), hint="vllm 0.32 or 0.33") from error
    block, length = vllm_config.cache_config.block_size, vllm_config.model_config.max_model_len
    return Planned(made.num_blocks, len(made.kv_cache_groups), block, int(concurrency * length))


def _specs(vllm_config: Any) -> dict[str, Any]:
    """What the layers keep. They register themselves in the configuration when the model is built."""
    layer_type = _module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    # A worker chooses it by its attention backend; it moves no byte.
    if getattr(vllm_config.cache_config, "kv_cache_layout", "") is None:
        vllm_config.cache_config.kv_cache_layout = "LBNHC"
    if not vllm_config.compilation_config.static_forward_context:
        _build(vllm_config)
    built = vllm_config.compilation_config.static_forward_context.items()
    specs = {name: layer.get_kv_cache_spec(vllm_config) for name, layer in built if isinstance(layer, layer_type)}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _build(vllm_config: Any) -> None:
    import torch

    distributed = _module("vllm.distributed")
    initialize = _module("vllm.model_executor.model_loader.utils").initialize_model
    if not torch.distributed.is_initialized():
        distributed.init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        distributed.ensure_model_parallel_initialized(1, 1)
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(vllm_config.model_config.dtype)
        with torch.device("meta"):
            initialize(vllm_config=vllm_config)
    finally:
        torch.set_default_dtype(dtype)
    _module("vllm.platforms").current_platform.update_block_size_for_backend(vllm_config)


def _budget(vllm_config: Any, available_bytes: int) -> dict[str, Any]:
    """What vLLM was told, in a budget's keys."""
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    capability = _module("vllm.platforms").current_platform.get_device_capability()
    speculation = getattr(vllm_config, "speculative_config", None)
    told = {
        "memory_bytes": f"{available_bytes}B",
        "cache_bytes": f"{available_bytes}B",
        "max_seq_len": vllm_config.model_config.max_model_len,
        "max_num_tokens": vllm_config.scheduler_config.max_num_batched_tokens,
        "kv_dtype": cache.cache_dtype,
        "ssm_dtype": getattr(cache, "mamba_ssm_cache_dtype", "auto"),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "block_size": cache.block_size if getattr(cache, "user_specified_block_size", False) else None,
        "num_blocks": getattr(cache, "num_gpu_blocks_override", None),
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "dcp": getattr(parallel, "decode_context_parallel_size", 1),
        "draft_tokens": getattr(speculation, "num_speculative_tokens", None),
        "compute_capability": None if capability is None else capability.to_int(),
    }
    return {key: value for key, value in told.items() if value not in (None, "auto")}


def _source(model_config: Any) -> Any:
    """The model as its own files describe it, where they are at hand."""
    folder = Path(model_config.model)
    return folder if (folder / "config.json").exists() else model_config.hf_config


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise EngineError(f"vLLM cannot be imported: {error}", key="vllm", hint="pip install vllm") from error


def _version() -> str:
    return version("vllm")
