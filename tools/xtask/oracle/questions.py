"""Questions for an engine's planner, each to be asked with prefix caching off and on.

Usage: questions.py zoo FOLDER_OF_CONFIGS, or questions.py models FOLDER_OF_CONFIGS for the configs beside it, or questions.py classes
FOLDER_OF_CONFIGS for the defaults of transformers' classes, or questions.py pools FOLDER_OF_CONFIGS for SGLang's of all these, or
questions.py random FOLDER_OF_CONFIGS HOW_MANY. The same number gives the same questions.
"""

import json
import pathlib
import random
import sys

from configs import beside_the_zoo, classes, config_of

GIB = 2**30

# What engines read of models, besides sizes of caches, and files in the fixtures leave out; of some a file is no published one.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
WINDOWS_OF_INKLING = [layer for layer in range(66) if (layer + 1) % 6]
LEFT_OUT = {
    "deepseek-ai__DeepSeek-V4.1-Flash": {
        "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 6, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "rope_theta": 10000, "compress_rope_theta": 160000, "num_hash_layers": 0, "routed_scaling_factor": 1.5,
        "norm_topk_prob": True, "scoring_func": "sqrtsoftplus", "hidden_act": "silu", "swiglu_limit": 10.0,
    },
    "ibm-granite__granite-4.0-h-350m": {
        "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
    },
    "nvidia__NVIDIA-Nemotron-3-Nano-4B": {
        "hybrid_override_pattern": "M" * 21 + "*" * 4 + "-" * 17, "mamba_ssm_cache_dtype": "float16",
    },
    "thinkingmachines__Inkling": {"shared_expert_sink": True, "local_layer_ids": WINDOWS_OF_INKLING},
    "zai-org__GLM-5.3-Flash": {"mhc": True, "mla_use_nope": True},
    **dict.fromkeys("sglang__nanbeige transformers__hrm_text transformers__jetmoe transformers__zaya vllm__dory".split(), {}),
    "../published/qwen3_8_flash_next": {"eos_token_id": 1},
    "transformers:glm5_next": {"mhc": True, "mla_use_nope": True},
    "transformers:inkling_mm_model": {"local_layer_ids": WINDOWS_OF_INKLING},
    "transformers:muse_spark": {"rope_parameters": ROPE},
    "transformers:qwen4_exp": {"eos_token_id": 1},
}

# Models whose config code beside their weights reads, and as which class of transformers.
CODE = {
    "../published/ling_2_6_1t": "PretrainedConfig",
    "../published/ling_3_flash": "PretrainedConfig",
    "../published/mimo_7b": "Qwen2Config",
}

# Models of more than one kind of cache, or of another kind than every token's keys and values.
HYBRID = """bamba falcon_h1 falcon_mamba gemma2 gemma3_text gemma4_text gpt_oss granitemoehybrid jamba kimi_linear lfm2
llama4_text mamba nemotron_h plamo2 qwen3_5_moe_text qwen3_5_text qwen3_next zamba2
""".split()

# Numbers of a config that may be another without making it invalid, where the config has them.
CHANGES = {
    "conv_L_cache": [2, 3, 4],
    "full_attention_interval": [2, 3, 6],
    "head_dim": [64, 128, 256],
    "linear_conv_kernel_dim": [2, 3, 4],
    "linear_key_head_dim": [64, 128],
    "linear_num_value_heads": [16, 32, 64],
    "linear_value_head_dim": [64, 128],
    "mamba_d_conv": [2, 3, 4],
    "mamba_d_state": [16, 64, 128, 256],
    "mamba_head_dim": [32, 64, 128],
    "mamba_n_groups": [1, 2, 4, 8],
    "mamba_num_heads": [32, 64, 128],
    "n_groups": [1, 2, 4, 8],
    "num_key_value_heads": [1, 2, 4, 8],
    "sliding_window": [512, 1024, 4096],
    "ssm_state_size": [16, 64, 128],
}


def in_the_zoo(folder):
    return [path.stem for path in sorted(folder.glob("*.json"))]


def zoo(folder):
    yield from map(plainly, in_the_zoo(folder))


