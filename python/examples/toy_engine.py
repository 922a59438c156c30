"""An engine over the books: continuous batching, prefix reuse, preemption. Its model draws tokens at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import cacheplan


@dataclass
class Request:
    """``tokens`` grows by ``wanted``; what was ``known`` at its admission is the prompt."""

    tokens: list[int]
    wanted: int
    lease: cacheplan.Lease | None = None
    known: int = 0


def serve(
    plan: cacheplan.Plan, requests: list[Request], watch: Callable[[cacheplan.Step], None] = lambda _: None
) -> dict[str, int]:
    """Serves them all; says how many steps it took, how many were preempted, and how many tokens were cached."""
    waiting, running = deque(requests), list[tuple[Request, cacheplan.Lease]]()
    counts = {"steps": 0, "preempted": 0, "cached": 0}
    with cacheplan.CacheBook(plan) as book:
        reuse, room = cacheplan.PrefixReuse(plan, book), True
        while waiting or running:
            # Who had to leave comes back when the others have gone on.
            while waiting and (room or not running) and len(running) < plan.limits.max_batch_size:
                request = waiting[0]
                try:
                    lease = reuse.admit(request.tokens)
                except cacheplan.NoRoom:
                    if not running:
                        raise
                    break
                request.known = len(request.tokens)
                counts["cached"] += lease.cached
                running.append((waiting.popleft(), lease))
            left, work = plan.limits.max_num_tokens, list[tuple[Request, cacheplan.Lease, int]]()
            for request, lease in running:
                due = len(request.tokens) - book.tokens(lease.sequence)
                count = reuse.next_tokens(lease, min(due, left))
                left -= count
                if count:
                    work.append((request, lease, count))
            try:
                step = book.step((lease.sequence, count) for _, lease, count in work)
            except cacheplan.NoRoom as error:
                if not reuse.make_room(error.lack):
                    request, lease = running.pop()
                    reuse.finish(lease)
                    waiting.appendleft(request)
                    counts["preempted"] += 1
                    room = False
                continue
            room = True
            counts["steps"] += 1
            watch(step)
            for request, lease, count in work:
                end = book.tokens(lease.sequence)
                reuse.computed(lease, request.tokens[max(end - count, request.known) : end])
                if end < len(request.tokens):
                    continue
                if request.wanted:
                    request.tokens.append(random.randrange(1000))
                    request.wanted -= 1
                else:
                    reuse.finish(lease)
                    running.remove((request, lease))
    return counts
