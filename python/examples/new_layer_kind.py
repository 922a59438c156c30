"""An architecture that nobody has published, described as text: planned, explained, and served by the toy engine."""

import random

import cacheplan
import toy_engine

CONFIG = {
    "model_type": "heron",
    "torch_dtype": "bfloat16",
    "hidden_size": 1024,
    "vocab_size": 32000,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "mixer_types": ["scan", "scan", "look", "scan", "scan", "glance"],
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "glance_tokens": 512,
    "scan": {"heads": 32, "state": 64, "conv": 4},
    "max_position_embeddings": 65536,
}

DESCRIPTION = """
model_types = ["heron"]

[[pattern]]
key = "mixer_types"

[names]
look = "attention"

[kinds]
scan = ["mamba2", "feed_forward"]
glance = ["glance", "feed_forward"]

[blocks.mamba2]
num_heads = "scan.heads"
head_dim = "2 * hidden_size / scan.heads"
d_state = "scan.state"
n_groups = "1"
d_conv = "scan.conv ?? 4"

[blocks.glance]
block = "sliding_attention"
window = "glance_tokens"
"""


def main() -> None:
    try:
        cacheplan.plan(CONFIG)
    except cacheplan.ModelError as error:
        print("without a description:", error)
    plan = cacheplan.plan(
        CONFIG,
        descriptions=[DESCRIPTION],
        max_seq_len=2048,
        max_batch_size=8,
        checkpoints=2,
    )
    print(plan)
    print(plan.explain("ssm.0"))
    draw = random.Random(1)
    shared = [draw.randrange(1000) for _ in range(300)]
    requests = [
        toy_engine.Request(shared[: draw.randrange(300)] + [draw.randrange(1000) for _ in range(100)], 20)
        for _ in range(50)
    ]
    print(toy_engine.serve(plan, requests))


if __name__ == "__main__":
    main()
