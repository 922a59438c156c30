"""The product of models, budgets and engines, planned on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cacheplan._errors import CacheplanError
from cacheplan._plan import Model, model, plan


def sweep(
    models: Mapping[str, Any] | Iterable[str | os.PathLike[str]],
    budgets: Mapping[str, Mapping[str, Any]],
    engines: Iterable[str] = (),
    *,
    workers: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Plans every model with every budget, and predicts each engine; yields one row each, in order, as they come.

    ``models`` are paths, or names with whatever :func:`cacheplan.model` takes. ``budgets`` are names with keywords of
    :func:`cacheplan.plan`. What is refused is a row with its ``error``: nothing is left out.
    """
    named = models if isinstance(models, Mapping) else {os.fspath(path): path for path in models}
    wanted = list(engines)
    read = {name: _read(source) for name, source in named.items()}
    cases = [(name, found, label, keys) for name, found in read.items() for label, keys in budgets.items()]
    # Planning releases the interpreter lock.
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for rows in pool.map(lambda case: _rows(case[0], case[1], case[2], case[3], wanted), cases):
            yield from rows


def _read(source: Any) -> Model | CacheplanError:
    try:
        return model(source)
    except CacheplanError as error:
        return error


def _rows(
    name: str, found: Model | CacheplanError, label: str, keys: Mapping[str, Any], engines: list[str]
) -> list[dict[str, Any]]:
    case = {"model": name, "budget": label}
    if isinstance(found, CacheplanError):
        return [{**case, "engine": None, "error": str(found)}]
    try:
        made = plan(found, **keys)
    except CacheplanError as error:
        return [{**case, "engine": None, "error": str(error)}]
    capacity = made.capacity
    own = {
        "sequences": capacity.sequences,
        "tokens": capacity.tokens,
        "capped_by": capacity.capped_by,
        "cache_bytes": made.totals.managed_bytes + made.totals.unmanaged_bytes,
    }
    rows: list[dict[str, Any]] = [{**case, "engine": None, **own, "error": None}]
    for engine in engines:
        try:
            told = made.engine(engine)
            row = {"sequences": told.sequences, "tokens": told.tokens, "version": told.version, "error": None}
        except CacheplanError as error:
            row = {"error": str(error)}
        rows.append({**case, "engine": engine, **row})
    return rows
