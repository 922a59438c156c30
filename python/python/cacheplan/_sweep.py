"""The product of models, budgets, engines and workloads: planned on all cores, or on a Ray cluster."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from cacheplan import _native
from cacheplan._answers import simulate
from cacheplan._errors import BudgetError, CacheplanError
from cacheplan._plan import Plan, model, plan

Row = dict[str, Any]

#: Budgets of one model that a worker takes at once.
SHARE = 16


class _Case(NamedTuple):
    """One plan, and what is asked of it. ``key`` is a hash of all that its rows depend on."""

    model: str
    budget: str
    keys: Mapping[str, Any]
    engines: tuple[str, ...]
    workloads: tuple[str, ...]
    key: str


class _Share(NamedTuple):
    """Cases of one model."""

    source: Any
    cases: list[_Case]


def sweep(
    models: Mapping[str, Any] | Iterable[str | os.PathLike[str]],
    budgets: Mapping[str, Mapping[str, Any]],
    engines: Iterable[str] = (),
    workloads: Iterable[str] = (),
    *,
    workers: int | None = None,
    file: str | os.PathLike[str] | None = None,
    ray: str | None = None,
) -> Iterator[Row]:
    """Plans every model with every budget, predicts each engine, simulates each workload; yields a row for each.

    ``models`` are paths, or names with whatever :func:`cacheplan.model` takes. ``budgets`` are names with keywords of
    :func:`cacheplan.plan`. Rows come in order, as they are done. What is refused is a row with its ``error``: nothing
    is left out.

    ``file`` keeps what is done, a line of JSON for each model and budget; a sweep that finds one goes on from there,
    and plans anew what was changed since. ``ray`` is the address of a Ray cluster (``"auto"``, ``"host:port"``) whose
    workers have this package and read the same paths; what a lost one had is done again.

    Raises :class:`BudgetError` where ``file`` is not one of these.
    """
    named = models if isinstance(models, Mapping) else {os.fspath(path): path for path in models}
    asked = tuple(engines), tuple(workloads)
    sources = {name: _read(source) for name, source in named.items()}
    cases = {name: _cases(name, found, budgets, *asked) for name, found in sources.items()}
    with ExitStack() as opened:
        done, keep = _kept(Path(file), opened) if file is not None else ({}, lambda key, rows: None)
        shares = []
        for name, all_of_one in cases.items():
            due = [case for case in all_of_one if case.key not in done]
            source = named[name] if ray is not None else sources[name]
            shares += [_Share(source, due[at : at + SHARE]) for at in range(0, len(due), SHARE)]
        compute = _on_ray(shares, ray) if ray is not None else _on_threads(shares, workers, opened)
        computed = chain.from_iterable(compute)
        for case in chain.from_iterable(cases.values()):
            rows = done.get(case.key)
            if rows is None:
                rows = next(computed)
                keep(case.key, rows)
            # Equal cases under other names have equal keys.
            yield from ({**row, "model": case.model, "budget": case.budget} for row in rows)


def _on_threads(shares: list[_Share], workers: int | None, opened: ExitStack) -> Iterator[list[list[Row]]]:
    # Planning releases the interpreter lock.
    pool = opened.enter_context(ThreadPoolExecutor(workers or os.cpu_count()))
    opened.callback(pool.shutdown, cancel_futures=True)
    return pool.map(_do, shares)


def _on_ray(shares: list[_Share], address: str) -> Iterator[list[list[Row]]]:
    import ray

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    # A share whose node is lost is done again on another, however often.
    work = ray.remote(max_retries=-1)(_do)
    return map(ray.get, [work.remote(share) for share in shares])


def _do(share: _Share) -> list[list[Row]]:
    found = _read(share.source)
    return [_rows(found, case) for case in share.cases]


def _read(source: Any) -> _native.Model | CacheplanError:
    if isinstance(source, CacheplanError):
        return source
    try:
        return model(source)
    except CacheplanError as error:
        return error


def _cases(
    name: str,
    found: _native.Model | CacheplanError,
    budgets: Mapping[str, Mapping[str, Any]],
    engines: tuple[str, ...],
    workloads: tuple[str, ...],
) -> list[_Case]:
    try:
        of = str(found) if isinstance(found, CacheplanError) else found.identity()
    except CacheplanError as error:
        of = str(error)
    cases = []
    for label, keys in budgets.items():
        all_of_it = json.dumps([_native.__version__, of, keys, engines, workloads], sort_keys=True, default=str)
        key = hashlib.blake2b(all_of_it.encode(), digest_size=16).hexdigest()
        cases.append(_Case(name, label, keys, engines, workloads, key))
    return cases


def _kept(path: Path, opened: ExitStack) -> tuple[dict[str, list[Row]], Callable[[str, list[Row]], None]]:
    """What a sweep's file holds, and how to add to it."""
    file = opened.enter_context(path.open("a+b"))
    file.seek(0)
    done: dict[str, list[Row]] = {}
    end = 0
    for number, line in enumerate(file, 1):
        try:
            kept = json.loads(line)
            done[kept["key"]] = kept["rows"]
        except (ValueError, TypeError, KeyError) as error:
            # Whoever wrote the last line was interrupted.
            if not line.endswith(b"\n") and b'{"key":'.startswith(line[:7]):
                break
            raise BudgetError(f"{path}, line {number}: no line of a sweep", key="file") from error
        end += len(line)
    file.truncate(end)

    def keep(key: str, rows: list[Row]) -> None:
        file.write(json.dumps({"key": key, "rows": rows}).encode() + b"\n")
        file.flush()

    return done, keep


def _rows(found: _native.Model | CacheplanError, case: _Case) -> list[Row]:
    empty = {"model": case.model, "budget": case.budget, "engine": None, "workload": None, "error": None}
    try:
        if isinstance(found, CacheplanError):
            raise found
        made = plan(found, **case.keys)
    except CacheplanError as error:
        return [{**empty, "error": str(error)}]
    rows = [{**empty, **_own(made)}]
    for engine in case.engines:
        rows.append({**empty, "engine": engine, **_or_error(_predicted, made, engine)})
    for workload in case.workloads:
        rows.append({**empty, "workload": workload, **_or_error(_simulated, made, workload)})
    return rows


def _or_error(ask: Callable[[Plan, str], Row], made: Plan, of: str) -> Row:
    try:
        return ask(made, of)
    except CacheplanError as error:
        return {"error": str(error)}


def _own(made: Plan) -> Row:
    capacity = made.capacity
    return {
        "sequences": capacity.sequences,
        "tokens": capacity.tokens,
        "capped_by": capacity.capped_by,
        "cache_bytes": made.totals.managed_bytes + made.totals.unmanaged_bytes,
    }


def _predicted(made: Plan, engine: str) -> Row:
    told = made.engine(engine)
    return {"sequences": told.sequences, "tokens": told.tokens, "version": told.version}


def _simulated(made: Plan, workload: str) -> Row:
    report = simulate(workload, plan=made, policies=["coverage"]).data[0]
    return {"hit_rate": report["hit_rate"], "policy": report["scenario"]["policy"]}
