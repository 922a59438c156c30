"""Questions for `sglang_commands.py`: commands that SGLang's own parser may take or not, and flags beside each other.

Usage: sglang_questions.py flags, or sglang_questions.py random|devices HOW_MANY SEED. The same numbers give the same questions. Flags, their
values and kinds are the parser's own; which of them are told beside each other is in `SHAPE`, with the values that count.
"""

import json
import random
import sys

from sglang_commands import DEVICES, parser, pools

MODELS = """Qwen__Qwen3-8B openai__gpt-oss-120b deepseek-ai__DeepSeek-V2-Lite nvidia__Nemotron-H-8B-Base-8K
Qwen__Qwen3-Next-80B-A3B-Thinking Qwen__Qwen3-30B-A3B Qwen__Qwen3.5-35B-A3B deepseek-ai__DeepSeek-V3.2 google__gemma-2-2b
meta-llama__Llama-4-Scout-17B-16E-Instruct moonshotai__Kimi-Linear-48B-A3B-Instruct LiquidAI__LFM2-1.2B""".split()

# Flags that shape caches, or that SGLang's rules join to such, with values: absent is one more.
SHAPE = {
    "--tp-size": "1 2 4 8 3 0", "--pp-size": "1 2 4", "--dp-size": "1 2 4 8", "--attn-dp-size": "1 2 4 8 0", "--enable-dp-attention": "",
    "--ep-size": "1 2 4 8", "--dcp-size": "1 2 0", "--attn-cp-size": "1 2", "--moe-dp-size": "1 2", "--nnodes": "1 2 3",
    "--moe-dense-tp-size": "1 2", "--enable-dp-lm-head": "", "--context-length": "1 1024 4096 32768 1000000", "--page-size": "1 16 32 64 128",
    "--max-total-tokens": "1 100 5000 1000000", "--max-running-requests": "1 7 16 256 100000 0", "--max-prefill-tokens": "1 4096 32768",
    "--chunked-prefill-size": "-1 0 1 100 1024 4096 16384", "--kv-cache-dtype": "auto fp8_e4m3 fp8_e5m2 bf16 fp4_mx_block16 mxfp8 nvfp4",
    "--dtype": "auto half float16 bfloat16 float32", "--mem-fraction-static": "0.1 0.5 0.8 0.95 1.0",
    "--attention-backend": "fa3 flashinfer triton torch_native flashmla trtllm_mha trtllm_mla fa4 cutedsl_mla flex_attention dsa hpc_ops",
    "--prefill-attention-backend": "fa3 flashinfer triton trtllm_mha trtllm_mla", "--decode-attention-backend": "fa3 flashinfer triton flashmla",
    "--disable-radix-cache": "", "--disable-overlap-schedule": "", "--enable-mixed-chunk": "", "--enable-hierarchical-cache": "",
    "--hicache-ratio": "0 0.5 2", "--hicache-size": "0 10", "--hicache-storage-backend": "file mooncake hf3fs",
    "--hicache-write-policy": "write_back write_through", "--hicache-mem-layout": "layer_first page_first page_first_direct",
    "--hicache-io-backend": "direct kernel", "--mamba-radix-cache-strategy": "auto no_buffer extra_buffer extra_buffer_lazy",
    "--max-mamba-cache-size": "0 1 8 100 100000", "--mamba-full-memory-ratio": "0 0.1 0.9 2", "--mamba-ssm-dtype": "float32 bfloat16 float16",
    "--mamba-track-interval": "1 64 100 256", "--mamba-backend": "triton flashinfer", "--linear-attn-backend": "triton cutedsl flashinfer",
    "--swa-full-tokens-ratio": "0.1 0.5 1.0 0 1.5", "--disable-hybrid-swa-memory": "",
    "--speculative-algorithm": "EAGLE EAGLE3 NEXTN STANDALONE NGRAM DFLASH DSPARK eagle ngram UNO",
    "--speculative-draft-model-path": "DRAFT:Qwen__Qwen3-0.6B", "--speculative-num-steps": "1 3 5", "--speculative-eagle-topk": "1 4",
    "--speculative-num-draft-tokens": "1 4 8 16", "--speculative-ngram-max-bfs-breadth": "1 10", "--enable-multi-layer-eagle": "",
    "--speculative-use-rejection-sampling": "", "--speculative-attention-mode": "prefill decode", "--speculative-adaptive": "",
    "--disaggregation-mode": "null prefill decode", "--disaggregation-decode-enable-radix-cache": "",
    "--disaggregation-decode-enable-offload-kvcache": "", "--disaggregation-transfer-backend": "mooncake nixl fake",
    "--num-reserved-decode-tokens": "1 512", "--disable-cuda-graph": "", "--cuda-graph-max-bs": "1 64 512", "--enable-torch-compile": "",
    "--disable-cuda-graph-padding": "", "--enable-two-batch-overlap": "", "--enable-single-batch-overlap": "", "--enable-pdmux": "",
    "--enable-deterministic-inference": "", "--sampling-backend": "flashinfer pytorch", "--quantization": "fp8 awq modelopt_fp4",
    "--moe-a2a-backend": "none deepep mooncake", "--moe-runner-backend": "auto triton deep_gemm flashinfer_cutlass", "--deepep-mode": "auto normal",
    "--enable-eplb": "", "--ep-num-redundant-experts": "0 8", "--enable-lora": "", "--max-lora-rank": "8", "--lora-target-modules": "all q_proj",
    "--max-loras-per-batch": "0 4", "--schedule-policy": "fcfs lpm lof random dfs-weight", "--enable-priority-scheduling": "",
    "--num-continuous-decode-steps": "1 4", "--is-embedding": "", "--enable-metrics": "", "--skip-tokenizer-init": "",
    "--load-format": "auto dummy gguf bitsandbytes", "--device": "cuda cpu", "--radix-eviction-policy": "lru lfu", "--enable-lmcache": "",
    "--enable-unified-memory": "", "--pp-max-micro-batch-size": "0 1 8", "--base-gpu-id": "0 -1", "--gpu-id-step": "0 1",
    "--tokenizer-worker-num": "0 1 4", "--served-model-name": "a a:b", "--enable-mis": "", "--cpu-offload-gb": "0 4",
    "--enable-return-hidden-states": "", "--prefill-only-disable-kv-cache": "", "--enable-memory-saver": "", "--trust-remote-code": "",
    "--min-free-slots-delay": "1", "--enable-dynamic-chunking": "", "--prefill-max-requests": "1 8", "--c128-page-size": "16 32",
    "--json-model-override-args": '{} {"max_position_embeddings":8192} {"num_hidden_layers":4} [1] {', "--cp-strategy": "zigzag interleave",
    "--enable-prefill-cp": "", "--enable-response-store": "", "--schedule-conservativeness": "0.3 1.0 -1", "--enable-weights-cpu-backup": "",
}
ENV = {
    "SGLANG_MAMBA_SSM_DTYPE": "float32 bfloat16 nope", "SGLANG_MAMBA_CONV_DTYPE": "float32 bfloat16", "SGLANG_PP_LAYER_PARTITION": "10,26",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1 0 true", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "0 1", "SGLANG_ENABLE_PP_SPEC": "1",
    "SGLANG_RUST_SERVER": "1", "SGLANG_ENABLE_SPEC_V2": "0 1", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "1",
    "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "1", "SGLANG_ENABLE_TORCH_COMPILE": "1", "SGLANG_USE_BREAKABLE_CUDA_GRAPH": "1",
    "SGLANG_RAGGED_VERIFY_MODE": "static compact nope", "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "0 1",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python rust", "SGLANG_SWA_EVICTION_INTERVAL": "128",
}
# What people serve, and the flags that they set: none of them is wrong by itself.
SERVED = """Qwen__Qwen3-8B Qwen__Qwen3-32B Qwen__Qwen3-30B-A3B Qwen__Qwen3-235B-A22B Qwen__Qwen3-Next-80B-A3B-Thinking Qwen__Qwen3.5-27B
Qwen__Qwen3.5-35B-A3B Qwen__Qwen2.5-7B-Instruct meta-llama__Llama-3.1-8B-Instruct meta-llama__Llama-3.1-70B-Instruct
meta-llama__Llama-4-Scout-17B-16E-Instruct openai__gpt-oss-120b deepseek-ai__DeepSeek-V2-Lite deepseek-ai__DeepSeek-V3
deepseek-ai__DeepSeek-V3.2 deepseek-ai__DeepSeek-V4-Flash moonshotai__Kimi-K2-Instruct moonshotai__Kimi-Linear-48B-A3B-Instruct
google__gemma-2-9b google__gemma-3-1b-it google__gemma-4-26B-A4B ../published/gemma3_27b ../published/qwen25vl72b ../published/qwen3vl_235b
nvidia__Nemotron-H-8B-Base-8K nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 tiiuae__Falcon-H1-7B-Instruct ibm-granite__granite-4.0-h-small
LiquidAI__LFM2-1.2B zai-org__GLM-4.5 zai-org__GLM-4.7-Flash zai-org__GLM-5.2 mistralai__Mistral-7B-v0.1 mistralai__Mixtral-8x7B-v0.1
microsoft__phi-4 MiniMaxAI__MiniMax-M3 ../published/mistral_small_32 ../published/exaone4_32b ../published/olmo3_32b
../published/mimo_7b ../published/seed_oss_36b ../published/minimax_m2 ../published/ling_2_6_1t tencent__Hunyuan-A13B""".split()
USUAL = {
    "--tp-size": "1 2 4 8", "--pp-size": "2", "--dp-size": "2 4", "--attn-dp-size": "2 8", "--enable-dp-attention": "", "--ep-size": "2 8",
    "--context-length": "2048 8192 32768", "--page-size": "1 16 32 64 128", "--max-total-tokens": "5000 1000000",
    "--max-running-requests": "1 8 48 256 1024", "--chunked-prefill-size": "-1 1024 2048 4096 16384", "--max-prefill-tokens": "8192 32768",
    "--kv-cache-dtype": "fp8_e4m3 fp8_e5m2 bf16 bfloat16 fp4_mx_block16 mxfp8 nvfp4", "--dtype": "half bfloat16",
    "--mem-fraction-static": "0.7 0.85 0.9", "--attention-backend": "fa3 fa4 flashinfer triton torch_native flashmla trtllm_mha trtllm_mla",
    "--prefill-attention-backend": "fa3 fa4 flashinfer triton trtllm_mha trtllm_mla",
    "--decode-attention-backend": "fa3 flashinfer triton flashmla trtllm_mha trtllm_mla cutedsl_mla", "--disable-radix-cache": "",
    "--disable-overlap-schedule": "", "--enable-mixed-chunk": "", "--enable-hierarchical-cache": "", "--hicache-ratio": "2",
    "--mamba-radix-cache-strategy": "no_buffer extra_buffer extra_buffer_lazy", "--max-mamba-cache-size": "100 1000",
    "--mamba-full-memory-ratio": "0.3 2", "--mamba-ssm-dtype": "float32 bfloat16", "--mamba-backend": "triton", "--mamba-track-interval": "128",
    "--linear-attn-backend": "triton cutedsl flashinfer", "--swa-full-tokens-ratio": "0.2 1.0", "--disable-hybrid-swa-memory": "",
    "--disaggregation-mode": "prefill decode", "--disable-cuda-graph": "", "--cuda-graph-max-bs-decode": "8 64",
    "--cuda-graph-bs-decode": "64", "--disable-prefill-cuda-graph": "", "--disable-decode-cuda-graph": "", "--enable-torch-compile": "",
    "--enable-two-batch-overlap": "", "--enable-deterministic-inference": "", "--enable-mis": "", "--moe-a2a-backend": "deepep flashinfer",
    "--moe-runner-backend": "triton flashinfer_trtllm flashinfer_cutlass", "--enable-dp-lm-head": "", "--moe-dense-tp-size": "1",
    "--enable-multimodal": "", "--language-model-only": "", "--mm-feature-transport": "cpu cuda_ipc", "--schedule-policy": "lpm fcfs lof",
    "--enable-symm-mem": "", "--enable-memory-saver": "", "--quantization": "fp8", "--enable-metrics": "", "--trust-remote-code": "",
    "--enable-eplb": "", "--dcp-size": "2", "--load-format": "dummy", "--sampling-backend": "pytorch", "--enable-lora": "",
    "--max-loras-per-batch": "4", "--schedule-conservativeness": "0.5", "--dsa-prefill-backend": "flashmla_sparse fa3 tilelang trtllm",
    "--dsa-decode-backend": "flashmla_kv trtllm tilelang", "--speculative-draft-attention-backend": "fa3 trtllm_mha triton flashinfer",
    "--dsv4-attn-backend": "flashmla trtllm", "--swa-prefix-tails": "8", "--prefill-max-requests": "8",
}
DRAFTS = [
    "--speculative-algorithm EAGLE", "--speculative-algorithm NEXTN", "--speculative-algorithm NGRAM",
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT:Qwen__Qwen3-0.6B --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
    "--speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT:Qwen__Qwen3-0.6B",
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8",
    "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT:Qwen__Qwen3-0.6B",
]
INTS = ["0", "1", "-1", "2", "64", "1000000000000", "abc", "1.5", "", "1_000", "0x10", " 7 "]
FLOATS = ["0", "0.5", "1", "1.5", "-1", "nan", "abc", ""]
TEXTS = ["abc", "", "{}", "{", "[]", "1"]


