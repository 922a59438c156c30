"""Questions for an engine's planner, each to be asked with prefix caching off and on.

Usage: questions.py zoo FOLDER_OF_CONFIGS, or questions.py random FOLDER_OF_CONFIGS HOW_MANY. The same number gives the
same questions.
"""

import json
import pathlib
import random
import sys

GIB = 2**30

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


def zoo(folder):
    for path in sorted(folder.glob("*.json")):
        yield {"model": path.stem, "flags": {"max_model_len": 4096}, "bytes": 20 * GIB}


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
    kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for question in zoo(folder) if kind == "zoo" else randomly(folder, int(sys.argv[3])):
        print(json.dumps(question, separators=(",", ":")))


if __name__ == "__main__":
    main()
