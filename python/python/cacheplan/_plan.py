"""Planning: from a model and a budget to a plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cacheplan import _native
from cacheplan._errors import BudgetError, ModelError
from cacheplan._records import (
    Agreement,
    Capacity,
    Deployment,
    EnginePlan,
    Export,
    Fingerprint,
    Host,
    LedgerLine,
    Limits,
    ModelInfo,
    Parallel,
    Pool,
    Resource,
    Slots,
    Totals,
    build,
)

if TYPE_CHECKING:
    import pandas

    from cacheplan._answers import Fit, Simulation
    from cacheplan._tiers import Tiers

Model = _native.Model


class Knob(NamedTuple):
    """A change of the budget, and the sequences that it would admit."""

    change: str
    sequences: int


class BudgetKey(NamedTuple):
    """One key of a budget: a keyword of :func:`plan`, a path in a budget file."""

    keyword: str
    path: str
    default: str
    help: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Cache:
    """A cache of an op that cacheplan does not know, stated for :func:`model` and :func:`plan`.

    ``kind`` is a name of your own, ``namespace.name``; ``shape`` its dimensions by name, outermost first. ``growth``
    says of what: of a token in pages (``"paged"``, one entry for ``stride`` tokens, those of the last ``window`` only)
    or in a row of each sequence (``"per_slot_token"``), of a sequence (``"per_sequence"``), or of all (``"fixed"``).
    ``layers`` keep one each; without layers the whole model keeps one.
    """

    kind: str
    shape: Mapping[str, int]
    dtype: str
    layers: Sequence[int] | None = None
    growth: str = "per_sequence"
    stride: int = 1
    window: int | None = None

    def _resources(self) -> list[dict[str, Any]]:
        paged = {"paged": {"stride": self.stride, "window": self.window}}
        handler = {
            "kind": self.kind,
            "growth": paged if self.growth == "paged" else self.growth,
            "shape": [{"name": name, "size": size, "split": "whole"} for name, size in self.shape.items()],
            "dtype": self.dtype,
        }
        stem = self.kind.rpartition(".")[2]
        provenance = [f"{name} = {size} (stated)" for name, size in self.shape.items()]
        rest = {"handler": handler, "node": "stated", "provenance": provenance}
        if self.layers is None:
            return [{"name": stem, "layer": None, **rest}]
        return [{"name": f"{stem}_{layer}", "layer": layer, **rest} for layer in self.layers]


@dataclass(frozen=True)
class Ranks:
    """All ranks together: what they agreed on, and a plan for each pipeline stage; those of a stage hold equal plans.

    Ranks with equal hashes hold equal plans.
    """

    parallel: Parallel
    agreement: Agreement
    hash: str
    stages: tuple[Plan, ...]


def budget_keys() -> list[BudgetKey]:
    """Every key of a budget, in the order of the file that ``cacheplan config init`` writes."""
    return [BudgetKey(*key[:4], tuple(key[4])) for key in _native.budget_keys()]


def model(
    source: Any, *, assume: Sequence[str] = (), descriptions: Sequence[str] = (), caches: Iterable[Cache] = ()
) -> Model:
    """Reads a model.

    ``source`` is a folder with ``config.json``, a config.json, .safetensors, .gguf or .onnx file (of weights only the
    headers are read); the JSON text of a config; a mapping; or a ``transformers`` config object. ``assume`` states
    facts that the files leave out (``"layer.7=full_attention"``), ``descriptions`` are TOML texts of architectures,
    ``caches`` stand beside those that the files tell of.

    Raises :class:`ModelError`, which names the file and the key.
    """
    read = _read_model(source, list(assume), list(descriptions))
    stated = [resource for cache in caches for resource in cache._resources()]
    return read.with_caches(json.dumps(stated)) if stated else read


def _read_model(source: Any, facts: list[str], texts: list[str]) -> Model:
    if isinstance(source, Model):
        if facts or texts:
            raise ModelError("this model was read already; state `assume` and `descriptions` where it is read")
        return source
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        source = source.to_dict()
    if isinstance(source, Mapping):
        try:
            text = json.dumps(source, default=_plain)
        except (TypeError, ValueError) as error:
            raise ModelError(f"the config is no JSON: {error}") from error
        return Model.from_config(text, "the config", facts, texts)
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return Model.from_config(source, "the config", facts, texts)
    if isinstance(source, (str, os.PathLike)):
        return Model.read(Path(source), facts, texts)
    raise ModelError(
        f"a {type(source).__name__} is no model", found=type(source).__name__, hint="a path, a mapping, JSON text"
    )


def _plain(value: Any) -> str:
    # `torch.bfloat16` in configs that were made in memory.
    text = str(value)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    raise TypeError(f"a {type(value).__name__} stands in it")


def plan(
    source: Any,
    *,
    budget: Any = None,
    device: str | int | None = None,
    draft: Any = None,
    measured: str | os.PathLike[str] | None = None,
    stage: int = 0,
    engine: str | None = None,
    assume: Sequence[str] = (),
    descriptions: Sequence[str] = (),
    caches: Iterable[Cache] = (),
    **budget_keys: Any,
) -> Plan:
    """Plans the caches of a model: who owns each, how large each pool is, and why.

    ``source`` is whatever :func:`model` takes. ``budget`` is a path, TOML text or a mapping; every key of it is also a
    keyword by its flag's name (``max_seq_len=32768``, ``kv_dtype="fp8_e4m3"``, ``tp=4``; :func:`budget_keys` lists
    them), which goes before the file. ``device`` is the memory of the device or its name (``"h100"``, ``"8xh100"``,
    ``"24GiB"``, bytes as an integer); 0.9 of it is divided where the budget states no memory, and 0.75 where processors
    share it. ``draft`` is the model that drafts for this one. ``measured`` is a file that ``cacheplan calibrate``
    wrote. ``engine`` is the one that is to run the model (``"vllm@0.33.0"``), with the dtypes that it would choose. The
    environment is not read.

    Raises :class:`ModelError`, :class:`BudgetError`, :class:`PlanError`; :class:`DoesNotFit` says what would.
    """
    own = model(source, assume=assume, descriptions=descriptions, caches=caches)
    drafts = None if draft is None else model(draft)
    text, folder = _budget(budget)
    keywords = [(name, _toml(name, value)) for name, value in budget_keys.items() if value is not None]
    if device is not None:
        device = f"{device}B" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    lines = None if measured is None else (_read(measured), os.fspath(measured))
    return Plan(_native._plan(own, drafts, text, folder, keywords, device, lines, stage, engine))


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BudgetError(f"{os.fspath(path)}: {error}", key=os.fspath(path)) from error


def _budget(budget: Any) -> tuple[tuple[str, str] | None, Path | None]:
    if budget is None:
        return None, None
    if isinstance(budget, Mapping):
        return (_document(budget), "the budget"), None
    if isinstance(budget, os.PathLike) or (isinstance(budget, str) and "=" not in budget and "\n" not in budget):
        path = Path(budget)
        return (_read(path), os.fspath(path)), path.parent
    if isinstance(budget, str):
        return (budget, "the budget"), None
    raise BudgetError(
        f"a {type(budget).__name__} is no budget", found=type(budget).__name__, hint="a path, TOML text, a mapping"
    )


def document_text(source: Any) -> str:
    """The TOML text of a path, a text or a mapping."""
    found, _ = _budget(source)
    return "" if found is None else found[0]


def _document(budget: Mapping[str, Any], at: tuple[str, ...] = ()) -> str:
    lines = []
    for key, value in budget.items():
        if value is None:
            continue
        path = (*at, str(key))
        if isinstance(value, Mapping) and not at:
            lines.append(_document(value, path))
        else:
            lines.append(".".join(map(_string, path)) + f" = {_toml('.'.join(path), value, nested=True)}\n")
    return "".join(lines)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but that JSON leaves DEL as it is and writes what is beyond 16 bits as two halves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(key: str, value: Any, *, nested: bool = False) -> str:
    """A value as TOML; at the top a text stands without quotes, as on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        return _string(text) if nested else text
    if isinstance(value, Mapping):
        pairs = (f"{_string(str(name))} = {_toml(key, part, nested=True)}" for name, part in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ", ".join(_toml(key, part, nested=True) for part in value) + "]"
    kind = type(value).__name__
    raise BudgetError(f"`{key}` is a {kind}; a number, text, list or mapping was expected", key=key, found=kind)


class Plan:
    """Where every byte of a model's caches lives, who owns it, and why. Read-only; equal to what the command makes."""

    __slots__ = ("__dict__", "_native")

    def __init__(self, native: _native.Plan) -> None:
        self._native = native

    @classmethod
    def from_json(cls, text: str, origin: str = "the plan") -> Plan:
        """Reads a plan and proves it. It knows no model: what derives numbers anew has to be planned again."""
        return cls(_native.Plan.from_json(text, origin))

    def to_json(self) -> str:
        """The JSON that ``cacheplan plan --format json`` prints, without the newline at its end."""
        return self._native.to_json()

    @cached_property
    def data(self) -> dict[str, Any]:
        """The JSON as dictionaries and lists."""
        data: dict[str, Any] = json.loads(self.to_json())
        return data

    @cached_property
    def model(self) -> ModelInfo:
        """The model that the plan is for."""
        return build(ModelInfo, self.data["model"])

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Every cache, in the order of the model."""
        return tuple(build(Resource, part) for part in self.data["resources"])

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """Every allocation, local ones included."""
        return tuple(build(Pool, part) for part in self.data["pools"])

    @cached_property
    def ledger(self) -> tuple[LedgerLine, ...]:
        """Where the device's bytes go."""
        return tuple(build(LedgerLine, part) for part in self.data["ledger"])

    @cached_property
    def capacity(self) -> Capacity:
        """What the pools hold at once, and what caps it."""
        return build(Capacity, self.data["capacity"])

    @cached_property
    def limits(self) -> Limits:
        """What the plan made room for in one step."""
        return build(Limits, self.data["limits"])

    @cached_property
    def slots(self) -> Slots:
        """Slots of recurrent states."""
        return build(Slots, self.data["slots"])

    @cached_property
    def totals(self) -> Totals:
        """Bytes over all caches of a rank."""
        return build(Totals, self.data["totals"])

    @cached_property
    def parallel(self) -> Parallel:
        """The groups of ranks of which this is one rank's plan."""
        return build(Parallel, self.data["parallel"])

    @cached_property
    def ranks(self) -> Ranks | None:
        """Every rank, where there are several. Raises :class:`PlanError` where the plan was read from JSON."""
        ranks = self._native.ranks()
        if ranks is None:
            return None
        agreement, agreed, stages = ranks
        return Ranks(self.parallel, build(Agreement, json.loads(agreement)), agreed, tuple(map(Plan, stages)))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Hashes of what the plan was made from."""
        return build(Fingerprint, self.data["fingerprint"])

    @cached_property
    def host(self) -> Host | None:
        """The host tier, if there is one."""
        host = self.data.get("host")
        return None if host is None else build(Host, host)

    @cached_property
    def deployment(self) -> Deployment | None:
        """All devices together, where there are several."""
        deployment = self.data.get("deployment")
        return None if deployment is None else build(Deployment, deployment)

    @property
    def policy(self) -> str:
        """``by-key``, ``by-window`` or ``first-reference``."""
        return str(self.data["policy"])

    @property
    def manager(self) -> str:
        """``kv_cache_manager`` or ``mamba_hybrid_cache_manager``."""
        return str(self.data["manager"])

    @property
    def rollback(self) -> str | None:
        """How states are put back after a speculative step: ``snapshots`` or ``replay``."""
        rollback: str | None = self.data.get("rollback")
        return rollback

    def knobs(self) -> list[Knob]:
        """Changes of the budget that would admit more, each tried."""
        return [Knob(*knob) for knob in self._native.knobs()]

    def explain(self, subject: str | int = "capacity") -> str:
        """Derives ``capacity``, ``host``, or the resource, pool, ledger line or layer that ``subject`` names."""
        return self._native.explain(str(subject))

    def diff(self, after: Plan) -> str:
        """What changed from this plan to ``after``; empty where nothing did."""
        return self._native.diff(after._native)

    def check(self) -> list[str]:
        """What the independent checker finds wrong with it; empty where all holds."""
        return self._native.violations()

    def export(self, target: str, *, version: str | None = None, model: str | None = None) -> Export:
        """The plan in the words of ``vllm``, ``sglang``, ``tensorrt-llm``, …, and what they cannot be told.

        ``model`` is the name that the engine loads it by. Raises :class:`ExportError`.
        """
        return build(Export, json.loads(self._native.export(target, version, model)))

    def engine(self, name: str, *, version: str | None = None) -> EnginePlan:
        """What an engine would allocate: ``vllm``, ``sglang``, ``tensorrt-llm``, ``llama.cpp``."""
        return build(EnginePlan, json.loads(self._native.engine(_spec(name, version))))

    def compare(self, name: str, *, version: str | None = None, since: str | None = None) -> dict[str, Any]:
        """This plan beside an engine's allocation, as JSON objects.

        ``since`` is another version of the engine; ``changes`` says then which rules make the two differ.
        """
        before = [] if since is None else [_spec(name, since)]
        rows: list[dict[str, Any]] = json.loads(self._native.compare([*before, _spec(name, version)]))
        return rows[-1]

    def fit(self, sequences: int, *, context: int | None = None, **asked: Any) -> Fit:
        """Which devices hold so many sequences of ``context`` tokens, ``max_seq_len`` where none are stated.

        The model is the plan's, the budget is not; the rest is as :func:`cacheplan.fit` takes it.
        """
        from cacheplan._answers import fit

        context = self.limits.max_seq_len if context is None else context
        return fit(self._native.source(), context=context, sequences=sequences, **asked)

    def simulate(self, workload: str | None = None, **asked: Any) -> Simulation:
        """What a prefix cache of this plan's sizes would save of a workload, as :func:`cacheplan.simulate` takes it."""
        from cacheplan._answers import simulate

        return simulate(workload, plan=self, **asked)

    def tiers(self, workload: str | None = None, **asked: Any) -> Tiers:
        """How large host memory and disk below this plan must be, as :func:`cacheplan.tiers` takes it."""
        from cacheplan._tiers import tiers

        return tiers(self, workload, **asked)

    def table(self) -> str:
        """The plan for people, at most 100 columns wide."""
        return self._native.table()

    def markdown(self) -> str:
        """The plan for an issue or a document."""
        return self._native.markdown()

    def yaml(self) -> str:
        """The JSON's keys and values as YAML."""
        return self._native.yaml()

    def svg(self) -> str:
        """The memory map, 1000 pixels wide."""
        return self._native.svg()

    def to_pandas(self, what: str = "resources") -> pandas.DataFrame:
        """``resources``, ``pools`` or ``ledger`` as a data frame, one row each. Needs pandas."""
        import pandas

        tables = ("resources", "pools", "ledger")
        if what not in tables:
            raise ValueError(f"`{what}` is no table of a plan; there are {', '.join(tables)}")
        return pandas.json_normalize(self.data[what])

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return self.svg()

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Plan.from_json, (self.to_json(),)


def _spec(name: str, version: str | None) -> str:
    return name if version is None else f"{name}@{version}"
