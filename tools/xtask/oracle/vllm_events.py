"""vLLM's own block pool and coordinator on a CPU: their events, and the tokens that they count as reused.

Usage: vllm_events.py FOLDER_THAT_HAS_vllm OUT.jsonl.gz. Each line of OUT is one trace on one model: its name, the groups that
it was given, and steps of [prompt, hashes of its blocks, reused tokens, events as hex]. The events of a step are those that
came before its question; the last step has no prompt.

The manager, the coordinator, the block pool, their specs and requests are vLLM's; torch and the parts of vLLM that load
models, platforms and configs are empty stubs. Chunks end where the scheduler ends them for states, by its rule.
"""

import gzip
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import types
from unittest.mock import MagicMock

ROOT, OUT = sys.argv[1:]
STUBS = (
    "torch", "triton", "transformers", "torchvision", "vllm.config", "vllm.lora", "vllm.model_executor", "vllm.platforms",
    "vllm.distributed.parallel_state", "vllm.forward_context", "vllm.multimodal", "vllm.sampling_params",
    "vllm.pooling_params", "vllm.v1.engine", "vllm.v1.structured_output",
)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == stub or name.startswith(stub + ".") for stub in STUBS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "2.13.0"

        class Anything(type):
            def __getattr__(cls, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return MagicMock()

        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            body = {"__class_getitem__": classmethod(lambda cls, key: cls), "__init__": lambda self, *a, **k: None}
            made = Anything(name, (), body) if name[0].isupper() or name == "dtype" else MagicMock(name=name)
            setattr(module, name, made)
            return made

        module.__getattr__ = missing
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Stubs())
# Packages without what they import at their start.
for name in ("vllm", "vllm.distributed"):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [os.path.join(ROOT, *name.split("."))]
sys.modules["vllm"].distributed = sys.modules["vllm.distributed"]

import msgspec
from vllm.distributed.kv_events import KVEventBatch
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

init_none_hash(sha256_cbor)


def full(block=16):
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=8, dtype="")


def window(tokens, block=16):
    return SlidingWindowSpec(block_size=block, num_kv_heads=1, head_size=8, dtype="", sliding_window=tokens)


def state(block=16):
    return MambaSpec(block_size=block, shapes=((1,),), dtypes=("",), mamba_cache_mode="align")


FINE = [full(32), window(16, 8), window(16, 8), window(4, 2), window(16, 4)]
# Groups as vLLM makes them of such models, with windows as short as the traces. Blocks, of which the pool has few enough to evict.
MODELS = {
    "keys alone": (70, [full()]),
    "window alone": (70, [window(40)]),
    "one window beside keys": (130, [full(), window(64)]),
    "five windows beside keys": (300, [full()] + [window(50)] * 5),
    "window of two blocks' tokens": (130, [full(), window(33)]),
    "states beside keys": (140, [full(), state()]),
    "three groups of states": (220, [full(), state(), state(), state()]),
    "states of wide blocks": (120, [full(32), state(32)]),
    "states before keys": (140, [state(), full()]),
    "windows and states": (200, [full(), window(64), state()]),
    "two windows": (200, [full(), window(32), window(96)]),
    "window in wider blocks": (130, [full(16), window(64, 32)]),
    "windows in finer blocks": (420, FINE),
    "windows in finer blocks, kept where prompts end": (340, FINE),
    "states, kept where prompts end": (140, [full(), state()]),
}


def chat(draw):
    """Turns of conversations, each a prompt of all that was said before."""
    said = [[draw.randrange(99) for _ in range(draw.randrange(20, 90))] for _ in range(4)]
    for _ in range(26):
        turn = draw.choice(said)
        turn += [draw.randrange(99) for _ in range(draw.randrange(5, 60))]
        if len(turn) > 420:
            del turn[draw.randrange(20, 90) :]
        yield list(turn)


def agents(draw):
    """One long instruction, then calls that share more or less of a plan."""
    common = [draw.randrange(99) for _ in range(150)]
    plans = [common + [draw.randrange(99) for _ in range(draw.randrange(10, 120))] for _ in range(3)]
    for _ in range(26):
        plan = draw.choice(plans)
        yield plan[: draw.randrange(100, len(plan) + 1)] + [draw.randrange(99) for _ in range(draw.randrange(1, 70))]


def documents(draw):
    """Questions about documents, and many prompts sent again as they were."""
    texts = [[draw.randrange(99) for _ in range(draw.randrange(160, 330))] for _ in range(4)]
    last = texts[0]
    for _ in range(26):
        if draw.random() > 0.35:
            last = draw.choice(texts) + [draw.randrange(99) for _ in range(draw.randrange(0, 40))]
        yield list(last)


def steps(blocks, specs, prompts, draw, retention):
    hash_block = min(spec.block_size for spec in specs)
    wide = max(spec.block_size for spec in specs)
    groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
    manager = KVCacheManager(
        KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=retention,
        ),
        max_model_len=2048,
        scheduler_block_size=wide,
        hash_block_size=hash_block,
        enable_kv_cache_events=True,
    )
    hasher = get_request_block_hasher(hash_block, sha256_cbor)
    encode = msgspec.msgpack.Encoder().encode
    running = []

    def events():
        return encode(KVEventBatch(ts=0.0, events=manager.take_events(), data_parallel_rank=0)).hex()

    for number, prompt in enumerate(prompts):
        if number == 18 and draw.random() < 0.5:
            for request in running:
                manager.free(request)
            running.clear()
            assert manager.reset_prefix_cache()
        parameters = types.SimpleNamespace(
            max_tokens=9, extra_args=None, structured_outputs=None, skip_reading_prefix_cache=False, prompt_logprobs=None
        )
        request = Request(str(number), prompt, parameters, None, block_hasher=hasher)
        computed, reused, junction = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        hashes = [int.from_bytes(hash[-8:], "big") for hash in request.block_hashes]
        yield [prompt, hashes, reused, events()]
        fresh, found = reused, computed
        end = len(prompt) + draw.randrange(0, 40)
        while request.num_computed_tokens + fresh < end:
            start = request.num_computed_tokens + fresh
            chunk = min(64, len(prompt) - start) if start < len(prompt) else 1
            stops = [(len(prompt) - 1) // wide * wide, junction // wide * wide]
            if start + chunk < len(prompt):
                stops.append((start + chunk) // wide * wide)
            chunk = min([stop - start for stop in stops if start < stop < start + chunk] + [chunk])
            while manager.allocate_slots(request, chunk, fresh, found) is None and running:
                manager.free(running.pop(0))
            request.num_computed_tokens, fresh, found = start + chunk, 0, None
            if request.num_computed_tokens >= request.num_tokens:
                request.append_output_token_ids(draw.randrange(99))
        running.append(request)
        if len(running) > 2:
            manager.free(running.pop(0))
    yield [None, [], 0, events()]


with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as out:
    for name, (blocks, specs) in MODELS.items():
        for trace in (chat, agents, documents):
            draw = random.Random(f"{name} {trace.__name__}")
            retention = 0 if name.endswith("kept where prompts end") else None
            said = list(steps(blocks, specs, trace(draw), draw, retention))
            line = {"model": name, "trace": trace.__name__, "groups": len(specs), "steps": said}
            out.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            print(name, trace.__name__, len(said) - 1, "requests", sum(step[2] for step in said), "reused",
                  sum(len(step[0] or []) for step in said), "asked", file=sys.stderr)
