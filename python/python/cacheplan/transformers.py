"""A ``transformers`` cache that lives in a plan's pools: ``model.generate(past_key_values=PlannedCache(plan))``.

Every pool of the plan is one tensor, made once. A sequence is a row of each: its block of keys and values, its slot of
states. So the plan's blocks hold whole sequences (``tokens_per_block`` is ``max_seq_len``), what a layer reads is a
view of them, and nothing is gathered or moved.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from cacheplan._errors import BookError, PlanError
from cacheplan._plan import Plan
from cacheplan._records import Pool, Resource

__all__ = ["PlannedCache"]

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ATTENTION, RECURRENT, CONVOLUTION = ("kv_paged", "mla_paged"), ("ssm", "state"), ("causal_conv",)


class PlannedCache(Cache):
    """A cache whose layers are views of the plan's pools, on ``device``.

    ``static`` gives every layer a fixed shape, as ``transformers.StaticCache`` does, for ``torch.compile`` and
    ``torch.export``; without it a layer shows the tokens that it has. ``planned_bytes`` and ``actual_bytes`` are by
    pool. Mamba's models call it ``cache_params``. A cache that was used starts anew after ``reset()``.

    Raises :class:`cacheplan.PlanError` where the plan's blocks do not hold a sequence of ``max_seq_len`` tokens, and
    for caches that ``transformers`` does not keep; :class:`cacheplan.BookError`, when it runs, for a batch, a length
    or a dtype that was not planned.
    """

    planned_bytes: dict[str, int]

    def __new__(cls, plan: Plan, *, device: Any = "cpu", static: bool = False) -> PlannedCache:
        made: PlannedCache = super().__new__(_minimax() if plan.model.type == "minimax" else cls)
        return made

    def __init__(self, plan: Plan, *, device: Any = "cpu", static: bool = False) -> None:
        self.static = static
        self._pools = {pool.id: torch.zeros(pool.bytes, dtype=torch.uint8, device=device) for pool in plan.pools}
        self.planned_bytes = {pool.id: pool.bytes for pool in plan.pools}
        by_layer: dict[int, list[_Rows]] = {}
        pools = {pool.id: pool for pool in plan.pools}
        for resource in plan.resources:
            if resource.layer is None or resource.drafts or resource.kind not in ATTENTION + RECURRENT + CONVOLUTION:
                raise PlanError(
                    f"`{resource.name}` is a {resource.kind}, which has no place in a transformers cache",
                    key=resource.name,
                    found=resource.kind,
                )
            pool = pools[resource.pool]
            rows = _Rows(resource, pool, self._pools[pool.id], plan.limits.max_seq_len)
            by_layer.setdefault(resource.layer, []).append(rows)
        layers = [_layer(by_layer.get(index, []), static) for index in range(plan.model.layers)]
        # Not `super`, which in MiniMax's is one that takes no layers.
        Cache.__init__(self, layers=layers)

    @property
    def actual_bytes(self) -> dict[str, int]:
        """What torch holds for each pool."""
        return {pool: memory.untyped_storage().nbytes() for pool, memory in self._pools.items()}

    @property
    def is_compileable(self) -> bool:
        return self.static and super().is_compileable

    @property
    def is_linear(self) -> list[bool]:
        # A layer with attention beside its state counts as attention.
        return [isinstance(layer, _States) and not isinstance(layer, CacheLayerMixin) for layer in self.layers]


class _Rows:
    """One resource's memory, a row for each sequence."""

    def __init__(self, resource: Resource, pool: Pool, memory: torch.Tensor, tokens: int) -> None:
        dtype = DTYPES.get(resource.dtype)
        if dtype is None:
            raise PlanError(
                f"`{resource.name}` is kept in {resource.dtype}; torch computes with {', '.join(DTYPES)}",
                key=resource.name,
                found=resource.dtype,
            )
        if resource.kind in ATTENTION and (pool.tokens_per_block or 0) < tokens:
            raise PlanError(
                f"a block of `{pool.id}` holds {pool.tokens_per_block} tokens, and a sequence has {tokens}",
                key="tokens_per_block",
                found=str(pool.tokens_per_block),
                hint=f"tokens_per_block={tokens}",
            )
        member = next(member for member in pool.members if member.resource == resource.name)
        self.resource, self.tokens, self.dtype = resource, tokens, dtype
        units = memory.view(pool.units, pool.unit_bytes)[pool.reserved :]
        #: ``[sequences, elements]``, each row one stretch of memory.
        self.data = units[:, member.offset : member.offset + member.bytes].view(dtype)
        self.window = pool.window
        self.block = pool.tokens_per_block

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """The rows of a batch, ``[batch, elements]``."""
        batch, name = like.shape[0], self.resource.name
        if batch > len(self.data):
            raise _refused(f"a batch of {batch}; `{name}` has rows for {len(self.data)}", "max_batch_size", batch)
        if like.dtype != self.dtype or like.device != self.data.device:
            found = f"{like.dtype} on {like.device}"
            message = f"`{name}` is {self.dtype} on {self.data.device}; the model keeps {found}"
            raise _refused(message, name, found, "plan with its kv_dtype, ssm_dtype and conv_dtype, on its device")
        return self.data[:batch]

    def states(self, like: torch.Tensor) -> torch.Tensor:
        """The rows in the shape of ``like``, which the model's states have."""
        rows = self.take(like)
        self.same(rows[0].numel(), like[0].numel())
        return rows.view(like.shape)

    def keys_and_values(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[batch, heads, tokens, elements]`` of both."""
        factor, heads, width = (dim.size for dim in self.resource.handler.shape)
        rows = self.take(keys)
        if self.resource.handler.layout == "NHD":
            rows = rows.unflatten(1, (factor, self.block, heads, width)).transpose(2, 3)
        else:
            rows = rows.unflatten(1, (factor, heads, self.block, width))
        rows = rows[..., : self.tokens, :]
        self.same(heads, keys.shape[1])
        if factor == 2:
            self.same(width, keys.shape[-1])
            self.same(width, values.shape[-1])
            return rows[:, 0], rows[:, 1]
        # The latent of MLA and, behind it, its rope key.
        self.same(width, keys.shape[-1] + values.shape[-1])
        return rows[:, 0, ..., : keys.shape[-1]], rows[:, 0, ..., keys.shape[-1] :]

    def same(self, planned: int, found: int) -> None:
        if planned != found:
            message = f"`{self.resource.name}` was planned with {planned} elements, the model keeps {found}"
            raise _refused(message, self.resource.name, found)


def _refused(message: str, key: str, found: object, hint: str = "plan for this model and batch") -> BookError:
    return BookError(message, key=key, found=str(found), hint=hint)


def _layer(rows: list[_Rows], static: bool) -> Any:
    attention = [row for row in rows if row.resource.kind in ATTENTION]
    recurrent = [row for row in rows if row.resource.kind in RECURRENT]
    convolutions = [row for row in rows if row.resource.kind in CONVOLUTION]
    keeps = _StaticAttention if static else _Attention
    match attention, bool(recurrent or convolutions):
        case [], False:
            return DummyLayer()
        case [], True:
            return _States(recurrent, convolutions)
        case [one], False:
            return keeps(one)
        case [one], True:
            return (_StaticBoth if static else _Both)(one, recurrent, convolutions)
    raise PlanError(f"layer {rows[0].resource.layer} has {len(attention)} caches of keys and values")


class _Attention(CacheLayerMixin):
    """Keys and values at their positions. A window's old tokens are not shown; they stay, so that `crop` goes back."""

    is_croppable = True

    def __init__(self, rows: _Rows) -> None:
        CacheLayerMixin.__init__(self)
        self.rows, self.window, self.is_sliding = rows, rows.window, rows.window is not None
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.batch_size = key_states.dtype, key_states.device, key_states.shape[0]
        self.keys, self.values = self.rows.keys_and_values(key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[-2]
        if end > self.rows.tokens or len(key_states) != self.batch_size:
            message = f"{end} tokens of {len(key_states)} sequences; there is room for {self.rows.tokens} of each of "
            raise _refused(f"{message}{self.batch_size}", "max_seq_len", end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        first = self._first(start)
        return self.keys[:, :, first:end], self.values[:, :, first:end]

    def _first(self, length: int) -> int:
        return 0 if self.window is None else max(length - self.window + 1, 0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self._first(self.length)
        return self.length + query_length - first, first

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.rows.tokens

    def reset(self) -> None:
        self.length, self.is_initialized = 0, False

    def crop(self, tokens_to_remove: int) -> None:
        self.length = max(self.length - abs(tokens_to_remove), 0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for states in (self.keys, self.values):
            if states is not None:
                held = states[:, :, : self.length]
                held.copy_(held.index_select(0, beam_idx.to(held.device)))


class _StaticAttention(StaticLayer):
    """The same with all of a row shown, behind a mask. A window is a mask here too: nothing is rolled."""

    cumulative_length: torch.Tensor

    def __init__(self, rows: _Rows) -> None:
        StaticLayer.__init__(self, max_cache_len=rows.tokens)
        self.rows, self.is_sliding = rows, rows.window is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.batch_size = key_states.dtype, key_states.device, key_states.shape[0]
        self.keys, self.values = self.rows.keys_and_values(key_states, value_states)
        self.cumulative_length = self.cumulative_length.to(self.device)
        for fixed in (self.keys, self.values, self.cumulative_length):
            torch._dynamo.mark_static_address(fixed)
        self.is_initialized = True

    def reset(self) -> None:
        self.cumulative_length.zero_()
        self.is_initialized = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for states in (self.keys, self.values):
            if states is not None:
                states.copy_(states.index_select(0, beam_idx.to(states.device)))


class _States(LinearAttentionLayer):
    """States of a recurrence and of the convolution before it, changed in place."""

    def __init__(self, recurrent: list[_Rows], convolutions: list[_Rows]) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=max(len(recurrent), len(convolutions)))
        self.recurrent, self.convolutions = recurrent, convolutions

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> None:
        given = conv_states if conv_states is not None else recurrent_states
        assert given is not None
        self.dtype, self.device = given.dtype, given.device
        if conv_states is not None:
            rows = self.convolutions[state_idx]
            # The plan keeps the columns that the next token needs: one fewer than the kernel is wide.
            columns = rows.resource.handler.shape[-1].size
            self.conv_kernel_size[state_idx] = columns
            self.conv_states[state_idx] = rows.states(conv_states[..., :1].expand(*conv_states.shape[:-1], columns))
            self.is_conv_states_initialized[state_idx] = True
        if recurrent_states is not None:
            self.recurrent_states[state_idx] = self.recurrent[state_idx].states(recurrent_states)
            self.is_recurrent_states_initialized[state_idx] = True

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        # Layers without a convolution remember by this alone.
        self.has_previous_state[state_idx] = True
        return LinearAttentionLayer.update_recurrent_state(self, recurrent_states, state_idx, **kwargs)

    def activate_past_recording(self) -> None:
        raise BookError("a state holds one position; what asks to go back needs a cache that keeps several")

    def reset(self) -> None:
        for index in range(self.number_of_states):
            self.is_conv_states_initialized[index] = self.is_recurrent_states_initialized[index] = False
            self.has_previous_state[index] = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for states in (*self.conv_states.values(), *self.recurrent_states.values()):
            if states is not None:
                states.copy_(states.index_select(0, beam_idx.to(states.device)))


class _Both(_States, _Attention):
    """A layer with attention beside its state."""

    is_compileable = False
    is_croppable = False

    def __init__(self, rows: _Rows, recurrent: list[_Rows], convolutions: list[_Rows]) -> None:
        _States.__init__(self, recurrent, convolutions)
        _Attention.__init__(self, rows)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Attention passes both of its tensors by position, a state its one by name.
        (_Attention if args else _States).lazy_initialization(self, *args, **kwargs)

    def reset(self) -> None:
        _States.reset(self)
        _Attention.reset(self)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        _States.reorder_cache(self, beam_idx)
        _Attention.reorder_cache(self, beam_idx)


class _StaticBoth(_States, _StaticAttention):
    """The same with a fixed shape."""

    is_croppable = False

    def __init__(self, rows: _Rows, recurrent: list[_Rows], convolutions: list[_Rows]) -> None:
        _States.__init__(self, recurrent, convolutions)
        _StaticAttention.__init__(self, rows)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        (_StaticAttention if args else _States).lazy_initialization(self, *args, **kwargs)

    def reset(self) -> None:
        _States.reset(self)
        _StaticAttention.reset(self)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        _States.reorder_cache(self, beam_idx)
        _StaticAttention.reorder_cache(self, beam_idx)


def _minimax() -> type[PlannedCache]:
    """MiniMax takes caches of its own class only, and calls its states by other names."""
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    class PlannedMiniMaxCache(PlannedCache, MiniMaxCache):
        def __init__(self, plan: Plan, **options: Any) -> None:
            PlannedCache.__init__(self, plan, **options)
            self.linear_cache: list[Any] = []

        def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
            return self.get_recurrent_state(layer_idx)

        def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
            self.update_recurrent_state(linear_cache, layer_idx)

    return PlannedMiniMaxCache