def models(folder):
    """Those that are not in the zoo, and those of which its files leave out what engines read."""
    of_the_zoo = [model for model in LEFT_OUT if model in in_the_zoo(folder)]
    yield from (asked_whole(folder, model) for model in [*of_the_zoo, *beside_the_zoo(folder)])


def defaults(folder):
    yield from (asked_whole(folder, model) for model in classes(folder))


def asked_whole(folder, model):
    return {**plainly(model), **completed(folder, model)}


def completed(folder, model):
    prefix = section_of(config_of(folder, model))[1]
    changes = {prefix + key: value for key, value in LEFT_OUT.get(model, {}).items()}
    code = {"code": CODE[model]} if model in CODE else {}
    return {"whole": True, **({"changes": changes} if changes else {}), **code}


def plainly(model):
    return {"model": model, "flags": {"max_model_len": 4096}, "bytes": 20 * GIB}


def pools(folder):
    # What it takes a step for on the device that it is told of.
    words = ["--chunked-prefill-size", "8192"]
    for model in [*in_the_zoo(folder), *beside_the_zoo(folder), *classes(folder)]:
        yield {"model": model, "words": words, "gib": 20, "capability": 90, **completed(folder, model)}


def section_of(config):
    """The part of the config that says the language model's layers, and where it stands."""
    inner = config.get("text_config")
    return (inner, "text_config.") if isinstance(inner, dict) else (config, "")


def chosen(random, config):
    """Some of the numbers that this config has, each another."""
    section, prefix = section_of(config)
    known = [key for key in CHANGES if isinstance(section.get(key), int)]
    keys = random.sample(known, random.randint(0, min(3, len(known))))
    return {prefix + key: random.choice(CHANGES[key]) for key in sorted(keys)}


def cut(random, config):
    """A run of the config's layers: its first, and the one behind its last."""
    section = section_of(config)[0]
    layers = section.get("num_hidden_layers")
    # Lists of layers by number would name some that are gone.
    by_number = "hybrid_layer_ids" in section or "linear_attn_config" in section
    if not isinstance(layers, int) or by_number or layers <= 12 and random.random() < 0.3:
        return None
    length = random.randint(min(4, layers), min(layers, 24))
    start = random.randint(0, layers - length)
    # vLLM takes every second layer of this one for a window, whatever the config lists.
    if section.get("model_type") == "gpt_oss":
        start -= start % 2
    return [start, start + length]


def flags(random):
    flags = {
        "max_model_len": random.choice([1024, 2048, 4096, 8192, 32768]),
        "max_num_batched_tokens": random.choice([4096, 8192, 16384]),
    }
    if random.random() < 0.25:
        flags["block_size"] = random.choice([16, 32, 64, 128])
    if random.random() < 0.25:
        flags["kv_cache_dtype"] = "fp8"
    if random.random() < 0.25:
        flags["mamba_ssm_cache_dtype"] = random.choice(["float32", "bfloat16"])
    if random.random() < 0.2:
        drafts = random.choice([1, 2, 3])
        flags["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 4}
    if random.random() < 0.25:
        flags["tensor_parallel_size"] = random.choice([2, 4])
    return flags


def randomly(folder, count):
    generator = random.Random(count)
    configs = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    paths = [path for path, config in configs.items() if section_of(config)[0].get("model_type") in HYBRID]
    for _ in range(count):
        path = generator.choice(paths)
        question = {
            "model": path.stem,
            "layers": cut(generator, configs[path]),
            "changes": chosen(generator, configs[path]),
            "flags": flags(generator),
            "bytes": generator.randint(8, 60) * GIB + generator.randint(0, GIB),
        }
        yield {key: value for key, value in question.items() if value}


def main():
    kind, folder, *count = sys.argv[1:]
    asked = {"zoo": zoo, "models": models, "classes": defaults, "pools": pools, "random": randomly}[kind]
    for question in asked(pathlib.Path(folder), *map(int, count)):
        print(json.dumps(question, separators=(",", ":")))


if __name__ == "__main__":
    main()
