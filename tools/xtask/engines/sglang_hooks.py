"""Drives the guard by SGLang's own plugins and sizes of pools, without a GPU.

Usage: sglang_hooks.py FOLDER_OF_CONFIGS. Real are the entry point, the registry of hooks, the arguments, and what becomes of
bytes; stand-ins are the device (`oracle/sglang_pools.py`), the bytes that are profiled on it and the pools themselves.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))

import cacheplan
import sglang_pools
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

CONFIGS = Path(sys.argv[1])
LENGTH, GIB = 4096, 2**30
PLANNED = {"max_seq_len": LENGTH, "max_batch_size": 64, "prefix_caching": False, "memory_bytes": f"{20 * GIB}B"}


class Made(Exception):
    """The pools would be made now."""


def profiled(self, pre_model_load_memory: int) -> int:
    states = self.mambaish_config is not None
    return int((self._handle_max_mamba_cache(pre_model_load_memory) if states else pre_model_load_memory) * GIB)


def pools(self, *, sizes, req_to_token_pool, token_to_kv_pool_allocator):
    raise Made


KVCacheConfigurator._profile_available_bytes, KVCacheConfigurator._init_pools = profiled, pools


def configure(folder, gib, *flags):
    """As a scheduler does with the plan's flags; None where the pools would have been made, else what ended the start."""
    words = ["--model-path", str(folder), *flags]
    args = sglang_pools.parsed(words, str(folder))
    configurator = sglang_pools.configurator(args)
    try:
        configurator.configure(pre_model_load_memory=gib)
    except Made:
        return None
    except cacheplan.EngineError as error:
        return str(error)


def main():
    from sglang.srt import plugins

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sglang_pools.pretend_a_device()
    os.environ["CACHEPLAN_ENFORCE"] = "refuse"
    for name in ("Qwen__Qwen3-8B", "google__gemma-3-1b-it", "Qwen__Qwen3.5-9B"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            config = json.loads((CONFIGS / f"{name}.json").read_text())
            (Path(folder) / "config.json").write_text(json.dumps(config))
            plan = cacheplan.plan(folder, engine="sglang@0.5.23", **PLANNED)
            path.write_text(plan.to_json())
            settings = plan.export("sglang", version="0.5.23").settings
            flags = [f"--{own.key}" if own.value is True else f"--{own.key}={own.value}" for own in settings]
            os.environ["CACHEPLAN_PLAN"] = str(path)
            # A process is one start.
            if os.fork() == 0:
                plugins.load_plugins()
                ended = configure(folder, 20, *flags)
                assert ended is None, ended
                ended = configure(folder, 5, *flags)
                assert ended is not None and " plans it: tokens" in ended, ended
                print(f"{name}: made as planned; with a quarter of the bytes: {ended}", file=sglang_pools.ANSWERS, flush=True)
                os._exit(0)
            assert os.wait()[1] == 0, name


if __name__ == "__main__":
    main()
