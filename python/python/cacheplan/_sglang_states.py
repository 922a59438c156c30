"""States in SGLang's events (0.5.23), which say which keys its hybrids keep and nothing of their states.

Keys become group 0 and states group 1, in the words of vLLM's events. Only the tree core in Python shows its states
(``SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python``); behind the one in Rust, and in trees that keep windows too, events
stay as they are, and whoever reads them has an upper bound.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

VARIABLE = "CACHEPLAN_STATE_EVENTS"
TARGET = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.take_events"
# Where a core remembers which states it spoke of: the hash of each, by its node.
SPOKEN = "_cacheplan_states"


def install() -> None:
    """Hooks into what SGLang publishes."""
    registry = import_module("sglang.srt.plugins.hook_registry")
    registry.HookRegistry.register(TARGET, _with_states, registry.HookType.AFTER)


def _with_states(events: list[Any], tree: Any) -> list[Any] | None:
    core = tree.tree_core
    kinds = import_module("sglang.srt.mem_cache.unified_cache.component_type").ComponentType
    types = set(getattr(core, "component_types", ()))
    if not hasattr(core, "lru_lists") or types != {kinds.FULL, kinds.MAMBA} or not core.kv_events.enabled:
        return None
    stored, removed, cleared = _grouped()
    said = [_of_group(event, 0, stored, removed) for event in events]
    spoken = {} if any(isinstance(event, cleared) for event in events) else getattr(core, SPOKEN, {})
    held = core.lru_lists[kinds.MAMBA].cache
    gone = [name for node, name in spoken.items() if node not in held]
    if gone:
        said.append(removed(block_hashes=gone, medium="GPU", group_idx=1))
    now = {node: spoken[node] for node in spoken if node in held}
    for node in [node for node in held if node not in now]:
        event = _last_page(core.kv_events, held[node])
        now[node] = event.block_hashes[0]
        said.append(_of_group(event, 1, stored, removed))
    setattr(core, SPOKEN, now)
    return said


def _last_page(recorder: Any, node: Any) -> Any:
    """The event of the page behind whose last token a node's state is, as the recorder would say it of its keys."""
    waiting, recorder._queue = recorder._queue, []
    recorder.record_store(node)
    (event,), recorder._queue = recorder._queue, waiting
    hashes, page = event.block_hashes, recorder.page_size
    parent = hashes[-2] if len(hashes) > 1 else event.parent_block_hash
    event.block_hashes, event.parent_block_hash, event.token_ids = hashes[-1:], parent, event.token_ids[-page:]
    return event


def _of_group(event: Any, group: int, stored: type, removed: type) -> Any:
    made = {stored.__base__: stored, removed.__base__: removed}.get(type(event))
    if made is None:
        return event
    fields = {name: getattr(event, name) for name in event.__struct_fields__} | {"group_idx": group}
    if made is stored:
        fields["kv_cache_spec_kind"] = "mamba" if group else "full_attention"
    return made(**fields)


@cache
def _grouped() -> tuple[type, type, type]:
    """SGLang's events with a group, under the same names."""
    events = import_module("sglang.srt.disaggregation.kv_events")
    struct = import_module("msgspec").defstruct
    names: list[Any] = [("group_idx", int | None, None), ("kv_cache_spec_kind", str | None, None)]
    stored = struct("StoredOfGroup", names, bases=(events.BlockStored,), tag="BlockStored", omit_defaults=True)
    removed = struct("RemovedOfGroup", names[:1], bases=(events.BlockRemoved,), tag="BlockRemoved", omit_defaults=True)
    return stored, removed, events.AllBlocksCleared
