"""Our prefix tree beside SGLang's compiled tree core, in one run, over the same prompts.

Setup (CPU only, CPython 3.11):
    python3 -m venv venv
    venv/bin/pip install torch==2.14.1 numpy
    venv/bin/pip install --no-deps --target peer sglang==0.5.23
    cargo build --release -p cacheplan-managers --no-default-features --example peer_prefix_tree
    venv/bin/python benches/peers/prefix_tree.py peer target/release/examples/peer_prefix_tree

The peer is called through its Python binding, ours directly. What that costs the peer is measured and printed:
`crossing` is a match on an empty tree, `tensor` is to slice and clone the part of a value tensor that an insert keeps
(timed from Python, so rather too much). `core` is what remains of match and insert without them. Ratios are given
for both.
"""

import glob
import importlib.util
import json
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from array import array

import torch

FULL, MAMBA = 0, 2
LEVELS = [200, 200, 200, 200, 200, 100]
PROMPTS = 5000
LEAVES = 100_000


def load(folder):
    path = glob.glob(f"{folder}/**/rust_tree_core/mem_cache.cpython-*.so", recursive=True)[0]
    name = "sglang.srt.mem_cache.rust_tree_core.mem_cache"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompts():
    """Prompts of 1,100 tokens on paths of six nodes."""
    segments = {}

    def segment(level, node):
        if (level, node) not in segments:
            source = random.Random(level * 1_000_003 + node)
            segments[level, node] = [source.randrange(150_000) for _ in range(LEVELS[level])]
        return segments[level, node]

    result = []
    for leaf in range(PROMPTS):
        tokens = []
        for level in range(len(LEVELS)):
            width = PROMPTS ** ((level + 1) / len(LEVELS))
            tokens += segment(level, int(leaf / PROMPTS * width))
        result.append(tokens)
    return result


def leaves():
    """Prompts of 16 tokens that share nothing."""
    source = random.Random(7)
    return [[i + 200_000] + [source.randrange(150_000) for _ in range(15)] for i in range(LEAVES)]


def write(path, runs):
    with open(path, "wb") as file:
        file.write(struct.pack("<I", len(runs)))
        for tokens in runs:
            file.write(struct.pack(f"<{len(tokens) + 1}I", len(tokens), *tokens))


class Core:
    def __init__(self, module):
        self.module = module
        params = module.TreeCoreInitParamsBinding(page_size=1, device="cpu", mamba_cache_chunk_size=64)
        self.core = module.RustUnifiedTreeCoreBinding(params, [FULL, MAMBA])
        self.units = 1
        self.tracker = {FULL: 0, 1: 0, MAMBA: 0}

    def insert(self, tokens):
        value = torch.arange(self.units, self.units + len(tokens), dtype=torch.int64)
        self.units += len(tokens)
        params = self.module.InsertParamsBinding(
            key=array("q", tokens), value=value, mamba_value=torch.tensor([self.units], dtype=torch.int64)
        )
        return timed(lambda: self.core.insert(params))

    def match(self, tokens):
        params = self.module.MatchParamsBinding(key=array("q", tokens))
        return timed(lambda: self.core.match_prefix(params))

    def lock_unlock(self, node):
        def act():
            held = self.core.inc_lock_ref(node, [])
            receipt = self.module.DecLockRefParamsBinding(
                node_id=held.node_id,
                skipped_lock_components=held.skipped_lock_components,
                component_lock_uuids=held.component_lock_uuids,
                component_host_lock_uuids=held.component_host_lock_uuids,
            )
            self.core.dec_lock_ref(node, receipt, False)

        return timed(act)[0]

    def evict(self, component):
        """One unit, as the cache above the core drives it."""

        def act():
            self.core.evict_device_start(component, 1)
            freed = 0
            while freed < 1:
                step = self.core.evict_device_next_node(component, self.tracker)
                freed += step.tracker.get(component, 0)
                if step.node_id is not None:
                    freed += self.core.evict_device_leaf(step.node_id).tracker.get(component, 0)
                elif not step.made_progress:
                    break
            self.core.evict_device_end(component)
            return freed

        nanos, freed = timed(act)
        assert freed >= 1
        return nanos


def timed(act):
    start = time.perf_counter_ns()
    result = act()
    return time.perf_counter_ns() - start, result


def measure(module, runs, wide):
    core, empty = Core(module), Core(module)
    order = [runs[i * 2_654_435 % len(runs)] for i in range(len(runs))]
    insert = [core.insert(tokens)[0] for tokens in runs]
    hits, match, lock = 0, [], []
    for tokens in order:
        nanos, found = core.match(tokens)
        hits += found.device_prefix_len
        match.append(nanos)
        lock.append(core.lock_unlock(found.last_device_node_id))
    diverging = []
    for tokens in order:
        tokens = list(tokens)
        tokens[len(tokens) // 2] = 2**31 - 1
        diverging.append(core.match(tokens)[0])
    floor = [empty.match(tokens)[0] for tokens in order[:1000]]
    states = [core.evict(MAMBA) for _ in range(1000)]
    kv = [core.evict(FULL) for _ in range(200)]
    broad = Core(module)
    for tokens in wide:
        broad.insert(tokens)
    kv_wide = [broad.evict(FULL) for _ in range(30)]
    medians = {
        "insert": insert,
        "match": match,
        "match_diverging": diverging,
        "lock_unlock": lock,
        "evict_state": states,
        "evict_leaf": kv,
        "evict_leaf_100k": kv_wide,
    }
    value = torch.arange(1100, dtype=torch.int64)
    tensor = [timed(lambda: value[1000:].clone())[0] for _ in range(1000)]
    medians = {name: statistics.median(samples) for name, samples in medians.items()}
    return hits, medians, statistics.median(floor), statistics.median(tensor)


def main():
    folder, ours = sys.argv[1:3]
    module = load(folder)
    runs, wide = prompts(), leaves()
    with tempfile.TemporaryDirectory() as scratch:
        write(f"{scratch}/prompts", runs)
        write(f"{scratch}/leaves", wide)
        command = [ours, f"{scratch}/prompts", f"{scratch}/leaves"]
        here = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        hits, there, crossing, tensor = measure(module, runs, wide)
    assert hits == here["hits"], f"the trees disagree: {hits} and {here['hits']} tokens hit"
    print(f"both hit {hits} of {sum(map(len, runs))} tokens")
    print(f"crossing {crossing / 1000:.2f} us, tensor {tensor / 1000:.2f} us")
    print(f"{'operation':<18}{'peer us':>10}{'core us':>10}{'ours us':>10}{'ratio':>10}{'core ratio':>12}")
    for name, nanos in there.items():
        outside = crossing * name.startswith(("match", "insert")) + tensor * (name == "insert")
        core = nanos - outside
        mine = here[name]
        print(
            f"{name:<18}{nanos / 1000:>10.2f}{core / 1000:>10.2f}{mine / 1000:>10.3f}"
            f"{nanos / mine:>10.1f}{core / mine:>12.1f}"
        )


if __name__ == "__main__":
    main()
