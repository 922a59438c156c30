"""Questions about `vllm serve`: a line of JSON each, as `vllm_commands.py` reads them.

Usage: command_questions.py TABLE RANDOM. TABLE is the planner's own of vLLM's flags. Every flag of its newest version is stated in
all forms that a parser may tell apart, every configuration that is JSON with each of its fields, every variable that vLLM reads,
and RANDOM pairs to quartets of what shapes caches, over models of each kind and one or eight GPUs, and as many of what people serve
with the flags of their recipes. The same arguments give the
same questions.
"""

import dataclasses
import json
import random
import sys

DENSE = "Qwen__Qwen3-8B"
MODELS = [
    DENSE,
    "google__gemma-3-1b-it",
    "deepseek-ai__DeepSeek-V2-Lite",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "openai__gpt-oss-120b",
]
BYTES = 20 << 30

# Files, plug-ins, other models and classes that nobody has here; what they do is theirs.
ELSEWHERE = set(
    """--config --model --hf-config-path --tokenizer --tokenizer-revision --revision --code-revision --hf-token --chat-template
    --log-config-file --logging-config --middleware --logits-processors --io-processor-plugin --reasoning-parser-plugin
    --tool-parser-plugin --scheduler-cls --worker-cls --worker-extension-cls --model-class-overrides --ssl-keyfile --ssl-certfile
    --ssl-ca-certs --tool-server --lora-modules --generation-config --config-format --tokenizer-mode
    --mm-encoder-fp8-scale-path --api-key --headless --grpc --otlp-traces-endpoint --collect-detailed-traces""".split()
)

WHOLE = ["0", "1", "-1", "2", "16", "4096", "100000", "99999999999999999999", "1k", "1.5", "auto", "x", "", "0x10", " 8 ", "1_000"]
VALUES = {
    "int": WHOLE,
    "human_int": [*WHOLE, "1K", "1.5k", "1.5K", "-5", "2G"],
    "human_int_or_auto": [*WHOLE, "1K", "25.6k", "1.5K", "-5", "AUTO", "40960", "40961"],
    "float": ["0", "0.5", "1", "1.0", "1.5", "-0.1", "nan", "inf", "x", "50%", "", "1e-3", "1_0"],
    "json": ["{}", "[]", "null", "1", "x", "{", '{"x": 1}', '{"x": 1k}', '"{}"', ""],
    "str": ["x", "auto", "", "1", "none", "AUTO"],
}
# Words that the table has no choices for, though only some are taken.
WORDS = {
    "--kv-cache-dtype": """auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc
        octave_k3v4 ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4 nvfp4_4over6 FP8 float32""",
    "--attention-backend": """FLASH_ATTN flash_attn TRITON_ATTN FLASHINFER FLEX_ATTENTION FLASHMLA FLASH_ATTN_MLA TRITON_MLA CUTLASS_MLA
        FLASHINFER_MLA TORCH_SDPA NO_ATTENTION TURBOQUANT CUSTOM ROCM_ATTN CPU_ATTN TREE_ATTN FLASH_ATTN_DIFFKV B12X HPC_ATTN""",
    "--quantization": "awq gptq fp8 bitsandbytes gguf compressed-tensors mxfp4 modelopt experts_int8 torchao quark inc FP8",
    "--distributed-executor-backend": "ray mp uni external_launcher RAY a.B",
    "--data-parallel-backend": "mp ray MP",
    "--load-format": "auto dummy gguf bitsandbytes safetensors sharded_state tensorizer runai_streamer mistral DUMMY",
    "--optimization-level": "0 1 2 3 4 -1 O1 O4",
    "--model-impl": "auto vllm transformers terratorch VLLM",
    "--mamba-backend": "triton flashinfer cpu TRITON",
    "--tool-call-parser": "hermes qwen3_coder llama3_json",
    "--reasoning-parser": "qwen3 deepseek_r1",
    "--device-ids": "0 0,1 1,0 0,0 8 GPU-x -1 0,",
    "--chat-template-content-format": "auto string openai",
    "--response-role": "assistant user",
    "--sleep-mode-backend": "cumem",
    "--mm-processor-device": "cpu cuda",
    "--offload-params": "x",
    "--kv-cache-dtype-skip-layers": "0 sliding_window",
    "--show-hidden-metrics-for-version": "0.32.0 0.33",
}
# What a JSON of each flag is a configuration of.
CONFIGS = {
    "--attention-config": "AttentionConfig",
    "--compilation-config": "CompilationConfig",
    "--kv-transfer-config": "KVTransferConfig",
    "--kv-events-config": "KVEventsConfig",
    "--kernel-config": "KernelConfig",
    "--eplb-config": "EPLBConfig",
    "--profiler-config": "ProfilerConfig",
    "--structured-outputs-config": "StructuredOutputsConfig",
    "--ec-transfer-config": "ECTransferConfig",
    "--reasoning-config": "ReasoningConfig",
    "--pooler-config": "PoolerConfig",
    "--speculative-config": "SpeculativeConfig",
    "--watermark-config": "WatermarkConfig",
    "--weight-transfer-config": "WeightTransferConfig",
    "--engram-config": "EngramConfig",
    "--diffusion-config": "DiffusionConfig",
}
FIELD_VALUES = ["0", "1", "-1", "true", "null", '"x"', "{}", "[]", "[1]"]
SAID = {
    "--kv-transfer-config": ['"kv_connector": "NixlConnector", "kv_role": "kv_both"'],
    "--speculative-config": ['"method": "ngram", "num_speculative_tokens": 3'],
    "--kv-events-config": ['"enable_kv_cache_events": true'],
}

