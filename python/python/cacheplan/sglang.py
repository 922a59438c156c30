"""A plan as SGLang's own ``ServerArgs``."""

from __future__ import annotations

import argparse
from typing import Any

from cacheplan._errors import EngineError
from cacheplan._plan import Plan

__all__ = ["server_args"]


def server_args(plan: Plan, model: str, *, version: str | None = None, flags: tuple[str, ...] = ()) -> Any:
    """The ``sglang.srt.server_args.ServerArgs`` of a plan, read by SGLang's own parser.

    ``model`` is the path or name that it loads, ``flags`` are further ones, which go before the plan's; ``version`` is
    the one whose flags are written. What SGLang cannot be told is in ``plan.export("sglang").not_expressed``.

    Raises :class:`cacheplan.ExportError`, and :class:`cacheplan.EngineError` where SGLang is not installed or refuses a
    flag.
    """
    settings = plan.export("sglang", version=version, model=model).settings
    stated = [f"--{item.key}" if item.value is True else f"--{item.key}={item.value}" for item in settings]
    try:
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        raise EngineError(f"SGLang cannot be imported: {error}", key="sglang", hint="pip install sglang") from error
    parser = argparse.ArgumentParser(prog="sglang", exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    try:
        # Of a flag that stands twice the last one counts.
        parsed = parser.parse_args(["--model-path", model, *stated, *flags])
    except (argparse.ArgumentError, SystemExit) as error:
        raise EngineError(f"this SGLang takes other flags: {error}", key="sglang", found=" ".join(stated)) from error
    return ServerArgs.from_cli_args(parsed)
