"""vLLM's own planner on a CPU: one line of answers per question, which is a line of JSON.

Usage: vllm_planner.py FOLDER_OF_CONFIGS. A question is {"model": one of them, "layers": [first, end] of those that the model has, "changes": keys of the
config that differ, "whole": whether what such a file leaves out is added, "code": the class of transformers that code beside the weights reads the config by, "flags": arguments of EngineArgs, "bytes": bytes for caches of each rank}. It is asked with
prefix caching off and on, unless its flags say; an answer is "blocks groups block tokens", "! needed longest" where the
bytes do not hold one sequence (GiB that would, and the longest sequence that these hold, 0 where it says none), or "-" where
the engine refuses for another reason, and answers of a line stand in that order with a comma between. Why goes to stderr.

Weights are on the meta device and the platform is a CUDA device that is not there, of the capability that the
environment variable CAPABILITY states (9.0 where it does not), for which the config chooses the model runner as on a GPU.
Ranks are alone: they are told that there are others. Every stage of a pipeline is asked, one after the other.

A question with a "file" is one for the parser of `vllm serve --config`: the file says the flags and the bytes, and the answer
is the number of sequences of max_model_len tokens that run at once, or in quotes why it refuses.
"""

import json
import os
import re
import shutil
import sys
import tempfile
import types

# The engine logs to stdout, where only answers belong.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm.platforms
from configs import change, config_of, whole, write
from torch.overrides import TorchFunctionMode
from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability

CAPABILITY = tuple(int(part) for part in os.environ.get("CAPABILITY", "9.0").split("."))


class AbsentDevice(CudaPlatformBase):
    """An H100, as far as planning asks."""

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(*CAPABILITY)

    @classmethod
    def has_device_capability(cls, capability, device_id=0):
        least = capability if isinstance(capability, tuple) else divmod(capability, 10)
        return CAPABILITY >= tuple(least)

    @classmethod
    def get_device_name(cls, device_id=0):
        return "NVIDIA H100 80GB HBM3"

    @classmethod
    def get_device_uuid(cls, device_id=0):
        return "GPU-0"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 * 2**30

    @classmethod
    def is_fully_connected(cls, ids):
        return True

    @classmethod
    def device_count(cls):
        return 16

    @classmethod
    def num_compute_units(cls, device_id=0):
        return 132

    @classmethod
    def is_pin_memory_available(cls):
        return False

    @classmethod
    def get_cuda_runtime_major(cls):
        return 13

    @classmethod
    def is_integrated_gpu(cls, device_id=0):
        return False


class Stub:
    """A CUDA stream or event that does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class OnMeta(TorchFunctionMode):
    """Whatever is made on a CUDA device is made on the meta device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or "cuda" in str(device)):
            kwargs["device"] = "meta"
        # Some layers take a number from their weights.
        if function is torch.Tensor.cpu and args[0].is_meta:
            return args[0]
        if function is torch.Tensor.item and args[0].is_meta:
            return 0
        return function(*args, **kwargs)


def without_a_device():
    vllm.platforms.current_platform = AbsentDevice()
    torch.cuda._lazy_init = lambda: None
    torch.cuda.current_stream = lambda *args: Stub()
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *args: types.SimpleNamespace(
        name=AbsentDevice.get_device_name(),
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=AbsentDevice.get_device_total_memory(),
        multi_processor_count=AbsentDevice.num_compute_units(),
        is_integrated=False,
    )
    torch.cuda.Stream = torch.cuda.Event = Stub
    torch.accelerator.current_device_index = lambda: 0
    import vllm.model_executor.models.registry as registry

    # A subprocess would not know of the device.
    registry._run_in_subprocess = lambda function: function()
    import vllm.config.vllm as config

    # A GPU has Triton; without it the config takes an older model runner, which overlaps fewer steps.
    config.HAS_TRITON = True
    import vllm.triton_utils as triton

    if not triton.HAS_TRITON:
        triton.triton.Config = lambda values=None, **rest: types.SimpleNamespace(
            kwargs=values or {}, num_stages=rest.get("num_stages", 1), num_warps=rest.get("num_warps", 4)
        )


def folder_of(question):
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    folder = tempfile.mkdtemp()
    config = config_of(sys.argv[1], question["model"])
    if question.get("whole"):
        whole(config, [config.get("model_type")] if question.get("code") else _CONFIG_REGISTRY)
    if "layers" in question:
        cut(config, *question["layers"])
    change(config, question.get("changes", {}))
    write(config, folder, question.get("code"))
    return folder


def cut(config, first, end):
    """Keeps some of the layers: of what has an element or a letter for each of them, those elements."""
    section = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    layers = section["num_hidden_layers"]
    for key, value in section.items():
        if isinstance(value, (list, str)) and len(value) == layers:
            section[key] = value[first:end]
    section["num_hidden_layers"] = end - first


class Alone:
    """A group of ranks of which only one is here."""

    def __init__(self, group, ranks, rank=0):
        self.group, self.world_size, self.rank_in_group = group, ranks, rank

    def __getattr__(self, name):
        return getattr(self.group, name)

    @property
    def is_first_rank(self):
        return self.rank_in_group == 0

    @property
    def is_last_rank(self):
        return self.rank_in_group == self.world_size - 1


