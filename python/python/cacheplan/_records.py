"""The plan as read-only records, field by field as in its JSON (docs/plan-format.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Dim:
    """One axis of a cache. ``split`` says how ranks divide it."""

    name: str
    size: int
    split: Any = None


@dataclass(frozen=True)
class Handler:
    """What a cache is: kind, shape of one unit, how it grows, element type and memory order."""

    kind: str
    shape: tuple[Dim, ...]
    dtype: str
    growth: Any
    layout: str | None = None
    recurrence: Any = None


@dataclass(frozen=True)
class Resource:
    """One cache of one layer: who owns it, where it lies, and why. Bytes are those of one rank."""

    name: str
    layer: int | None
    kind: str
    owner: str
    pool: str
    reason: str
    dtype: str
    source: str
    handler: Handler
    bytes_per_token: int
    bytes_per_sequence: int
    bytes_fixed: int
    shared_by: tuple[int, ...] = ()
    drafts: bool = False


@dataclass(frozen=True)
class Member:
    """A resource's part of a pool's unit, in bytes from the unit's start."""

    resource: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Pool:
    """One allocation: ``units`` of ``unit_bytes``, the first ``reserved`` of them for padding."""

    id: str
    owner: str
    unit: str
    dtype: str
    units: int
    reserved: int
    unit_bytes: int
    bytes: int
    layers: tuple[int, ...]
    members: tuple[Member, ...]
    tokens_per_block: int | None = None
    window: int | None = None
    checkpoints_of: str | None = None


@dataclass(frozen=True)
class LedgerLine:
    """Where bytes of the device go; ``source`` is ``exact``, ``measured`` or ``assumed``."""

    name: str
    bytes: int
    source: str
    note: str
    uncertain_bytes: int = 0


@dataclass(frozen=True)
class Capacity:
    """What the pools hold at once, and what caps it."""

    sequences: int
    tokens_per_sequence: int
    tokens: int | None
    spare_tokens: int
    capped_by: str


@dataclass(frozen=True)
class Limits:
    """What the plan made room for in one step."""

    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    draft_positions: int


@dataclass(frozen=True)
class Slots:
    """Slots of recurrent states."""

    padding: int
    live: int
    checkpoints: int


@dataclass(frozen=True)
class Totals:
    """Bytes over all caches of a rank."""

    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    managed_bytes: int
    unmanaged_bytes: int


@dataclass(frozen=True)
class Parallel:
    """The groups of ranks of which this is one rank's plan."""

    tp: int
    pp: int
    dp: int
    ep: int
    cp: int
    dcp: int = 1


@dataclass(frozen=True)
class Agreement:
    """What every rank can serve, hence the size of every pool on every rank."""

    sequences: int
    spare_tokens: int
    host_sequences: int | None = None


@dataclass(frozen=True)
class WeightClasses:
    """Bytes of weights by how ranks divide them."""

    attention: int = 0
    dense: int = 0
    shared: int = 0
    routed: int = 0
    embeddings: int = 0
    replicated: int = 0
    head: int = 0
    tower: int = 0
    whole_tower: int = 0


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights over all ranks; ``exact`` where its files say them, ``unproven`` where files
    that are not all there do."""

    bytes: int
    exact: bool
    classes: WeightClasses | None = None
    unproven: bool = False


@dataclass(frozen=True)
class ModelInfo:
    """The model that the plan is for."""

    type: str
    layers: int
    dtype: str
    max_position_embeddings: int | None
    weights: Weights | None
    fingerprint: str
    name: str | None = None
    revision: str | None = None
    step_tokens: int | None = None


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of what the plan was made from."""

    model: str
    budget: str
    device: str


@dataclass(frozen=True)
class HostPool:
    """A pool's part of the host tier."""

    pool: str
    units: int
    unit_bytes: int
    bytes: int


@dataclass(frozen=True)
class Host:
    """Host memory that caches are offloaded to."""

    bytes: int
    sequences: int
    unused_bytes: int
    pools: tuple[HostPool, ...]


@dataclass(frozen=True)
class DeployedWeights:
    """One class of weights over the deployment."""

    cls: str
    bytes: int
    ranks: int
    bytes_per_rank: int


@dataclass(frozen=True)
class Deployment:
    """All devices together."""

    devices: int
    devices_per_replica: int
    replicas: int
    sequences: int
    sequences_per_replica: int
    weights: tuple[DeployedWeights, ...]


@dataclass(frozen=True)
class Setting:
    """One value that an engine is told."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True)
class Export:
    """A plan as an engine takes it: the file's text, its values, and what the engine cannot be told."""

    target: str
    engine: str
    file_name: str
    text: str
    settings: tuple[Setting, ...]
    not_expressed: tuple[str, ...]
    admits: int | None = None


@dataclass(frozen=True)
class EnginePlan:
    """What an engine would allocate; what its kind of engine does not have is ``None``."""

    name: str
    version: str
    sequences: int
    wasted_bytes: int
    notes: tuple[str, ...]
    block_size: int | None = None
    blocks_per_request: int | None = None
    concurrency: float | None = None
    conv_bytes: int | None = None
    draft_kv_bytes: int | None = None
    group_size: int | None = None
    groups: int | None = None
    kv_bytes: int | None = None
    num_blocks: int | None = None
    padding_layers: int | None = None
    page_bytes: int | None = None
    speculation_bytes: int | None = None
    speculation_conv_bytes: int | None = None
    ssm_bytes: int | None = None
    state_bytes: int | None = None
    state_page_bytes: int | None = None
    state_slots: int | None = None
    tokens: int | None = None
    window_tokens: int | None = None


# Keys that are words of Python.
RENAMED = {"class": "cls"}


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(record: Any) -> dict[str, Any]:
    if record not in _HINTS:
        hints = get_type_hints(record)
        _HINTS[record] = {field.name: hints[field.name] for field in fields(record)}
    return _HINTS[record]


def build(record: type[T], value: Mapping[str, Any]) -> T:
    """A record from a JSON object. A key that the record does not have is an error: nothing is lost in silence."""
    hints = _hints(record)
    named = {RENAMED.get(key, key): part for key, part in value.items()}
    return record(**{name: _convert(hints[name], part) for name, part in named.items()})


def _convert(hint: Any, value: Any) -> Any:
    if value is None or hint is Any:
        return value
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _convert(next(arg for arg in get_args(hint) if arg is not type(None)), value)
    if origin is tuple:
        item = get_args(hint)[0]
        return tuple(_convert(item, part) for part in value)
    return build(hint, value) if hasattr(hint, "__dataclass_fields__") else value
