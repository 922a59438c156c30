"""vLLM's platform with our groups of caches: the entry point ``cacheplan`` of ``vllm.platform_plugins`` (0.33).

It is none unless ``CACHEPLAN_GROUPS`` says the most groups that a model may have. vLLM takes one platform of plugins at
most, and none where ``VLLM_TARGET_DEVICE`` is ``cpu``.
"""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from typing import Any

from cacheplan._errors import BudgetError

GROUPS = "CACHEPLAN_GROUPS"
HOOK = "get_kv_cache_config_builder_cls"
THEIRS = "vllm.v1.core.kv_cache_planning.DefaultKVCacheConfigBuilder"
OURS = "cacheplan._vllm_builder.Builder"

log = logging.getLogger("vllm.cacheplan")


def most_groups() -> int | None:
    """The most groups that a model may have; None where nobody asks for ours."""
    said = os.environ.get(GROUPS)
    if not said:
        return None
    if not (said.isascii() and said.isdigit() and len(said) < 10 and int(said) > 0):
        message = f"{GROUPS} is `{said}`; it is the most groups that a model may have"
        raise BudgetError(message, key=GROUPS, found=said, hint="16")
    return int(said)


def platform() -> str | None:
    """Names the detected platform with our builder, where that is asked for and this vLLM has builders."""
    if most_groups() is None:
        return None
    found = _detected()
    if len(found) != 1:
        log.warning("cacheplan: groups are vLLM's own: %s", f"several platforms, {found}" if found else "no platform")
        return None
    if not hasattr(import_module("vllm.platforms.interface").Platform, HOOK):
        log.warning("cacheplan: groups are vLLM's own: this version builds them in one way alone")
        return None
    return f"{__name__}.Platform"


def _detected() -> list[str]:
    """The names of the platforms that vLLM finds by itself."""
    names = []
    for probe in import_module("vllm.platforms").builtin_platform_plugins.values():
        try:
            names.append(probe())
        except Exception as error:
            # As vLLM takes it: not this one.
            log.debug("cacheplan: a platform cannot be asked for: %r", error)
    return [name for name in names if name is not None]


def planned(base: type[Any]) -> type[Any]:
    """A platform that is ``base`` in all but the builder of caches, and in that too where it has one of its own."""

    class Platform(base):
        @classmethod
        def get_kv_cache_config_builder_cls(cls, vllm_config: Any) -> str:
            theirs: str = super().get_kv_cache_config_builder_cls(vllm_config)
            return OURS if theirs == THEIRS else theirs

    Platform.__module__, Platform.__qualname__ = __name__, "Platform"
    return Platform


@functools.cache
def _platform() -> type[Any]:
    (found,) = _detected()
    module, _, name = found.rpartition(".")
    return planned(getattr(import_module(module), name))


def __getattr__(name: str) -> type[Any]:
    # vLLM imports the class by its name; its base is known only then.
    if name == "Platform":
        return _platform()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
