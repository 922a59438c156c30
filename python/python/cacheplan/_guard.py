"""A plan beside what an engine is about to allocate, in the engine's own process.

``CACHEPLAN_PLAN`` names the plan, as ``cacheplan plan --as ENGINE --out FILE`` writes it; of several pipeline stages
each one's, separated as in ``PATH``. ``CACHEPLAN_ENFORCE`` says what follows from a difference: ``off`` writes it to
the log, ``warn`` as a warning, ``refuse`` ends the start. What a difference is, ``CachePlan::check_start`` says.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cacheplan._errors import BudgetError, CacheplanError, EngineError
from cacheplan._plan import Plan, _read

PLAN, ENFORCE = "CACHEPLAN_PLAN", "CACHEPLAN_ENFORCE"
LEVELS = {"off": logging.INFO, "warn": logging.WARNING, "refuse": logging.ERROR}


@dataclass(frozen=True)
class Cache:
    """What an engine keeps of one layer: bytes of a block of ``tokens``, or of a state where it has none."""

    layer: int | None
    dtypes: tuple[str, ...]
    bytes: int
    tokens: int | None = None


@dataclass(frozen=True)
class Group:
    """Caches that an engine manages together, by its own name for them."""

    kind: str
    caches: tuple[Cache, ...]


@dataclass(frozen=True)
class Start:
    """What one rank is about to allocate. ``facts`` are named as ``cacheplan check --format json`` names them."""

    version: str
    facts: Mapping[str, int]
    groups: tuple[Group, ...]

    def json(self, engine: str) -> str:
        groups = [{"kind": group.kind, "caches": [vars(cache) for cache in group.caches]} for group in self.groups]
        return json.dumps({"engine": engine, "version": self.version, "facts": dict(self.facts), "groups": groups})


class Guard:
    """The plan that a start is held to, and what follows where it is not met."""

    def __init__(self, engine: str, plans: Iterable[tuple[str, Plan]], enforce: str) -> None:
        # Below the engine's own logger, whose handlers and format it has.
        self.engine, self.plans, self.enforce = engine, tuple(plans), enforce
        self.log = logging.getLogger(f"{engine}.cacheplan")

    @classmethod
    def of_environment(cls, engine: str) -> Guard | None:
        """The guard that the environment asks for; None where it names no plan."""
        paths, enforce = os.environ.get(PLAN), os.environ.get(ENFORCE, "warn")
        if not paths:
            return None
        if enforce not in LEVELS:
            message = f"{ENFORCE} is `{enforce}`; it is one of {', '.join(LEVELS)}"
            raise BudgetError(message, key=ENFORCE, found=enforce, hint="warn")
        files = [path for path in paths.split(os.pathsep) if path]
        return cls(engine, [(path, Plan.from_json(_read(path), path)) for path in files], enforce)

    def hold(self, read: Callable[[], Iterable[tuple[str, Start]]]) -> None:
        """Judges each rank's start. What cannot be read of this version is said as a difference is."""
        try:
            found = list(read())
        except Exception as error:
            self.differs(f"what this {self.engine} decided cannot be read: {error!r}", found=None)
            return
        for who, start in found:
            self._judge(start, who)

    def _judge(self, start: Start, who: str) -> None:
        """Sets the plan beside what ``who`` decided, and ends the start where that is asked for."""
        path, plan = self._of_stage(start)
        try:
            table, drifting, owners = plan._native.check_start(start.json(self.engine))
        except CacheplanError as error:
            self.differs(f"{who} cannot be set beside {path}: {error}", found=None)
            return
        for line in owners:
            self.log.info("cacheplan: %s, %s", who, line)
        if drifting:
            self.differs(f"{who} is not as {path} plans it: {', '.join(drifting)}\n{table}", found=", ".join(drifting))
        else:
            self.log.info("cacheplan: %s is as %s plans it\n%s", who, path, table)

    def differs(self, what: str, *, found: str | None) -> None:
        """Goes on with ``what`` in the log, or ends the start with it."""
        if self.enforce == "refuse":
            hint = f"plan anew, start with what was planned, or go on with {ENFORCE}=warn"
            raise EngineError(f"{what}\n{hint}", key=self.engine, found=found, hint=hint)
        self.log.log(LEVELS[self.enforce], "cacheplan: %s", what)

    def _of_stage(self, start: Start) -> tuple[str, Plan]:
        """The plan that has the most of the layers."""
        layers = {cache.layer for group in start.groups for cache in group.caches}
        return max(self.plans, key=lambda named: len(layers & {own.layer for own in named[1].resources}))
