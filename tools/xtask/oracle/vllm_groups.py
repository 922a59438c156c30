"""vLLM's own groups beside those of our plugin: how many sequences each holds in as many bytes.

Usage: vllm_groups.py FOLDER_OF_CONFIGS zoo|random < QUESTIONS, which are those of questions.py, asked without a GPU and with prefix
caching off and on. The zoo is asked at LENGTHS and answered with a table of those that differ, random ones with a line about all.

Configs take vLLM's whole way: its planner with its assertions, the scheduler's config, block sizes and hash sizes, and views of
every layer; of the zoo also the manager, coordinator and block pool, which are filled with sequences until one does not fit. Their
prompts are computed in steps, and their last token is a decoded one. A config that serves nothing, or less than vLLM's own, ends
the run.
"""

import contextlib
import json
import os
import sys
import time
import types
from itertools import count
from statistics import mean, median

import torch
import vllm.platforms
import vllm_planner as oracle

LENGTHS = [4096, 32768]
MOST = [16, 32]
STEP = 8192
DECODED = 512


@contextlib.contextmanager
def asked(most):
    """The platform as vLLM detects it with our plugin installed; without `most` it is the absent device alone."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    os.environ["CACHEPLAN_GROUPS"] = "" if most is None else str(most)
    vllm.platforms.builtin_platform_plugins = {"cuda": lambda: "vllm_planner.AbsentDevice"}
    found = resolve_obj_by_qualname(vllm.platforms.resolve_current_platform_cls_qualname())
    assert (found is oracle.AbsentDevice) == (most is None), found
    was, vllm.platforms.current_platform = vllm.platforms.current_platform, found()
    yield
    vllm.platforms.current_platform = was


def planned(config, specs, available, most):
    """The ranks' config and the scheduler's, with its sizes, as the engine core makes them."""
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.worker.utils import allocate_kv_cache

    block = config.cache_config.block_size
    with asked(most):
        rank, concurrency = oracle.planned_by_0_33(config, [specs], available)
    scheduler = utils.generate_scheduler_kv_cache_config([rank])
    try:
        config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in scheduler.kv_cache_groups)
        config.validate_block_size()
        sizes = utils.resolve_kv_cache_block_sizes(scheduler, config)
        utils.resolve_cache_hit_alignment_tokens(scheduler, config, *sizes)
    finally:
        config.cache_config.block_size = block
    layout = config.cache_config.get_resolved_kv_cache_layout()
    views = allocate_kv_cache(rank, torch.device("meta"), layout)
    assert set(views) == set(specs), "a layer has no cache"
    return scheduler, sizes, concurrency


def filled(config, scheduler, sizes):
    """Sequences of the longest length that the block pool holds, reused tokens of one that comes again, and the microseconds
    that the manager then takes for a decoded token."""
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256_cbor)
    caching, length = config.cache_config.enable_prefix_caching, config.model_config.max_model_len
    wide, narrow = sizes
    manager = KVCacheManager(
        scheduler,
        max_model_len=length,
        max_in_flight_tokens=config.max_in_flight_tokens,
        scheduler_block_size=wide,
        hash_block_size=narrow,
        enable_caching=caching,
    )
    hasher = get_request_block_hasher(narrow, sha256_cbor) if caching else None

    def come(number):
        """A request, and whether all of it found room."""
        told = types.SimpleNamespace(
            max_tokens=1, extra_args=None, structured_outputs=None, skip_reading_prefix_cache=False, prompt_logprobs=None
        )
        prompt = [number * 7919 + 1] * (length - 1)
        request = Request(str(number), prompt, told, None, block_hasher=hasher)
        computed, reused, request.shared_prefix_boundary = manager.get_computed_blocks(request)
        fresh, found = reused, computed
        while request.num_computed_tokens + fresh < length:
            start = request.num_computed_tokens + fresh
            # A step ends at a block's end where states are kept there.
            stops = [len(prompt), (len(prompt) - 1) // wide * wide, (start + STEP) // wide * wide, start + STEP]
            chunk = min([stop for stop in stops if stop > start], default=length) - start
            manager.new_step_starts()
            if manager.allocate_slots(request, chunk, fresh, found) is None:
                return request, False, reused
            request.num_computed_tokens, fresh, found = start + chunk, 0, None
            if request.num_computed_tokens >= request.num_tokens:
                request.append_output_token_ids(1)
        return request, True, reused

    manager.free(come(0)[0])
    again, has_room, reused = come(0)
    assert has_room, "what was held finds no room again"
    taken = []
    for _ in range(DECODED):
        manager.new_step_starts()
        began = time.perf_counter()
        assert manager.allocate_slots(again, 1) is not None
        taken.append(time.perf_counter() - began)
        again.num_computed_tokens += 1
        again.append_output_token_ids(1)
    manager.free(again)
    assert manager.reset_prefix_cache()

    running = []
    for number in count():
        request, has_room, _ = come(number)
        running.append(request)
        if not has_room:
            break
    held = len(running) - 1
    assert held > 0, "not one sequence is served"
    for request in running:
        manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == scheduler.num_blocks - 1, "blocks are lost"
    # Others use this machine too.
    return held, reused, median(taken) * 1e6


class Refused(Exception):
    """What vLLM does not start, whatever its groups; vllm_planner.py counts it."""


def built(question, caching):
    folder = oracle.folder_of(question)
    try:
        config = oracle.configured(question, caching, folder)
        specs = oracle.specs_of(config, 0)
        with asked(None):
            oracle.planned_by_0_33(config, [dict(specs)], question["bytes"])
        return config, specs
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}"[:200]) from error
    finally:
        torch.set_default_dtype(torch.float32)
        oracle.shutil.rmtree(folder)


def answers(question, caching, is_filled):
    """vLLM's own first, then ours for each of MOST: groups and sequences by its count, then what `filled` says."""
    from vllm.config import set_current_vllm_config

    config, specs = built(question, caching)
    with set_current_vllm_config(config):
        seen = [planned(config, dict(specs), question["bytes"], most) for most in [None, *MOST]]
        if all(scheduler == seen[0][0] for scheduler, _, _ in seen):
            return None
        told = [
            (len(scheduler.kv_cache_groups), by_count, *(filled(config, scheduler, sizes) if is_filled else (1, 1, 0)))
            for scheduler, sizes, by_count in seen
        ]
    for _, by_count, held, reused, _ in told[1:]:
        assert by_count >= told[0][1] and held >= told[0][2] and reused == told[0][3], (question, caching, told)
    return told


