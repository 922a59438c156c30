"""Groups of the layers of a hybrid that waste the fewest bytes by vLLM's rules (0.33, whose interface is experimental).

A block is as wide as the widest group, all pages are of one size, and a group holds blocks of its own of a sequence.
So where the widest has ``size`` layers, ``n`` layers of a kind need no fewer groups than ``ceil(n / size)``, and the
best size makes a best grouping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

from cacheplan._vllm_platform import log, most_groups

# Pages saved by which more groups, each with a table of its own to fill for every step, are worth it.
LEAST = 0.01


@dataclass(frozen=True)
class Kind:
    """Layers that may share blocks, in the model's order, and how many blocks of a group of them a sequence holds."""

    spec: Any
    layers: tuple[str, ...]
    blocks: int

    def groups(self, size: int) -> int:
        return -(-len(self.layers) // size)


def best(kinds: list[Kind], now: int, most: int) -> int | None:
    """The size of groups that holds a longest sequence in fewest pages; None where that of ``now`` is not beaten.

    No kind gets more pages than it has now, so that shorter sequences lose none either.
    """

    def pages(size: int) -> int:
        return size * sum(kind.groups(size) * kind.blocks for kind in kinds)

    def groups(size: int) -> int:
        return sum(kind.groups(size) for kind in kinds)

    def is_held(size: int) -> bool:
        return groups(size) <= most and all(kind.groups(size) * size <= kind.groups(now) * now for kind in kinds)

    size = min(filter(is_held, range(1, now + 1)), key=lambda size: (pages(size), groups(size)), default=now)
    return size if pages(now) - pages(size) >= LEAST * pages(now) else None


class Builder(DefaultKVCacheConfigBuilder):
    """vLLM's own builder, but for groups of another size where they hold more sequences in as many bytes."""

    def get_kv_cache_groups(self, vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[Any]:
        """vLLM's groups, or ours of the same layers and pages."""
        theirs: list[Any] = super().get_kv_cache_groups(vllm_config, kv_cache_spec)
        why = next(_reasons(vllm_config, theirs, kv_cache_spec), None)
        if why is not None:
            log.info("cacheplan: groups are vLLM's own: %s", why)
            return theirs
        kinds = _kinds(vllm_config, theirs, kv_cache_spec)
        most = most_groups() or 0
        size = best(kinds, max(len(group.layer_names) for group in theirs), most)
        if size is None:
            log.info("cacheplan: groups are vLLM's own: none of at most %s hold more", most)
            return theirs
        ours = [
            KVCacheGroupSpec(list(kind.layers[first :: kind.groups(size)]), replace(kind.spec))
            for kind in kinds
            for first in range(kind.groups(size))
        ]
        said = [_bytes_of_sequence(self, vllm_config, groups) for groups in (theirs, ours)]
        if said[1] >= said[0]:
            log.warning("cacheplan: groups are vLLM's own: by its count ours hold no more")
            return theirs
        log.info(
            "cacheplan: %s groups of at most %s layers, not %s: a sequence of %s tokens takes %s bytes, not %s",
            *(len(ours), size, len(theirs), vllm_config.model_config.max_model_len, said[1], said[0]),
        )
        return ours


def _reasons(vllm_config: Any, groups: list[Any], layers: dict[str, Any]) -> Iterator[str]:
    """Why these groups are to stay as they are: what splits them, or counts on them, beside the bytes."""
    if len(groups) < 2:
        yield "one group holds all layers"
    if vllm_config.model_config.supports_kv_cache_grouping:
        yield "the model says its own"
    if (
        vllm_config.parallel_config.pipeline_parallel_size > 1
        or vllm_config.parallel_config.decode_context_parallel_size > 1
    ):
        yield "ranks have layers or tokens of their own"
    if vllm_config.speculative_config is not None:
        yield "drafts count on the group that theirs are in"
    if vllm_config.kv_transfer_config is not None:
        yield "blocks are sent to others, who count on their groups"
    if vllm_config.cache_config.num_gpu_blocks_override is not None:
        yield "the number of blocks is stated"
    if len({group.kv_cache_spec.page_size_bytes for group in groups}) > 1:
        yield "pages are of several sizes"
    if not all(_is_plain(group, layers) for group in groups):
        yield "layers of a group are not alike"


def _is_plain(group: Any, layers: dict[str, Any]) -> bool:
    """Whether a group is nothing but its layers, of one spec."""
    bare = KVCacheGroupSpec(list(group.layer_names), group.kv_cache_spec)
    return bare == group and all(_is_of(group.kv_cache_spec, layers[name]) for name in group.layer_names)


def _is_of(spec: Any, own: Any) -> bool:
    """Whether a group's spec is the layer's, but for the size of its page."""
    if type(spec) is not type(own) or not hasattr(own, "page_size_padded"):
        return False
    return bool(replace(own, block_size=spec.block_size, page_size_padded=spec.page_size_padded) == spec)


def _kinds(vllm_config: Any, groups: list[Any], layers: dict[str, Any]) -> list[Kind]:
    specs: list[Any] = []
    for group in groups:
        if group.kv_cache_spec not in specs:
            specs.append(group.kv_cache_spec)
    of = {name: specs.index(group.kv_cache_spec) for group in groups for name in group.layer_names}
    names = [tuple(name for name in layers if of[name] == at) for at in range(len(specs))]
    return [Kind(spec, own, _blocks(vllm_config, spec)) for spec, own in zip(specs, names, strict=True)]


def _blocks(vllm_config: Any, spec: Any) -> int:
    """The blocks of a group that a longest sequence holds, as vLLM counts them."""
    blocks: int = -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
    return blocks


def _bytes_of_sequence(builder: Any, vllm_config: Any, groups: list[Any]) -> int:
    """The bytes that vLLM needs for a longest sequence, as it counts them."""
    one = builder.get_kv_cache_config_from_groups(vllm_config, groups, 1)
    block: int = one.kv_cache_tensors[0].size
    return block * sum(_blocks(vllm_config, group.kv_cache_spec) for group in groups)
