"""SGLang's own argument parser and pool sizes on a CPU: one answer per question, which is a line of JSON.

Usage: sglang_pools.py FOLDER_OF_CONFIGS. A question is {"model": one of them, "file": a script that starts the server}. An
answer is {"admits": how many sequences of the context's length the pools hold that the script asks for, within 20 GiB, "tokens", "window"
and "slots": how these are divided without the script's flags}, or in quotes why it refuses. Or a question is {"model", "words": flags of
the server, "gib", "capability": of the GPU, times ten, "config": keys that the file lacks, "changes": others by their paths, "whole": whether what such a file leaves out is added, and whether its class must be there, "code": as for vLLM}, and the answer how so many GiB are divided: {"tokens", "window", "slots", "page"}.

Platforms are told apart when modules are imported, as if there were no GPU; then there is a CUDA device that is not there.
"""

import argparse
import ast
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

# The engine logs to stdout, where only answers belong.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"

import sglang.srt.model_executor.pool_configurator
import torch
from configs import change, config_of, whole, write
from sglang.srt.arg_groups import mamba_hook
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from sglang.srt.model_executor.model_runner_components.layer_setup import ModelLayerInfo
from sglang.srt.model_loader.utils import resolve_transformers_arch
from sglang.srt.platforms import current_platform
from sglang.srt.runtime_context import get_context, get_schedule
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.hf_transformers.common import _CONFIG_REGISTRY

GIB = 2**30
LENGTH = 4096
# What every plan that was exported has for its caches.
PLANNED = 20

MEMORY = 80 * GIB
PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132, warp_size=32
)


def pretend_a_device():
    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_initialized = lambda: True
    torch.cuda._lazy_init = lambda: None
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: PROPERTIES
    torch.cuda.get_device_name = lambda device=None: PROPERTIES.name
    torch.cuda.mem_get_info = lambda device=None: (MEMORY, MEMORY)
    current_platform.get_device = lambda device=None: "cuda"


def words(script):
    """What the shell hands to the server behind the module's name."""
    said = subprocess.run(["bash", "-c", script.replace("exec python3", "printf '%s\\n'")], capture_output=True, text=True)
    return said.stdout.splitlines()[2:]


def parsed(words, folder):
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    arguments = parser.parse_args(words)
    arguments.model_path = folder
    arguments.load_format, arguments.skip_tokenizer_init = "dummy", True
    args = ServerArgs.from_cli_args(arguments)
    args.resolve_once()
    return args


def configurator(args):
    """What divides the bytes of the model that the arguments name."""
    get_context().set_server_args(args)
    model = ModelConfig.from_server_args(args)
    layers = ModelLayerInfo(
        start_layer=0,
        end_layer=model.num_hidden_layers,
        num_effective_layers=model.num_attention_layers,
        swa_attention_layer_ids=getattr(model, "swa_attention_layer_ids", None),
        full_attention_layer_ids=getattr(model, "full_attention_layer_ids", None),
    )
    nothing = dict.fromkeys(
        """pp_group model spec_aux_config forward_stream req_to_token_pool token_to_kv_pool_allocator memory_pool_config
        """.split()
    )
    return KVCacheConfigurator(
        device="cuda",
        gpu_id=0,
        attn_dp_size=1,
        pp_size=1,
        model_config=model,
        server_args=args,
        kv_cache_dtype=torch.bfloat16,
        model_dtype=torch.bfloat16,
        page_size=get_schedule().page_size,
        sliding_window_size=getattr(model, "sliding_window_size", None),
        spec_algorithm=SpeculativeAlgorithm.NONE,
        is_draft_worker=False,
        post_capture_kv_active=False,
        is_hybrid_swa=model.is_hybrid_swa,
        is_hybrid_swa_compress=getattr(model, "is_hybrid_swa_compress", False),
        use_mla_backend=model.attention_arch.name == "MLA",
        layer_info=layers,
        **nothing,
    )


def pools(args, gib):
    """How so many GiB are divided, with the requests that run."""
    configured = configurator(args)
    slots = None
    if configured.mambaish_config is not None:
        gib = configured._handle_max_mamba_cache(gib)
        slots = get_schedule().max_mamba_cache_size
    config = configured.config_from_budget(int(gib * GIB))
    return config, slots, configured.resolve_max_num_reqs(config.max_total_num_tokens)


@functools.cache
def implemented():
    """Classes that it has. Their files are read, not run."""
    found = set()
    for file in pathlib.Path(sglang.srt.__path__[0], "models").glob("**/*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "EntryClass":
                found.update(name.id for name in ast.walk(node.value) if isinstance(name, ast.Name))
    return found


def must_load(model):
    """Raises where it has no class of its own, and transformers none that it can run."""
    named = getattr(model.hf_config, "architectures", None) or []
    if implemented().intersection(named):
        return
    resolve_transformers_arch(model, named)
    # Keys of transformers' code are put where there is room for a head.
    if getattr(model.hf_text_config, "qk_head_dim", model.head_dim) != model.head_dim:
        raise ValueError("keys are wider than the pool's")


def told(question, folder):
    """How the bytes of a question are divided."""
    capability = divmod(question["capability"], 10)
    torch.cuda.get_device_capability = lambda device=None: capability
    PROPERTIES.major, PROPERTIES.minor = capability
    from sglang.srt.utils import common

    for name in ("is_sm90_supported", "is_sm100_supported", "is_sm120_supported"):
        known = getattr(common, name, None)
        if hasattr(known, "cache_clear"):
            known.cache_clear()
    trusted = ["--trust-remote-code"] if question.get("code") else []
    args = parsed(["--model-path", folder, "--context-length", str(LENGTH), *trusted, *question["words"]], folder)
    if question.get("whole"):
        must_load(ModelConfig.from_server_args(args))
    config, slots, _ = pools(args, question["gib"])
    return {
        "tokens": config.max_total_num_tokens,
        "window": config.swa_max_total_num_tokens,
        "slots": slots,
        "page": get_schedule().page_size,
    }


def answer(question, folder):
    config = config_of(sys.argv[1], question["model"])
    if question.get("whole"):
        whole(config, [config.get("model_type")] if question.get("code") else _CONFIG_REGISTRY)
    change(config, question.get("changes", {}))
    # How weights are stored decides kernels that are not here.
    config.pop("quantization_config", None)
    config.update(question.get("config", {}))
    write(config, folder, question.get("code"))
    if "words" in question:
        return told(question, folder)
    asked, _, requests = pools(parsed(words(question["file"]), folder), PLANNED)
    divided, slots, _ = pools(parsed(["--model-path", folder, "--context-length", str(LENGTH), "--disable-radix-cache"], folder), PLANNED)
    return {
        "admits": min(requests, asked.max_total_num_tokens // LENGTH),
        "tokens": divided.max_total_num_tokens,
        "window": divided.swa_max_total_num_tokens,
        "slots": slots,
    }


def main():
    pretend_a_device()
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = answer(json.loads(line), folder)
            except BaseException as error:
                said = f"{type(error).__name__}: {' '.join(str(error).replace(folder, 'MODEL').split())[:180]}"
                print(said, file=sys.stderr, flush=True)
        print(json.dumps(said), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