def asked_about(questions, is_zoo):
    for question in questions:
        for length in LENGTHS if is_zoo else [question["flags"]["max_model_len"]]:
            flags = question["flags"] | {"max_model_len": length, "max_num_batched_tokens": STEP}
            for caching in (False, True):
                asked = question["model"], length, caching
                try:
                    told = answers(question | {"flags": flags}, caching, is_zoo)
                except Refused as why:
                    print(*asked, why, file=sys.stderr, flush=True)
                    continue
                print(*asked, told or "the same", file=sys.stderr, flush=True)
                yield *asked, told


def head():
    most = " / ".join(["vLLM", *(f"at most {most}" for most in MOST)])
    names = ["model", "tokens", "caching", f"groups: {most}", "sequences by vLLM's count", "held", "more", "µs per token"]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def row(model, length, caching, told):
    def each(column, form):
        return " / ".join(format(answer[column], form) for answer in told)

    more = " / ".join(f"{answer[2] / told[0][2] - 1:.1%}" for answer in told[1:])
    asked = [model.replace("__", "/"), f"{length:,}", "on" if caching else "off"]
    cells = [*asked, each(0, ""), each(1, ".1f"), each(2, ","), more, each(4, ".0f")]
    return f"| {' | '.join(cells)} |"


def main():
    oracle.without_a_device()
    assert oracle.version() == "0.33", oracle.version()
    is_zoo = sys.argv[2] == "zoo"
    all_of_them = list(asked_about(map(json.loads, sys.stdin), is_zoo))
    differ = [answer for answer in all_of_them if answer[3] is not None]
    lines = [f"{len(differ)} of {len(all_of_them)} {sys.argv[2]} answers differ from vLLM's own"]
    for at, most in enumerate(MOST, 1):
        gains = [told[at][1] / told[0][1] - 1 for *_, told in differ if told[at][0] != told[0][0]]
        if gains:
            said = f"at most {most} groups hold {mean(gains):.1%} more in {len(gains)}, {max(gains):.1%} at most"
            lines.append(f"by vLLM's count {said}")
    table = [*head(), *(row(*answer) for answer in differ)] if is_zoo else []
    print("\n".join([*table, "", "; ".join(lines) + "."]), file=oracle.ANSWERS, flush=True)


if __name__ == "__main__":
    main()
