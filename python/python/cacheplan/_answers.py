"""Questions beside a plan: which devices would do, and what a prefix cache would save."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from cacheplan import _native
from cacheplan._plan import Plan, document_text, model

GPUS = tuple(_native.FIT_DEVICES.split(","))


class _Native(Protocol):
    def to_json(self) -> str: ...
    def table(self) -> str: ...


class _Answer:
    """What Rust answered: data and a table."""

    __slots__ = ("_native",)

    def __init__(self, native: _Native) -> None:
        self._native = native

    def to_json(self) -> str:
        """The JSON that the command prints with ``--format json``, without the newline at its end."""
        return self._native.to_json()

    @property
    def data(self) -> Any:
        """The JSON as dictionaries and lists."""
        return json.loads(self.to_json())

    def table(self) -> str:
        """The answer for people, at most 100 columns wide."""
        return self._native.table()

    def __repr__(self) -> str:
        return self.table()


class _Drawn(_Answer):
    """An answer that can be drawn too."""

    __slots__ = ()
    _native: _native.Fit | _native.Simulation | _native.Tiers

    def svg(self) -> str:
        """The answer as a picture, 1000 pixels wide."""
        return self._native.svg()

    def _repr_html_(self) -> str:
        return self.svg()


class Fit(_Drawn):
    """Every layout that was tried, those first that hold: the cheapest, then the fewest devices, then the most room."""

    __slots__ = ()
    _native: _native.Fit

    def csv(self) -> str:
        """Every layout, one a line."""
        return self._native.csv()

    @property
    def best(self) -> dict[str, Any] | None:
        """The first layout, where it holds what was asked for."""
        first: dict[str, Any] | None = next(iter(self.data["fits"]), None)
        return first if first is not None and first["holds"] else None


class Simulation(_Drawn):
    """A report for each policy of placing and evicting states."""

    __slots__ = ()


class Handing(_Answer):
    """Both plans, what passes between them for each request, and what the link and both sides admit."""

    __slots__ = ()


def fit(
    source: Any,
    *,
    context: int,
    sequences: int,
    gpus: Iterable[str] = GPUS,
    max_gpus: int = 16,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    weights: str | int | None = None,
    kv_dtype: str | None = None,
    ssm_dtype: str | None = None,
    engines: Iterable[str] = (),
    margin: int = 0,
    assume: Sequence[str] = (),
    descriptions: Sequence[str] = (),
) -> Fit:
    """Which devices, how many and divided how hold so many sequences of ``context`` tokens: ``cacheplan fit``.

    ``source`` is whatever :func:`cacheplan.model` takes. ``prices`` is a path, TOML text or a mapping with ``currency``
    and ``per_hour``; ``weights`` are the bytes of the weights over all devices, where no file tells them, or bits such
    as ``"fp8"``. ``kv_dtype`` and ``ssm_dtype`` are stated in place of being varied; ``engines``, such as
    ``"vllm@0.33.0"``, are those whose rules answer, vLLM where none are named, and ``"plan"`` is the planner with pools
    of its own; ``margin`` is room for so many percent more sequences.

    Raises :class:`ModelError`, :class:`BudgetError` with the argument as its ``key``, :class:`PlanError`.
    """
    own = model(source, assume=assume, descriptions=descriptions)
    listed = None if prices is None else document_text(prices)
    size = f"{weights}B" if isinstance(weights, int) else weights
    asked = (own, context, sequences, list(gpus), max_gpus, listed, size)
    return Fit(_native.fit(*asked, kv_dtype, ssm_dtype, list(engines), margin))


def simulate(
    workload: str | None = None,
    *,
    trace: str | os.PathLike[str] | None = None,
    plan: Plan | None = None,
    policies: Iterable[str] = (),
    chunk: int | None = None,
    checkpoints: int | str | None = None,
    kv_tokens: int | str | None = None,
) -> Simulation:
    """What a prefix cache of a plan's sizes would save of a workload: ``cacheplan simulate``.

    ``workload`` is ``chat``, ``agents`` or ``rag``, or a ``trace`` is a file of requests. ``checkpoints`` and
    ``kv_tokens`` go before the plan's sizes; ``"unlimited"`` is as many as it takes. ``chunk`` are the tokens of a
    chunk of the model's scan. Without ``policies`` all are simulated.

    Raises :class:`PlanError` with the argument as its ``key``.
    """
    path = None if trace is None else os.fspath(trace)
    native = None if plan is None else plan._native
    return Simulation(_native.simulate(native, workload, path, list(policies), chunk, checkpoints, kv_tokens))


def disaggregate(prefill: Plan, decode: Plan, *, prompt: int, output: int, link: float) -> Handing:
    """Prefill and decode on devices of their own, what is handed over and what that admits: ``cacheplan disaggregate``.

    Both are plans made here of one model, ``prefill`` for what computes prompts of ``prompt`` tokens, ``decode`` for
    what writes ``output``; these lengths stand in place of those of their workloads. ``link`` are the bytes that a
    device sends or receives each second, one way.

    Raises :class:`PlanError`.
    """
    return Handing(_native.disaggregate(prefill._native, decode._native, prompt, output, link))
