"""Plans, proves and keeps the books of the caches of LLM inference.

>>> import cacheplan
>>> plan = cacheplan.plan("path/to/model", device="h100", max_seq_len=32768)
>>> plan.capacity.sequences, plan.capacity.capped_by  # doctest: +SKIP
(24, 'memory')
"""

from cacheplan._answers import Fit, Handing, Simulation, disaggregate, fit, simulate
from cacheplan._books import Array, CacheBook, Lack, Lease, PoolStep, PrefixReuse, Sequence, Step
from cacheplan._errors import (
    BookError,
    BudgetError,
    CacheplanError,
    DoesNotFit,
    EngineError,
    EventError,
    ExportError,
    ModelError,
    NoRoom,
    PlanError,
    PlanFileError,
)
from cacheplan._index import Index, Reuse
from cacheplan._native import __version__
from cacheplan._plan import BudgetKey, Cache, Knob, Model, Plan, Ranks, budget_keys, model, plan
from cacheplan._sweep import sweep
from cacheplan._tiers import TierFlags, TierPoint, Tiers, TiersAnswer, tiers

for _public in (CacheplanError, *CacheplanError.__subclasses__(), DoesNotFit, PlanFileError, NoRoom):
    _public.__module__ = __name__

__all__ = [
    "Array",
    "BookError",
    "BudgetError",
    "BudgetKey",
    "Cache",
    "CacheBook",
    "CacheplanError",
    "DoesNotFit",
    "EngineError",
    "EventError",
    "ExportError",
    "Fit",
    "Handing",
    "Index",
    "Knob",
    "Lack",
    "Lease",
    "Model",
    "ModelError",
    "NoRoom",
    "Plan",
    "PlanError",
    "PlanFileError",
    "PoolStep",
    "PrefixReuse",
    "Ranks",
    "Reuse",
    "Sequence",
    "Simulation",
    "Step",
    "TierFlags",
    "TierPoint",
    "Tiers",
    "TiersAnswer",
    "__version__",
    "budget_keys",
    "disaggregate",
    "fit",
    "model",
    "plan",
    "simulate",
    "sweep",
    "tiers",
]
