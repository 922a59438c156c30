"""SGLang's own tree over a device and host memory, on a CPU: what it hits of each request of small traces.

Each line that it prints is one trace: {"page": tokens of a page, "device": pages, "host": pages, "prompts": lists of pages, by
number, "hits": pages of each prompt that were not computed, "loaded": those of them that came from host memory, "aging": hits where
the rest of a span keeps its age}. A prompt has one token more than its pages, an answer none. Requests come one after the other: each
prompt is computed, inserted and let go before the next.

Where a prompt turns off inside a span, SGLang takes the rest, which nobody used, for just used, and so gives up something else
first. `aging` is the same tree without that one rule.

What is SGLang's own: `UnifiedRadixCache` with its tree core in Python and its component for keys, its allocator of device
slots, its eviction, its write-back to host memory and its loads. What stands for a device or what lies around it:

- `Pool`: host memory as numbers of slots. SGLang's pins memory and holds bytes.
- `Controller`: copies. SGLang's moves bytes on CUDA streams; here a copy is acknowledged at once.
- `SimpleNamespace` for pools of keys and of requests, whose tensors nobody reads.
- `Request`: what `init_load_back` reads of one.
"""

import json
import os
import random
import sys
from array import array
from types import SimpleNamespace

# The engine logs to stdout, where only answers belong.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class Pool:
    """Slots of host memory."""

    shared_allocation_domain = None
    host_evict_fn = None

    def __init__(self, tokens):
        self.free_slots = list(range(tokens))
        self.anchor_entry = SimpleNamespace(
            host_pool=SimpleNamespace(shared_allocation_domain=None), host_evict_fn=None
        )

    def available_size(self):
        return len(self.free_slots)

    def alloc(self, need):
        if need > len(self.free_slots):
            return None
        taken, self.free_slots = self.free_slots[:need], self.free_slots[need:]
        return torch.tensor(taken, dtype=torch.int64)

    def free(self, slots, pool=None):
        self.free_slots += slots.tolist()

    def get_pool(self, name):
        return None

    def clear(self):
        pass


class Done:
    def query(self):
        return True

    def synchronize(self):
        pass


class Controller:
    """Copies that are made at once."""

    write_policy = "write_back"
    enable_storage = False

    def __init__(self, device, host):
        self.device, self.mem_pool_host = device, host
        self.written, self.loads, self.ack_write_queue, self.ack_load_queue = [], [], [], []

    def write(self, device_indices, node_id, extra_pools=None, flush=True):
        assert not extra_pools
        slots = self.mem_pool_host.alloc(len(device_indices))
        if slots is not None:
            self.written.append(node_id)
        return slots

    def load(self, host_indices, node_id, extra_pools=None):
        assert not extra_pools
        slots = self.device.alloc(len(host_indices))
        if slots is not None:
            self.loads.append(node_id)
        return slots

    @staticmethod
    def acknowledged(nodes, queue):
        if nodes:
            queue.append(SimpleNamespace(node_ids=list(nodes), finish_event=Done(), num_tokens_by_pool=None, num_bytes=0, timing_enabled=False))
            nodes.clear()

    def start_writing(self):
        self.acknowledged(self.written, self.ack_write_queue)

    def start_loading(self):
        self.acknowledged(self.loads, self.ack_load_queue)
        return 0

    def evict_host(self, slots):
        self.mem_pool_host.free(slots)

    def reset(self):
        pass


class Request:
    rid = "request"
    swa_host_hit_length = 0
    mamba_host_hit_length = 0
    kv = SimpleNamespace(mamba_pool_idx=None)


def tree(question):
    page, kind = question["page"], (torch.float16, "cpu")
    keys = SimpleNamespace(page_size=page)
    if page == 1:
        device = TokenToKVPoolAllocator(question["device"] * page, *kind, keys, need_sort=False)
    else:
        device = PagedTokenToKVPoolAllocator(question["device"] * page, page, *kind, keys, need_sort=False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=SimpleNamespace(),
        token_to_kv_pool_allocator=device,
        page_size=page,
        tree_components=(ComponentType.FULL,),
        tree_core_backend="python",
    )
    cache = UnifiedRadixCache(params)
    if question["host"] > 0:
        host = Pool(question["host"] * page)
        cache.cache_controller, cache.host_pool_group = Controller(device, host), host
        cache.components[ComponentType.FULL]._full_kv_pool_host = host
        # What `init_hicache` sets behind its pools.
        cache.tree_core.set_hicache_enabled()
        cache.write_through_threshold, cache.is_write_back, cache.load_back_threshold = 2, True, 1
    return cache, device


def aging(core):
    """Lets the rest of a span that is split keep its age."""
    split = core._split_node

    def without_use(key, child, length):
        age = child.last_access_time
        made = split(key, child, length)
        child.last_access_time = age
        return made

    core._split_node = without_use


def answer(question, rest_ages=False):
    cache, device = tree(question)
    if rest_ages:
        aging(cache.tree_core)
    page = question["page"]
    hits, loads = [], []
    for at, pages in enumerate(question["prompts"]):
        prompt = array("q", [number * page + token for number in pages for token in range(page)] + [1 << 40 | at])
        # The last token is always computed.
        whole = len(pages) * page
        found = cache.match_prefix(MatchPrefixParams(key=RadixKey(token_ids=prompt[:whole])))
        node, hit, loaded = found.last_device_node, found.device_prefix_len, 0
        if cache.cache_controller is not None and found.host_hit_length > 0:
            request = Request()
            request.last_node = node
            asked = InitLoadBackParams(best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=request)
            loaded, node = cache.init_load_back(asked)
            cache.ready_to_load_host_cache()
            cache.loading_check()
        hit += loaded
        lock = cache.inc_lock_ref(node).to_dec_params()
        # The last token has a page of its own, which nobody keeps.
        tail = whole - hit + page
        if device.available_size() < tail:
            cache.evict_for_alloc(EvictParams(num_tokens=tail - device.available_size()))
        slots = device.alloc(tail)
        assert slots is not None, "the device holds no request"
        held = cache.path_device_indices(node)[:hit]
        value = torch.cat([held, slots[:-page]])
        cache.insert(InsertParams(key=RadixKey(token_ids=prompt[:whole]), value=value, prev_prefix_len=hit))
        cache.dec_lock_ref(node, lock)
        device.free(slots[-page:])
        hits.append(hit // page)
        loads.append(loaded // page)
    return hits, loads


def traces():
    """Documents that come again, of which some go on and some turn off."""
    for seed, (device, host) in enumerate([(12, 0), (20, 0), (12, 400), (20, 400), (32, 400), (12, 16), (20, 24), (20, 60), (32, 48)]):
        source = random.Random(seed)
        texts, prompts, new = [], [], 0
        for _ in range(80):
            start = source.choice(texts) if texts and source.random() < 0.8 else []
            kept = start[: source.randint(0, len(start))] if source.random() < 0.4 else start
            more = source.randint(0 if kept else 1, 4)
            text = (kept + list(range(new + 1, new + 1 + more)))[:10]
            new += more
            texts.append(text)
            prompts.append(text)
        yield {"page": 4, "device": device, "host": host, "prompts": prompts}


for question in traces():
    hits, loads = answer(question)
    said = question | {"hits": hits, "loaded": loads, "aging": answer(question, rest_ages=True)[0]}
    print(json.dumps(said, separators=(",", ":")), file=ANSWERS, flush=True)
