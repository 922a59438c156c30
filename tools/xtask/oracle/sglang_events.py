"""SGLang's own tree of keys and states on a CPU: its events, ours through a hook, and the tokens that it goes on from.

Usage: sglang_events.py OUT.jsonl.gz. Each line of OUT is one trace: steps of [prompt, tokens that the tree goes on from, its events
as hex, the same with states as hex]. The events of a step are those that came before its question; the last step has no prompt.

What is SGLang's own: `UnifiedRadixCache` with its tree core in Python, its components for keys and for states, its allocator of
device slots, its eviction and its recorder of events, and its registry of hooks. What stands for a device or lies around it:

- `States`: slots of states as numbers. SGLang's hold tensors.
- `names`: a page's hash in Python. SGLang compiles its own at the first use.
- the settings of a server that its component for states reads.
"""

import gzip
import hashlib
import importlib.util
import json
import os
import pathlib
import random
import sys
from array import array
from types import SimpleNamespace

(OUT,) = sys.argv[1:]
os.environ["HF_HUB_OFFLINE"] = "1"

import msgspec
import torch
from sglang.srt.disaggregation.kv_events import KVEventBatch
from sglang.srt.mem_cache import memory_pool, utils
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType, mamba
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins.hook_registry import HookRegistry

PAGE = 4
# The hook alone: the package around it needs to be built.
path = pathlib.Path(__file__).resolve().parents[3] / "python/python/cacheplan/_sglang_states.py"
spec = importlib.util.spec_from_file_location("states", path)
hook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hook)
hook.install()
HookRegistry.apply_hooks()
assert hasattr(UnifiedRadixCache.take_events, "__wrapped__")

settings = SimpleNamespace(mamba=SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False))
mamba.get_exec = lambda: settings
mamba.mamba_cache_chunk_size = lambda: PAGE
mamba.mamba_checkpoint_grid = lambda page: page


def names(tokens, before, page):
    named = []
    for start in range(0, len(tokens), page):
        text = repr(list(tokens.token_ids[start : start + page])).encode()
        before = hashlib.sha256((before or b"") + text).digest()
        named.append(before.hex())
    return named


utils.get_native_hash = names


class States(memory_pool.HybridReqToTokenPool):
    """Slots of states."""

    def __init__(self, slots):
        self.mamba_allocator, self.mamba_ckpt_pool = self, None
        self.free_slots = list(range(slots))

    def available_size(self):
        return len(self.free_slots)

    schedulable_available_size = available_size

    def alloc(self, need):
        if need > len(self.free_slots):
            return None
        taken, self.free_slots = self.free_slots[:need], self.free_slots[need:]
        return torch.tensor(taken, dtype=torch.int64)

    def free(self, slots):
        self.free_slots += slots.view(-1).tolist()


def replay(prompts, pages, slots, draw):
    keys = SimpleNamespace(page_size=PAGE)
    device = PagedTokenToKVPoolAllocator(pages * PAGE, PAGE, torch.float16, "cpu", keys, need_sort=False)
    states = States(slots)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=states,
        token_to_kv_pool_allocator=device,
        page_size=PAGE,
        enable_kv_cache_events=True,
        enable_mamba_extra_buffer=True,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        tree_core_backend="python",
    )
    tree = UnifiedRadixCache(params)
    told = []
    encode = msgspec.msgpack.Encoder().encode

    def events():
        # Both from one take: what the recorder has, and what the hook makes of it.
        recorder = tree.tree_core.kv_events
        plain = encode(KVEventBatch(ts=0.0, events=list(recorder._queue))).hex()
        return plain, encode(KVEventBatch(ts=0.0, events=tree.take_events())).hex()

    for prompt in prompts:
        whole = (len(prompt) - 1) // PAGE * PAGE
        plain, ours = events()
        found = tree.match_prefix(MatchPrefixParams(key=RadixKey(token_ids=array("q", prompt[:whole]))))
        hit, node = found.device_prefix_len, found.last_device_node
        told.append([prompt, hit, plain, ours])
        lock = tree.inc_lock_ref(node).to_dec_params()
        # A chunk may end on the way, and a state is kept there too.
        middle = draw.randrange(0, whole + 1, PAGE)
        start = hit
        for end in sorted({end for end in (middle, whole) if end > hit}):
            need = end - start
            if device.available_size() < need:
                tree.evict_for_alloc(EvictParams(num_tokens=need - device.available_size()))
            if states.available_size() < 1:
                tree.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slots_of_keys, slot = device.alloc(need), states.alloc(1)
            assert slots_of_keys is not None and slot is not None, "the device holds no request"
            value = torch.cat([tree.path_device_indices(node)[:start], slots_of_keys])
            key = RadixKey(token_ids=array("q", prompt[:end]))
            made = tree.insert(InsertParams(key=key, value=value, mamba_value=slot, prev_prefix_len=start))
            if made.mamba_exist:
                states.free(slot)
            after = tree.inc_lock_ref(made.last_device_node).to_dec_params()
            tree.dec_lock_ref(node, lock)
            node, lock, start = made.last_device_node, after, end
        tree.dec_lock_ref(node, lock)
    return told + [[None, 0, *events()]]


def conversations(draw):
    """Prompts that go on, turn off, or begin as others do."""
    texts = []
    for _ in range(100):
        start = draw.choice(texts) if texts and draw.random() < 0.8 else []
        kept = start[: draw.randint(0, len(start))] if draw.random() < 0.4 else start
        text = (kept + [draw.randrange(50) for _ in range(draw.randint(2, 30))])[:90]
        texts.append(text)
        yield text


# Equal answers are equal bytes.
with open(OUT, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as out:
    for seed, (pages, slots) in enumerate([(60, 4), (60, 12), (200, 6), (200, 40), (1000, 300)]):
        steps = replay(conversations(random.Random(seed)), pages, slots, random.Random(100 + seed))
        out.write((json.dumps({"pages": pages, "states": slots, "steps": steps}, separators=(",", ":")) + "\n").encode())
