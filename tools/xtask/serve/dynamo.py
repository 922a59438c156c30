"""The flags of Dynamo's workers that the engine behind each does not take, read from the sources in its wheel without importing them."""

import ast

# What a flag of the TensorRT-LLM worker, which parses all of them itself, is to `trtllm-serve`: another flag, or the model. A flag that says nothing of caches is left out; one that is neither here nor there is an error that names it.
TRTLLM = {
    "--model": "model",
    "--model-path": "model",
    "--tensor-parallel-size": "--tensor_parallel_size",
    "--pipeline-parallel-size": "--pipeline_parallel_size",
    "--expert-parallel-size": "--moe_expert_parallel_size",
    "--gpus-per-node": "--gpus_per_node",
    "--max-batch-size": "--max_batch_size",
    "--max-num-tokens": "--max_num_tokens",
    "--max-seq-len": "--max_seq_len",
    "--max-beam-width": "--max_beam_width",
    "--free-gpu-memory-fraction": "--free_gpu_memory_fraction",
    "--revision": "--revision",
    "--override-engine-args": "options",
}
# What changes caches, or what runs, in a way that is not planned.
UNREAD = """
    --classify-worker --connector --embedding-worker --enable-attention-dp --gms-shadow-mode --image-diffusion-worker --modality
    --quant-algo --rerank-worker --video-generation-worker
""".split()


PATHS = ("/args.py", "/backend_args.py", "/runtime_args.py", "/frontend_decoding_args.py", "/ais_perf_args.py")
PACKAGES = ("dynamo/vllm/", "dynamo/sglang/", "dynamo/trtllm/", "dynamo/common/configuration/groups/")


def rows(modules):
    """Worker, flag, how many values it takes, and what it becomes."""
    found = {}
    for path, module in modules.items():
        parts = path.split("/")
        if not path.startswith(PACKAGES) or len(parts) > 3 and parts[1] != "common":
            continue
        workers = [parts[1]] if parts[1] in ("vllm", "sglang", "trtllm") else ["vllm", "sglang", "trtllm"]
        for call in ast.walk(module):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            flags = flags_of(call)
            if name not in ("add_argument", "add_negatable_bool_argument") or not flags:
                continue
            keywords = {word.arg: word.value for word in call.keywords}
            nargs = getattr(keywords.get("nargs"), "value", 1)
            is_switch = name.startswith("add_neg") or getattr(keywords.get("action"), "value", "") in ("store_true", "store_false", "version")
            for flag in flags:
                for worker in workers:
                    becomes = "unread" if flag in UNREAD else TRTLLM.get(flag, "") if worker == "trtllm" else ""
                    found[worker, flag] = (worker, flag, "0" if is_switch else str(nargs), becomes)
                    if name.startswith("add_neg"):
                        negated = "--no-" + flag[2:]
                        found[worker, negated] = (worker, negated, "0", "")
    return sorted(found.values())


def flags_of(call):
    # An obsolete spelling is still taken.
    said = [word.value for word in call.keywords if word.arg in ("flag_name", "obsolete_flag")] + call.args
    more = [part for word in call.keywords if word.arg == "aliases" and isinstance(word.value, ast.List) for part in word.value.elts]
    words = [part.value for part in said + more if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [word for word in words if word.startswith("--")]
