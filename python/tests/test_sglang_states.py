"""States in SGLang's events: where the hook goes, and what it leaves alone.

`managers/index/tests/sglang.rs` holds what it says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cacheplan import _sglang_guard, _sglang_states
from conftest import put

KINDS = SimpleNamespace(FULL=0, MAMBA=1, SWA=2)


@pytest.mark.parametrize("asked", ["1", "0", None])
def test_events_are_hooked_where_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    registered: list[str] = []
    registry = SimpleNamespace(register=lambda target, hook, kind: registered.append(target))
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        put(monkeypatch, name)
    kinds = SimpleNamespace(AFTER="after", BEFORE="before")
    put(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=kinds)
    monkeypatch.delenv("CACHEPLAN_PLAN", raising=False)
    monkeypatch.delenv(_sglang_states.VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(_sglang_states.VARIABLE, asked)
    _sglang_guard.install()
    assert registered == ([_sglang_states.TARGET] if asked == "1" else [])


@pytest.mark.parametrize(
    "core",
    [
        SimpleNamespace(component_types=(0, 1)),
        SimpleNamespace(component_types=(0, 1, 2), lru_lists={}, kv_events=SimpleNamespace(enabled=True)),
        SimpleNamespace(component_types=(0, 1), lru_lists={}, kv_events=SimpleNamespace(enabled=False)),
    ],
    ids=["in Rust", "with windows", "silent"],
)
def test_a_tree_whose_states_are_not_seen_says_what_it_said(monkeypatch: pytest.MonkeyPatch, core: Any) -> None:
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.unified_cache"):
        put(monkeypatch, name)
    put(monkeypatch, "sglang.srt.mem_cache.unified_cache.component_type", ComponentType=KINDS)
    assert _sglang_states._with_states([], SimpleNamespace(tree_core=core)) is None