# What shapes caches, or what rules join with it.
SHAPES = {
    "--max-model-len": ["auto", "-1", "1", "15", "4096", "8k", "32768", "32K", "131072", "200000"],
    "--max-num-seqs": ["1", "8", "256", "1024", "2048", "5000"],
    "--max-num-batched-tokens": ["1", "64", "512", "2048", "8192", "16k", "65536"],
    "--max-num-active-seqs": ["1", "8", "1024"],
    "--max-num-scheduled-tokens": ["64", "8192", "100000"],
    "--long-prefill-token-threshold": ["1", "4096", "100000"],
    "--block-size": ["1", "8", "16", "32", "48", "64", "100", "128", "256", "1024"],
    "--kv-cache-dtype": ["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", "float16", "fp8_ds_mla", "int8_per_token_head", "nvfp4"],
    "--dtype": ["auto", "bfloat16", "float16", "half", "float32"],
    "--enable-prefix-caching": [None],
    "--no-enable-prefix-caching": [None],
    "--no-enable-chunked-prefill": [None],
    "--enable-chunked-prefill": [None],
    "--async-scheduling": [None],
    "--no-async-scheduling": [None],
    "--disable-hybrid-kv-cache-manager": [None],
    "--no-disable-hybrid-kv-cache-manager": [None],
    "--enforce-eager": [None],
    "--mamba-cache-mode": ["align", "none"],
    "--mamba-cache-dtype": ["auto", "float32", "float16", "bfloat16"],
    "--mamba-ssm-cache-dtype": ["auto", "float32", "float16", "bfloat16"],
    "--mamba-block-size": ["8", "16", "64", "256", "1024", "4096"],
    "--mamba-backend": ["triton", "flashinfer"],
    "--enable-mamba-cache-stochastic-rounding": [None],
    "--use-replayssm": [None],
    "--prefix-match-unit": ["16", "32", "64", "528"],
    "--prefix-cache-retention-interval": ["0", "16", "64", "1024"],
    "--tensor-parallel-size": ["1", "2", "3", "4", "8", "16"],
    "--pipeline-parallel-size": ["1", "2", "3", "4"],
    "--data-parallel-size": ["1", "2", "4"],
    "--data-parallel-size-local": ["0", "1", "2"],
    "--data-parallel-rank": ["0", "1"],
    "--decode-context-parallel-size": ["1", "2", "4", "8"],
    "--prefill-context-parallel-size": ["1", "2"],
    "--dcp-kv-cache-interleave-size": ["1", "16", "24"],
    "--cp-kv-cache-interleave-size": ["1", "16", "24"],
    "--enable-expert-parallel": [None],
    "--enable-eplb": [None],
    "--enable-dbo": [None],
    "--ubatch-size": ["0", "2"],
    "--all2all-backend": ["deepep_low_latency", "deepep_high_throughput", "pplx", "naive", "nixl_ep"],
    "--nnodes": ["1", "2"],
    "--distributed-executor-backend": ["mp", "uni", "ray", "external_launcher"],
    "--num-gpu-blocks-override": ["1", "2", "100", "1000000"],
    "--kv-cache-memory-bytes": ["1", "1G", "5G", "64g"],
    "--gpu-memory-utilization": ["0.5", "0.95", "1"],
    "--performance-mode": ["throughput", "interactivity"],
    "--attention-backend": ["FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION", "FLASHMLA", "TRITON_MLA", "FLASH_ATTN_MLA"],
    "--enable-lora": [None],
    "--spec-method": ["ngram", "mtp", "suffix", "ngram_gpu", "eagle"],
    "--spec-tokens": ["1", "3", "20"],
    "--speculative-config": [
        '{"method": "ngram", "num_speculative_tokens": 3}',
        '{"method": "suffix", "num_speculative_tokens": 4}',
        '{"method": "mtp", "num_speculative_tokens": 1}',
        '{"method": "mtp", "num_speculative_tokens": 2}',
        '{"model": "config:Qwen__Qwen3-0.6B", "num_speculative_tokens": 4}',
        '{"model": "config:Qwen__Qwen3-0.6B", "num_speculative_tokens": 4, "max_model_len": 2048}',
        '{"num_speculative_tokens": 3}',
    ],
    "--kv-transfer-config": [
        '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
        '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}',
        '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": 80g}}',
        '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}',
    ],
    "--kv-offloading-size": ["0", "8"],
    "--kv-events-config": ['{"enable_kv_cache_events": true, "publisher": "zmq"}'],
    "--compilation-config": ['{"cudagraph_mode": "PIECEWISE"}', '{"cudagraph_mode": "NONE"}', '{"mode": 0}', '{"cudagraph_capture_sizes": [1, 2]}'],
    "--hf-overrides": ['{"max_position_embeddings": 8192}', '{"num_hidden_layers": 8}', '{"sliding_window": 4096}'],
    "--language-model-only": [None],
    "--watermark": ["0.1"],
    "--kv-sharing-fast-prefill": [None],
    "--calculate-kv-scales": [None],
    "--cudagraph-capture-sizes": ["1 2 4", "3"],
    "--max-cudagraph-capture-size": ["0", "4", "100"],
    "--stream-interval": ["2"],
    "--scheduling-policy": ["priority"],
    "--enable-sleep-mode": [None],
    "--runner": ["generate", "pooling"],
    "--quantization": ["fp8", "mxfp4"],
    "--cpu-offload-gb": ["1"],
    "--optimization-level": ["0", "1", "3"],
}
# What people serve, and the flags of their recipes that are not among the shapes.
SERVED = """Qwen__Qwen3-0.6B Qwen__Qwen3-32B Qwen__Qwen3-235B-A22B Qwen__Qwen3.5-4B Qwen__Qwen3.5-35B-A3B Qwen__Qwen2.5-7B-Instruct
    meta-llama__Llama-3.1-8B-Instruct meta-llama__Llama-3.1-70B-Instruct meta-llama__Llama-4-Scout-17B-16E-Instruct ../published/maverick
    mistralai__Mistral-7B-v0.1 mistralai__Mixtral-8x7B-v0.1 google__gemma-2-9b google__gemma-4-26B-A4B ../published/gemma3_27b microsoft__phi-4
    HuggingFaceTB__SmolLM3-3B deepseek-ai__DeepSeek-V3 deepseek-ai__DeepSeek-V3.2 deepseek-ai__DeepSeek-V4-Flash moonshotai__Kimi-K2-Instruct
    moonshotai__Kimi-Linear-48B-A3B-Instruct zai-org__GLM-4.5 zai-org__GLM-4.7-FP8 ../published/minimax_m2 ../published/qwen25vl72b
    ../published/mistral_small_32 ../published/seed_oss_36b nvidia__Llama-3_3-Nemotron-Super-49B-v1 nvidia__Qwen3.6-35B-A3B-NVFP4
    tiiuae__Falcon-H1-7B-Instruct ibm-granite__granite-4.0-h-tiny LiquidAI__LFM2-1.2B Zyphra__Zamba2-2.7B ../published/step_3_5_flash""".split()
