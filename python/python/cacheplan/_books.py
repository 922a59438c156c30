"""The books of an engine: who holds which blocks and slots, and where every token of a step lies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from types import TracebackType
from typing import Any

from cacheplan import _native
from cacheplan._plan import Plan

Array = _native.Array
Lack = _native.Lack
Lease = _native.Lease
PoolStep = _native.Pool
Sequence = _native.Sequence
Step = _native.Step


class CacheBook:
    """Books for the pools of a plan, for engines that own the memory themselves.

    They belong to the thread that made them: another one gets a :class:`BookError`. Whatever is refused has changed
    nothing. As a context manager it is closed at the end.
    """

    __slots__ = ("_native",)

    def __init__(self, plan: Plan) -> None:
        self._native = _native.CacheBook(plan._native)

    def admit(self, prompt_tokens: int) -> Sequence:
        """Takes a slot and the blocks of a whole prompt. Raises :class:`NoRoom`."""
        return self._native.admit(prompt_tokens)

    def step(self, work: Iterable[tuple[Sequence, int]]) -> Step:
        """Grows sequences by so many tokens each, all or none, and says where everything lies.

        The arrays of the step are views of its memory and keep it. While one of them lives the next step writes into
        fresh memory; where none does, into the same.
        """
        return self._native.step(list(work))

    def finish(self, sequence: Sequence) -> None:
        """Gives back all that a sequence holds; its handle is stale from then on."""
        self._native.finish(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Takes everything from a sequence; it is computed again after :meth:`resume`.

        One of a lease is refused: :meth:`PrefixReuse.finish` it, and admit its tokens again.
        """
        self._native.preempt(sequence)

    def resume(self, sequence: Sequence, tokens: int) -> None:
        """Gives a preempted sequence room for its first ``tokens`` tokens, none of which are computed."""
        self._native.resume(sequence, tokens)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same past: blocks are shared, the state is copied."""
        return self._native.fork(sequence)

    def truncate(self, sequence: Sequence, tokens: int) -> None:
        """Cuts a sequence to its first ``tokens`` tokens, where its caches can express that."""
        self._native.truncate(sequence, tokens)

    def tokens(self, sequence: Sequence) -> int:
        """Tokens whose caches it has."""
        return self._native.tokens(sequence)

    def slot(self, sequence: Sequence) -> int | None:
        """Its slot of recurrent states; ``None`` in plans without any."""
        return self._native.slot(sequence)

    def take_ops(self) -> list[str]:
        """The copies and clearings of pool contents that are due, in order, in words."""
        return self._native.take_ops()

    def stats(self) -> dict[str, Any]:
        """How full the pools are; ``planned`` has each pool of the plan, by the id that its resources name."""
        stats: dict[str, Any] = json.loads(self._native.stats())
        return stats

    def prometheus(self) -> str:
        """The same as a Prometheus text."""
        return self._native.prometheus()

    def close(self) -> None:
        """Ends the books; every later call raises :class:`BookError`."""
        self._native.close()

    def __enter__(self) -> CacheBook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PrefixReuse:
    """Prefix reuse over a book, in four calls: :meth:`admit`, :meth:`next_tokens`, :meth:`computed`, :meth:`finish`.

    ``decode_interval`` keeps the state of a decoding sequence whenever its length is a multiple of it.
    """

    __slots__ = ("_book", "_native")

    def __init__(self, plan: Plan, book: CacheBook, *, decode_interval: int | None = None) -> None:
        self._book = book._native
        self._native = _native.PrefixReuse(plan._native, book._native, decode_interval)

    def admit(self, prompt: Tokens[int], *, salt: str = "", adapter: str = "", tenant: int = 0) -> Lease:
        """Admits a sequence behind what is cached of its prompt; ``lease.cached`` tokens need not be computed.

        Requests share prefixes only with the same ``salt`` and ``adapter``. Raises :class:`NoRoom`. Keep the lease: a
        sequence ends when its lease is dropped, unless it was abandoned.
        """
        return self._native.admit(self._book, list(prompt), salt, adapter, tenant)

    def next_tokens(self, lease: Lease, budget: int) -> int:
        """How many of the next ``budget`` tokens a forward should compute, to end where a state is to be kept."""
        return self._native.next_tokens(lease, budget)

    def computed(self, lease: Lease, decoded: Tokens[int] = ()) -> None:
        """Keeps what a forward has computed; ``decoded`` are the tokens behind the prompt that it computed."""
        self._native.computed(self._book, lease, list(decoded))

    def finish(self, lease: Lease) -> None:
        """Ends a sequence, and keeps what it has computed."""
        self._native.finish(self._book, lease)

    def abandon(self, lease: Lease) -> None:
        """Gives up the hold of a sequence that leaves nothing more; the sequence itself is yours to end."""
        self._native.abandon(lease)

    def make_room(self, lack: Lack) -> bool:
        """Evicts something that helps against what a :class:`NoRoom` lacked; ``False`` where nothing does."""
        return self._native.make_room(self._book, lack)

    def clear(self) -> None:
        """Gives back everything that no running sequence holds."""
        self._native.clear(self._book)

    def metrics(self) -> dict[str, Any]:
        """What it has achieved so far."""
        metrics: dict[str, Any] = json.loads(self._native.metrics())
        return metrics
