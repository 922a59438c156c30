"""What SGLang's own parser, checks and pools make of whole commands on a CPU: one answer per question, which is a line of JSON.

Usage: sglang_commands.py FOLDER_OF_CONFIGS [short]. A question is {"model": one of them, "words": flags of the server behind the model's,
"env": variables, "devices": GPUs, 1 where it is not said, "device": what they are, H100s where it is not said, "gib": for caches, 20
where it is not said, "changes": keys of the config by their paths}. A word `DRAFT:NAME` is the path of another config. An answer is {"parser": what argparse
says before it ends} or {"refuses": what is raised, "where": the function that does} or {"unknown": what is missing here}, else
{"values": what shapes caches, "pools": how the bytes are divided, or {"refuses"} or {"unknown"}}; short it is what tests compare.

Each question is answered in a process of its own, since handlers set variables and caches that others read.
"""

import argparse
import functools
import importlib
import json
import logging
import os
import sys
import tempfile
import traceback

import sglang_pools as pools
import torch
from configs import change, config_of, whole
from sglang.srt.arg_groups import kv_shard_hook, memory_hook
from sglang.srt.arg_groups.model_overrides import qwen3_vl
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.utils import get_pp_indices
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator, mm_runtime_reservation_gb
from sglang.srt.model_executor import cuda_graph_config
from sglang.srt.model_executor.model_runner_components.layer_setup import ModelLayerInfo
from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import resolve_spec_aux_hidden_state_config
from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator
from sglang.srt.runtime_context import get_context, get_mm, get_schedule, get_spec, override_platform
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils import common
from sglang.srt.utils.hf_transformers.common import _CONFIG_REGISTRY
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

GIB = 2**30
# MiB as the project's catalogue has them, and the compute capability times ten.
DEVICES = {
    "a100-80gb": (81_920, 80), "h100": (81_559, 90), "h200": (143_771, 90), "b200": (183_359, 100), "l4": (23_034, 89),
    "rtx-4090": (24_564, 89), "rtx-5090": (32_607, 120), "t4": (15_360, 75),
}
DTYPES = {
    "auto": torch.bfloat16, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2, "fp4_mx_block16": torch.float4_e2m1fn_x2,
}
VALUES = """context_length chunked_prefill_size max_prefill_tokens max_running_requests max_total_tokens mem_fraction_static page_size
kv_cache_dtype max_mamba_cache_size mamba_ssm_dtype mamba_radix_cache_strategy mamba_full_memory_ratio swa_full_tokens_ratio
disable_radix_cache disable_overlap_schedule disable_hybrid_swa_memory enable_hierarchical_cache attention_backend
prefill_attention_backend decode_attention_backend tp_size pp_size dp_size attn_dp_size ep_size dcp_size speculative_algorithm
speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens dtype""".split()
# Raised of what is no part of the command: packages and devices that are not here.
ABSENT = (ImportError, ModuleNotFoundError)