RECIPES = {
    "--limit-mm-per-prompt": ['{"image": 2}', '{"image": 0, "video": 0}', '{"image": 1, "video": 0}'],
    "--mm-encoder-tp-mode": ["data"],
    "--mm-processor-cache-gb": ["0", "4"],
    "--quantization": ["fp8", "fp8_per_block", "compressed-tensors", "awq"],
    "--compilation-config": [
        '{"cudagraph_mode": "FULL_AND_PIECEWISE"}',
        '{"cudagraph_mode": "FULL", "max_cudagraph_capture_size": 64}',
        '{"pass_config": {"enable_sp": true}}',
        '{"pass_config": {"fuse_allreduce_rms": true}}',
        '{"custom_ops": ["+rms_norm"]}',
    ],
    "--speculative-config": [
        '{"method": "deepseek_mtp", "num_speculative_tokens": 1}',
        '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}',
        '{"method": "ngram", "num_speculative_tokens": 20}',
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
        '{"method": "mtp", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}',
    ],
    "--kv-transfer-config": [
        '{"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"}',
        '{"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer"}',
    ],
    "--hf-overrides": ['{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1000000}}'],
    "--attention-config": ['{"backend": "FLASHINFER"}', '{"use_trtllm_attention": true}', '{"flash_attn_version": 3}'],
    "--kernel-config": ['{"moe_backend": "triton"}'],
    "--moe-backend": ["triton", "flashinfer_trtllm", "deep_gemm", "marlin"],
    "--eplb-config": ['{"num_redundant_experts": 8}'],
    "--max-loras": ["4"],
    "--max-cpu-loras": ["2", "8"],
    "--max-lora-rank": ["64", "100"],
    "--convert": ["auto", "none"],
    "--load-format": ["fastsafetensors", "runai_streamer"],
    "--enable-per-request-metrics": [None],
    "--disable-log-stats": [None],
    "--trust-remote-code": [None],
}
VARIABLES = {
    "VLLM_USE_V2_MODEL_RUNNER": ["0", "1"],
    "VLLM_MLA_DISABLE": ["1"],
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": ["1"],
    "VLLM_PP_LAYER_PARTITION": ["18,18", "13,13", "26,26", "24,24"],
    "VLLM_USE_SIMPLE_KV_OFFLOAD": ["1"],
    "VLLM_BATCH_INVARIANT": ["1"],
    "VLLM_KV_CACHE_LAYOUT": ["HND", "NHD"],
    "VLLM_DP_SIZE": ["2"],
    "CUDA_VISIBLE_DEVICES": ["0", "0,1", ""],
    "PYTORCH_CUDA_ALLOC_CONF": ["expandable_segments:True"],
}
# Those of builds, of tests, and of other programs.
NO_VARIABLES = {"LD_LIBRARY_PATH", "CUDA_HOME", "VLLM_TARGET_DEVICE", "VLLM_PLUGINS", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH"}


def question(words, model=DENSE, devices=1, **rest):
    return {"model": model, "words": words, "devices": devices, "bytes": BYTES, **rest}


def newest(table):
    """The flags of the newest version."""
    lines = open(table).read().splitlines()
    names = lines[1].split("\t")
    rows = [dict(zip(names, line.split("\t"))) for line in lines[2:]]
    return [row for row in rows if not row["until"]]


def split(text):
    return [part for part in text.split(",") if part]


def abbreviated(flag, all_names):
    """The shortest beginning that is the flag's alone, and the longest that is not."""
    others = [name for name in all_names if name not in flag["names"]]
    for end in range(3, len(flag["flag"])):
        if not any(name.startswith(flag["flag"][:end]) for name in others):
            return flag["flag"][:end], flag["flag"][: end - 1]
    return flag["flag"], flag["flag"][:-1]


def of_flag(flag, all_names):
    name, kind = flag["flag"], flag["type"]
    yield [name]
    if kind == "bool":
        for other in [*split(flag["aliases"]), *split(flag["negated"])]:
            yield [other]
        yield [f"{name}=true"]
        yield [name, "true"]
        yield [abbreviated(flag, all_names)[0]]
        return
    words = split(flag["choices"]) + WORDS.get(name, "").split()
    values = dict.fromkeys([*words, *(["x", words[0].upper()] if words else VALUES[kind])])
    for value in values:
        yield [name, value]
    taken = next(iter(words or VALUES[kind]))
    for alias in split(flag["aliases"]):
        yield [alias, taken]
    if flag["values"] in "?*+":
        yield [name, taken, taken]
    short, ambiguous = abbreviated(flag, all_names)
    yield [f"{name}={taken}"]
    yield [name.replace("-", "_").replace("__", "--", 1), taken]
    yield [short, taken]
    yield [ambiguous, taken]


def of_fields(flag):
    import vllm.config as config

    kind = getattr(config, CONFIGS[flag], None)
    if kind is None:
        import importlib

        place = {"EngramConfig": "engram", "EPLBConfig": "parallel", "DiffusionConfig": "diffusion", "WatermarkConfig": "watermarking"}
        kind = getattr(importlib.import_module(f"vllm.config.{place[CONFIGS[flag]]}"), CONFIGS[flag])
    for said in ["", *SAID.get(flag, [])]:
        for field in dataclasses.fields(kind):
            for value in FIELD_VALUES:
                parts = [part for part in said.split(", ") if part and f'"{field.name}"' not in part]
                yield [flag, "{" + ", ".join([*parts, f'"{field.name}": {value}']) + "}"]


def of_variables():
    import vllm.envs

    for name in vllm.envs.environment_variables:
        if name not in NO_VARIABLES and not name.startswith(("S3_", "VLLM_ROCM", "VLLM_XPU", "VLLM_TPU", "VLLM_XLA")):
            for value in ("0", "1", "x", ""):
                yield {name: value}


def drawn(random_, models=MODELS, shapes=SHAPES):
    """A question of two to five flags, and at times a variable."""
    words, names = [], random_.sample(list(shapes), random_.choice([1, 2, 2, 2, 3, 3, 4]))
    for name in names:
        value = random_.choice(shapes[name])
        words += [name] if value is None else [name, *(value.split() if name == "--cudagraph-capture-sizes" else [value])]
    rest = {}
    if random_.random() < 0.12:
        variable = random_.choice(list(VARIABLES))
        rest["env"] = {variable: random_.choice(VARIABLES[variable])}
    return question(words, random_.choice(models), random_.choice([1, 8]), **rest)


def singles():
    """Every shape by itself, of every model, on one and eight GPUs."""
    for model in MODELS:
        for name, values in SHAPES.items():
            for value in values:
                words = [name] if value is None else [name, *(value.split() if name == "--cudagraph-capture-sizes" else [value])]
                yield question(words, model, 8)


def questions(table, number):
    flags = newest(table)
    for flag in flags:
        flag["names"] = [flag["flag"], *split(flag["aliases"]), *split(flag["negated"])]
    names = [name for flag in flags for name in flag["names"]]
    for flag in flags:
        if flag["flag"] in ELSEWHERE:
            continue
        for words in of_flag(flag, names):
            yield question(words)
        if flag["flag"] in CONFIGS:
            for words in of_fields(flag["flag"]):
                yield question(words)
    for env in of_variables():
        yield question([], env=env)
    yield from singles()
    random_ = random.Random(33)
    for _ in range(number):
        yield drawn(random_)
    recipes = {name: [*SHAPES.get(name, []), *RECIPES.get(name, [])] for name in [*SHAPES, *RECIPES]}
    for _ in range(number):
        yield drawn(random_, SERVED, recipes)


def main():
    table, number = sys.argv[1], int(sys.argv[2])
    seen = set()
    for each in questions(table, number):
        line = json.dumps(each)
        if line not in seen:
            seen.add(line)
            print(line)


if __name__ == "__main__":
    main()
