"""How large host memory and disk must be: ``cacheplan tiers``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cacheplan import _native
from cacheplan._answers import _Drawn
from cacheplan._errors import PlanError
from cacheplan._plan import Plan
from cacheplan._records import build


@dataclass(frozen=True)
class Kinds:
    """Bytes of each kind."""

    keys: int
    windows: int
    states: int

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.keys + self.windows + self.states


@dataclass(frozen=True)
class Sizes:
    """Bytes of each tier of a rank."""

    device: Kinds
    host: Kinds
    disk: Kinds


@dataclass(frozen=True)
class Split:
    """How a tier is divided: shares of its bytes, the rest being keys."""

    windows: float
    states: float


@dataclass(frozen=True)
class Moved:
    """What went over the links, and what loading saved."""

    host_tokens: int
    disk_tokens: int
    host_bytes: int
    disk_bytes: int
    written_bytes: int
    loads: int
    declined: int
    seconds_saved: float


@dataclass(frozen=True)
class TierPoint:
    """One replay: ``distance`` are the tokens between two states, ``stored`` how these lie below the device."""

    sizes: Sizes
    device_split: Split
    lower_split: Split
    distance: int
    stored: str
    hit_rate: float
    hit_tokens: int
    moved: Moved


@dataclass(frozen=True)
class Gain:
    """How much of the hit rate a further GiB of a place brings, on average of ``added`` bytes."""

    place: str
    added: int
    per_gib: float


@dataclass(frozen=True)
class Links:
    """Bytes each second from host memory, and from the disk."""

    host: float
    disk: float


@dataclass(frozen=True)
class TierFlags:
    """Tiers in the words of one engine: flags, keys or variables, and what these cannot say."""

    engine: str
    read_in: str
    lines: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TiersAnswer:
    """The smallest tiers that do. ``chosen`` is ``None`` where nothing tried reaches the target."""

    requests: int
    left_out: int
    prompt_tokens: int
    page: int
    unit_bytes: tuple[int, ...]
    stored_state_bytes: int
    running: int
    links: Links
    bounded: bool
    ceiling: float
    planned: TierPoint
    curve: tuple[TierPoint, ...]
    target: float | None
    chosen: TierPoint | None
    gains: tuple[Gain, ...]
    distances: tuple[TierPoint, ...]
    storages: tuple[TierPoint, ...]
    price: float | None
    replays: int


class Tiers(_Drawn):
    """The smallest tiers that do, how hit rates grow with them, and what engines are told."""

    __slots__ = ("__dict__",)
    _native: _native.Tiers

    @cached_property
    def answer(self) -> TiersAnswer:
        """What was found, as records."""
        return build(TiersAnswer, self.data["answer"])

    @property
    def chosen(self) -> TierPoint | None:
        """The smallest that reach the target; without one, those after which more brings less than a hundredth."""
        return self.answer.chosen

    @property
    def engines(self) -> tuple[TierFlags, ...]:
        """The tiers in the words of each engine that has some."""
        return tuple(build(TierFlags, part) for part in self.data["engines"])


def tiers(
    plan: Plan,
    workload: str | None = None,
    *,
    trace: str | os.PathLike[str] | None = None,
    host: str | int | None = None,
    disk: str | int | None = None,
    target_hit: float | None = None,
    prices: tuple[float, float] | None = None,
    host_rate: str | int | None = None,
    disk_rate: str | int | None = None,
    running: int | None = None,
    policy: str | None = None,
    stored_states: str | None = None,
    chunk: int | None = None,
) -> Tiers:
    """How large host memory and disk of each rank must be for a hit rate: ``cacheplan tiers``.

    The requests are those of a ``workload`` (``chat``, ``agents``, ``rag``) or of a ``trace``, a file. ``host`` and
    ``disk`` are the most that is tried (``"1TiB"``, or bytes), ``prices`` those of a GiB of each, the rates bytes a
    second. ``policy`` is as :func:`simulate` knows it, ``stored_states`` ``own``, ``bf16`` or ``int8``. What is not
    stated is the device's, the plan's, or as the command has it.

    Raises :class:`PlanError` with the argument as its ``key``. A target out of reach is an answer, without ``chosen``.
    """
    stated: dict[str, Any] = {
        "host": host,
        "disk": disk,
        "target_hit": target_hit,
        "prices": prices,
        "host_rate": host_rate,
        "disk_rate": disk_rate,
        "running": running,
        "policy": policy,
        "stored_states": stored_states,
        "chunk": chunk,
    }
    try:
        asked = json.dumps({key: value for key, value in stated.items() if value is not None}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"the tiers are no JSON: {error}") from error
    path = None if trace is None else os.fspath(trace)
    return Tiers(_native.tiers(plan._native, workload, path, asked))