def flags():
    """Every flag with each of its choices, and with values at the bounds of its kind and beyond."""
    for action in parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or names[0] in ("--help", "--model-path"):
            continue
        first = names[0]
        for words in of_flag(first, action):
            yield {"model": MODELS[0], "words": words}
        typical = next(iter(of_flag(first, action)))[1:]
        for name in names[1:]:
            yield {"model": MODELS[0], "words": [name, *typical]}
        if len(first) > 6:
            yield {"model": MODELS[0], "words": [first[:-2], *typical]}
            yield {"model": MODELS[0], "words": [first.replace("-", "_").replace("__", "--", 1), *typical]}


def of_flag(name, action):
    if action.nargs == 0:
        return [[name], [f"{name}=true"], [name, "true"]]
    if action.choices:
        listed = [str(choice) for choice in sorted(action.choices, key=str)]
        return [*([name, choice] for choice in listed), [name, "nope"], [name, listed[0].upper()], [name]]
    kind = getattr(action.type, "__name__", "str")
    values = {"int": INTS, "float": FLOATS}.get(kind, TEXTS if kind == "str" else [*TEXTS, *INTS])
    several = [[name, "1", "2"]] if action.nargs in ("+", "*") else []
    return [*([name, value] for value in values), [name], *several]


def randomly(count, seed):
    """Two to four flags beside each other, of which most shape caches, on a model of each kind and one or eight devices."""
    generator = random.Random(seed)
    everything = [action for action in parser()._actions if action.option_strings and action.option_strings[0] not in ("-h", "--model-path")]
    for _ in range(count):
        words, env = [], {}
        names = generator.sample(sorted(SHAPE), generator.choice([1, 2, 2, 3, 3, 4]))
        if any(name.startswith("--speculative") for name in names) and "--speculative-algorithm" not in names and generator.random() < 0.7:
            names.append("--speculative-algorithm")
        for name in names:
            values = SHAPE[name].split()
            words += [name, generator.choice(values)] if values else [name]
        if generator.random() < 0.15:
            action = generator.choice(everything)
            words += generator.choice(of_flag(action.option_strings[0], action))
        if generator.random() < 0.12:
            name = generator.choice(sorted(ENV))
            env = {name: generator.choice(ENV[name].split())}
        question = {"model": generator.choice(MODELS), "words": words, "env": env, "devices": generator.choice([1, 8, 8])}
        yield {key: value for key, value in question.items() if value}


def realistically(count, seed):
    """One to four flags that people set, on the models that they serve and devices of each generation."""
    generator = random.Random(seed)
    for _ in range(count):
        words = []
        for name in generator.sample(sorted(USUAL), generator.choice([0, 1, 1, 2, 2, 3, 4])):
            values = USUAL[name].split()
            words += [name, generator.choice(values)] if values else [name]
        if generator.random() < 0.2:
            words += generator.choice(DRAFTS).split()
        question = {"model": generator.choice(SERVED), "words": words, "device": generator.choice(sorted(DEVICES))}
        yield {**question, "devices": generator.choice([1, 8])}


def main():
    kind, *numbers = sys.argv[1:]
    asked = {"flags": flags, "random": randomly, "devices": realistically}[kind]
    for question in asked(*map(int, numbers)):
        print(json.dumps(question, separators=(",", ":")), file=pools.ANSWERS)


if __name__ == "__main__":
    main()
