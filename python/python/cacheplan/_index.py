"""Which worker of a fleet can go on from how many tokens of a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cacheplan import _native


@dataclass(frozen=True, slots=True)
class Reuse:
    """What one worker can reuse of a prompt.

    ``tokens`` is what it can go on from, ``keys`` what its keys alone would allow, ``limited_by`` what holds fewer.
    ``trust`` says what the counts are worth: ``at_most`` where the engine's events say nothing of states or windows.
    """

    worker: int
    rank: int
    tokens: int
    keys: int
    limited_by: Literal["keys", "window", "state", "unknown"] | None
    trust: Literal["exact", "at_most", "at_least", "estimate"]


class Index:
    """What each worker holds, from the bytes that its engine publishes. Threads may share it.

    ``workers`` and ``blocks`` (of each worker) bound its memory.
    """

    __slots__ = ("_native",)

    def __init__(self, *, workers: int = 4096, blocks: int = 1 << 20) -> None:
        self._native = _native.Index(workers, blocks)

    def take(self, worker: int, number: int, data: bytes) -> None:
        """Takes a batch as vLLM, SGLang or TensorRT-LLM's streaming published it, with the publisher's number.

        Raises :class:`EventError` for bytes that are none; nothing of them is kept then.
        """
        self._native.take(worker, number, data)

    def take_trtllm(self, worker: int, events: bytes | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Takes what TensorRT-LLM's ``get_kv_cache_events`` gave: events as dictionaries, or their JSON."""
        if not isinstance(events, bytes):
            events = json.dumps(events if isinstance(events, Mapping) else list(events)).encode()
        self._native.take_trtllm(worker, events)

    def next_number(self, worker: int, rank: int = 0) -> int | None:
        """The number of the worker's next batch; lower than one that arrives, batches were lost and can be replayed."""
        return self._native.next_number(worker, rank)

    def forget(self, worker: int) -> None:
        """Forgets a worker with all its ranks."""
        self._native.forget(worker)

    def ask(self, tokens: Iterable[int]) -> list[Reuse]:
        """What each worker can reuse of a prompt, in the order of their numbers. The last token is always computed."""
        return [Reuse(*row) for row in self._native.ask_tokens(list(tokens))]

    def ask_hashes(self, hashes: Iterable[int], *, block: int, tokens: int) -> list[Reuse]:
        """The same by the engine's hashes, one for each whole block of ``block`` tokens."""
        return [Reuse(*row) for row in self._native.ask_hashes(list(hashes), block, tokens)]

    def sizes(self) -> dict[tuple[int, int], tuple[int, int]]:
        """For each worker and rank the blocks that are known, and how many were left out at the bound."""
        return {(worker, rank): (blocks, left_out) for worker, rank, blocks, left_out in self._native.sizes()}
