"""The exceptions of cacheplan: one small tree, each with the key, what was found and what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheplan._native import Lack


class CacheplanError(Exception):
    """Whatever cacheplan refuses.

    ``key`` is the key, layer or pool that it is about, ``found`` what was there, ``hint`` what would do; each is
    ``None`` where the message says all.
    """

    key: str | None
    found: str | None
    hint: str | None

    def __init__(self, message: str, key: str | None = None, found: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.key, self.found, self.hint = key, found, hint

    def __reduce__(self) -> tuple[type[CacheplanError], tuple[str, str | None, str | None, str | None]]:
        return type(self), (str(self), self.key, self.found, self.hint)


class ModelError(CacheplanError):
    """A model that cannot be read, or whose caches cannot be told."""


class BudgetError(CacheplanError):
    """A budget, device or keyword that makes no sense."""


class PlanError(CacheplanError):
    """There is no such plan."""


class DoesNotFit(PlanError):
    """The budget does not hold what was asked for; ``hint`` is a change that would."""


class PlanFileError(PlanError):
    """Text that is no plan, or one that contradicts itself."""


class EngineError(CacheplanError):
    """An engine or a version that is not known."""


class ExportError(CacheplanError):
    """A plan that an engine has no words for."""


class EventError(CacheplanError):
    """Bytes that are no events of an engine; nothing of them is kept then."""


class BookError(CacheplanError):
    """What the books refuse; nothing has changed then."""


class NoRoom(BookError):
    """There is no room. ``lack`` says for what; :meth:`PrefixReuse.make_room` takes it."""

    lack: Lack