def be_one_of(parallel, stage):
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment, parallel_state

    if not torch.distributed.is_initialized():
        address = f"tcp://127.0.0.1:{os.environ.get('ORACLE_PORT', '29578')}"
        init_distributed_environment(1, 0, address, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        # Only a first model with experts would make their group.
        if getattr(parallel_state, "_EP", None) is None:
            parallel_state._EP = parallel_state.init_model_parallel_group([[0]], 0, "gloo", group_name="ep")
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("meta"))
    groups = {
        "_TP": (parallel.tensor_parallel_size, 0),
        "_PP": (parallel.pipeline_parallel_size, stage),
        "_DCP": (parallel.decode_context_parallel_size, 0),
    }
    for name, (ranks, rank) in groups.items():
        group = getattr(parallel_state, name, None)
        if group is not None:
            setattr(parallel_state, name, Alone(group.group if isinstance(group, Alone) else group, ranks, rank))


def configured(question, caching, folder):
    from vllm.engine.arg_utils import EngineArgs

    flags = {"enable_prefix_caching": caching, **question["flags"]}
    if question.get("whole"):
        # A tower keeps nothing, and needs a processor that is no part of a config.
        flags["language_model_only"] = True
    if question.get("code"):
        flags["trust_remote_code"] = True
    args = EngineArgs(model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, **flags)
    config = args.create_engine_config()
    if engram := getattr(config, "engram_config", None):
        # There is no host memory that a device sees.
        engram.cpu_offload = False
    return config


def served(text, folder):
    """What `vllm serve --config FILE` makes of the file."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    file = os.path.join(folder, "vllm.yaml")
    with open(file, "w") as out:
        out.write(text)
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    # What is no matter of the file: there is a config and nothing else.
    bare = ["--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    args = parser.parse_args(["serve", folder, "--config", file, *bare])
    args.model = args.model_tag
    return EngineArgs.from_cli_args(args).create_engine_config()


def specs_of(config, stage):
    """What the layers of a stage keep, those that draft included."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    torch.set_default_dtype(config.model_config.dtype)
    with set_current_vllm_config(config):
        be_one_of(config.parallel_config, stage)
        layers = config.compilation_config.static_forward_context
        with torch.device("meta"), OnMeta():
            initialize_model(vllm_config=config)
            drafting = config.speculative_config
            last = stage + 1 == config.parallel_config.pipeline_parallel_size
            # What takes its drafts from the text has no layers.
            if last and drafting is not None and drafting.method in ("mtp", "draft_model"):
                own = set(layers)
                from vllm.compilation.backends import set_model_tag

                overridden = drafting.apply_draft_overrides(config)
                with set_current_vllm_config(overridden), set_model_tag("eagle_head"):
                    initialize_model(vllm_config=overridden, model_config=drafting.draft_model_config)
                for name in set(layers) - own:
                    if isinstance(layers[name], AttentionLayerBase):
                        layers[name].is_draft_layer = True
        vllm.platforms.current_platform.update_block_size_for_backend(config)
        return get_kv_cache_spec(config)


def plan(question, caching):
    """The functions that make the plan have moved between versions."""
    from vllm.config import set_current_vllm_config

    folder = folder_of(question)
    try:
        def config():
            return served(question["file"], folder) if "file" in question else configured(question, caching, folder)

        first = config()
        stages = first.parallel_config.pipeline_parallel_size
        specs = [specs_of(first, 0)] + [specs_of(config(), stage) for stage in range(1, stages)]
        available = question.get("bytes", first.cache_config.kv_cache_memory_bytes)
        with set_current_vllm_config(first):
            planned, concurrency = ADAPTERS[version()](first, specs, available)
    finally:
        torch.set_default_dtype(torch.float32)
        shutil.rmtree(folder)
    if "file" in question:
        return str(int(concurrency))
    block, length = first.cache_config.block_size, first.model_config.max_model_len
    return f"{planned.num_blocks} {len(planned.kv_cache_groups)} {block} {int(concurrency * length)}"


def planned_by_0_33(config, specs, available):
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.worker.worker_base import get_current_attn_backends

    register_all_kvcache_specs(config)
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    resolve_kv_cache_layout(config, [layouts], [spec for stage in specs for spec in stage.values()])
    groups = planning.get_global_kv_cache_groups(config, specs)
    config.adjust_dcp_kv_cache_interleave_size(groups)
    planned = planning.get_kv_cache_configs(config, specs, [available] * len(specs), groups)[0]
    return planned, utils.get_max_concurrency_for_kv_cache_config(config, planned)


def planned_by_0_32(config, specs, available):
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    register_all_kvcache_specs(config)
    config.cache_config.kv_cache_layout = "LBNHC"
    planned = utils.get_kv_cache_configs(config, specs, [available] * len(specs))[0]
    return planned, utils.get_max_concurrency_for_kv_cache_config(config, planned)


ADAPTERS = {"0.32": planned_by_0_32, "0.33": planned_by_0_33}


def version():
    from importlib.metadata import version

    return ".".join(version("vllm").split(".")[:2])


def answer(question, caching):
    try:
        return plan(question, caching)
    except BaseException as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        # Folders are made for each question, and their names are of no fixed length.
        why = why.replace(tempfile.gettempdir(), "/tmp")
        why = re.sub(r"/tmp/\w+", "MODEL", why)[:400]
        print(why, file=sys.stderr, flush=True)
        if "file" in question:
            return json.dumps(why)
        needed = re.search(r"\(([\d.]+) GiB KV cache is needed", why)
        longest = re.search(r"maximum model length is (\d+)", why)
        return f"! {needed[1]} {longest[1] if longest else 0}" if needed else "-"


def main():
    without_a_device()
    for line in sys.stdin:
        question = json.loads(line)
        stated = "file" in question or question["flags"].get("enable_prefix_caching")
        asked = [False, True] if stated is None else [stated]
        print(", ".join(answer(question, caching) for caching in asked), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