class Ends(Exception):
    """argparse ends the process."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Ends(message)

    def exit(self, status=0, message=None):
        raise Ends(message or "prints something and ends")


def pretend(devices, device):
    mib, capability = DEVICES[device]
    pools.pretend_a_device()
    torch.cuda.device_count = lambda: devices
    torch.cuda.mem_get_info = lambda device=None: (mib << 20, mib << 20)
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
    torch.version.cuda = torch.version.cuda or "13.0"
    pools.PROPERTIES.total_memory = mib << 20
    pools.PROPERTIES.major, pools.PROPERTIES.minor = divmod(capability, 10)
    for module in (memory_hook, kv_shard_hook, common, qwen3_vl):
        module.get_device_memory_capacity = lambda device=None: mib
    of = lambda *majors: capability // 10 in majors
    qwen3_vl.is_sm90_supported = lambda: of(9)
    cuda_graph_config.default_prefill_backend = lambda: cuda_graph_config.Backend.BREAKABLE
    override_platform(
        is_cuda=True, is_hip=False, is_npu=False, is_xpu=False, is_musa=False, is_mps=False, is_sm90=of(9), is_sm100=of(10),
        is_sm100_or_sm110=of(10), is_sm110=False, is_sm120=of(12), is_blackwell=of(10, 12), is_hopper_with_cuda_12_3=of(9),
        has_flashinfer=True, device_sm=capability, device_capability=divmod(capability, 10),
    ).install()


@functools.cache
def parser():
    made = Parser(prog="sglang serve")
    ServerArgs.add_cli_args(made)
    return made


def parsed(words):
    """As `prepare_server_args` does it, without a logger."""
    if "--config" in words:
        words = ConfigArgumentMerger(parser()).merge_config_with_args(words)
    raw = parser().parse_args(words)
    raw._radix_eviction_policy_explicitly_set = any(word.split("=")[0] == "--radix-eviction-policy" for word in words)
    return ServerArgs.from_cli_args(raw)


def value(said):
    return said if isinstance(said, (bool, int, float, str, type(None))) else str(said)


def stage(args, view, model, rank):
    """What divides the bytes of one stage of a pipeline."""
    layers = max(model.num_hidden_layers, getattr(model, "num_attention_layers", None) or 0)
    begin, end = get_pp_indices(layers, rank, view.pp_size) if view.pp_size > 1 else (0, layers)
    windows, full = (getattr(model, name, None) for name in ("swa_attention_layer_ids", "full_attention_layer_ids"))
    own = lambda listed: listed and [layer for layer in listed if begin <= layer < end]
    layers = ModelLayerInfo(
        start_layer=begin, end_layer=end, num_effective_layers=end - begin,
        swa_attention_layer_ids=own(windows), full_attention_layer_ids=own(full),
    )
    algorithm = SpeculativeAlgorithm.from_string(get_spec().speculative_algorithm)
    drafts = resolve_spec_aux_hidden_state_config(
        server_args=args, model_config=model, spec_algorithm=algorithm, is_draft_worker=False
    )
    word = view.kv_cache_dtype or "auto"
    nothing = "pp_group model forward_stream req_to_token_pool token_to_kv_pool_allocator memory_pool_config".split()
    return KVCacheConfigurator(
        device="cuda", gpu_id=0, attn_dp_size=view.attn_dp_size, pp_size=view.pp_size, model_config=model, server_args=args,
        kv_cache_dtype=DTYPES.get(word, model.dtype), kv_cache_dtype_str=word, model_dtype=model.dtype,
        page_size=get_schedule().page_size, sliding_window_size=getattr(model, "sliding_window_size", None),
        spec_algorithm=algorithm, is_draft_worker=False, post_capture_kv_active=False, is_hybrid_swa=model.is_hybrid_swa,
        is_hybrid_swa_compress=getattr(model, "is_hybrid_swa_compress", False),
        use_mla_backend=model.attention_arch.name == "MLA", layer_info=layers, spec_aux_config=drafts, **dict.fromkeys(nothing),
    )


def constrained(configured, tokens):
    """As `_apply_token_constraints` has it for one rank: there is no group of processes."""
    most = get_schedule().max_total_tokens
    return tokens if most is None else min(tokens, most)


def divided(args, view, model, gib):
    KVCacheConfigurator._apply_token_constraints = constrained
    stages = [stage(args, view, model, rank) for rank in range(view.pp_size)]
    first, slots = stages[0], None
    if first.mambaish_config is not None:
        gib = first._handle_max_mamba_cache(gib)
        slots = get_schedule().max_mamba_cache_size
    if gib <= 0:
        raise ValueError("Loaded weights leave no GPU memory for the KV cache")
    bytes_ = int(gib * GIB)
    least = min(each.config_from_budget(bytes_).max_total_num_tokens for each in stages)
    config = first.config_from_budget(bytes_, cap_tokens=least)
    config.max_running_requests = first.resolve_max_num_reqs(config.max_total_num_tokens)
    config = create_memory_pool_configurator(first).finalize_with_max_running_requests(config)
    return {
        "context": model.context_len, "tokens": config.max_total_num_tokens, "window": config.swa_max_total_num_tokens,
        "slots": slots, "running": config.max_running_requests, "page": get_schedule().page_size,
    }


def kept_for_images(model):
    """GiB of the share that are no caches of tokens."""
    return mm_runtime_reservation_gb(is_multimodal=model.is_multimodal, mm_feature_transport=get_mm().mm_feature_transport)


def raised(error, folder):
    frame = next((frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if "sglang" in frame.filename), None)
    said = " ".join(str(error).replace(folder, "MODEL").split())[:300] or (frame.line if frame else "")
    kind = "unknown" if isinstance(error, ABSENT) else "refuses"
    return {kind: f"{type(error).__name__}: {said}", "where": frame.name if frame else ""}


def answer(question, folder):
    configs = {"MODEL": question["model"]}
    configs.update({word: word.removeprefix("DRAFT:") for word in question["words"] if word.startswith("DRAFT:")})
    for place, name in configs.items():
        config = config_of(sys.argv[1], name)
        whole(config, _CONFIG_REGISTRY)
        if place == "MODEL":
            change(config, question.get("changes", {}))
        config.pop("quantization_config", None)
        config.pop("auto_map", None)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        with open(f"{folder}/{name}/config.json", "w") as file:
            json.dump(config, file)
    path = lambda word: f"{folder}/{configs[word]}" if word in configs else word
    os.environ.pop("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", None)
    os.environ.update(question.get("env", {}))
    try:
        args = parsed(["--model-path", path("MODEL"), *map(path, question["words"])])
    except Ends as end:
        return {"parser": str(end)[:300]}
    except Exception as error:
        return {"parser": raised(error, folder)}
    try:
        args.resolve_once()
        args.check_server_args()
        view = resolved_view(args)
        values = {name: value(getattr(view, name, None)) for name in VALUES}
    except Exception as error:
        return raised(error, folder)
    try:
        get_context().set_server_args(args)
        model = ModelConfig.from_server_args(args)
    except Exception as error:
        return raised(error, folder)
    values["share"] = view.mem_fraction_static - kept_for_images(model) / (DEVICES[question.get("device", "h100")][0] / 1024)
    try:
        said = divided(args, view, model, question.get("gib", 20))
    except Exception as error:
        said = raised(error, folder)
    return {"values": values, "pools": said}


def shortened(said):
    """What tests compare."""
    pools_ = said.get("pools", said)
    if "parser" in said or "refuses" in pools_ or "unknown" in pools_:
        word = next(word for word in ("parser", "refuses", "unknown") if word in pools_)
        return {word: str(pools_[word])[:90]}
    values = said["values"]
    # In millionths.
    share = round(values["share"] * 1e6)
    numbers = {**pools_, "chunk": values["chunked_prefill_size"], "share": share}
    return {name: number for name, number in numbers.items() if number is not None}


def asked(question):
    """The answer of a process of its own, with the modules that it read."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with tempfile.TemporaryDirectory() as folder:
            try:
                pretend(question.get("devices", 1), question.get("device", "h100"))
                said = answer(question, folder)
            except BaseException as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                said = {"unknown": f"{type(error).__name__}: {error}"[:300], "where": f"{last.filename}:{last.lineno}"}
        with os.fdopen(write, "w") as pipe:
            json.dump([said, [name for name in sys.modules if name.startswith(("sglang", "transformers"))]], pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else [{"unknown": "the process ended"}, []]


def main():
    logging.disable(logging.CRITICAL)
    parser()
    known = set()
    for line in sys.stdin:
        said, modules = asked(json.loads(line))
        # So that the next ones need not read them.
        for name in modules:
            if name not in known and name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:
                    pass
            known.add(name)
        said = shortened(said) if sys.argv[2:] == ["short"] else said
        print(json.dumps(said, separators=(",", ":")), file=pools.ANSWERS, flush=True)


if __name__ == "__main__":
    main()
