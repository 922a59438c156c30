"""Times PyTorch's and Hugging Face's own CPU paths at the shapes of `benches/roofline.rs`.

    python -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python kernels/benches/peers/torch_ops.py

Prints the best of several calls in milliseconds, by the wall and in processor time, as the Rust bench does.
"""

import os
import time

import torch
import torch.nn.functional as F
import transformers
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

torch.set_grad_enabled(False)
torch.set_num_threads(len(os.sched_getaffinity(0)))


def report(op, shape, call, rounds=7):
    call()
    wall, processor = [], []
    for _ in range(rounds):
        start = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    print(f"{op:<20} {shape:<64} {min(wall) * 1e3:>9.3f} ms {min(processor) * 1e3:>9.3f} ms", flush=True)


def state_update(batch, heads=80, dim=64, n=128):
    state = torch.zeros(batch, heads, dim, n)
    x, dt = torch.randn(batch, heads, dim), torch.randn(batch, heads, dim)
    a = -torch.rand(heads, dim, n)
    b, c = torch.randn(batch, 1, n), torch.randn(batch, 1, n)
    d, bias = torch.randn(heads, dim), torch.randn(heads, dim)
    call = lambda: mamba2.mamba2_selective_state_update(state, x, dt, a, b, c, D=d, dt_bias=bias, dt_softplus=True)
    report("state update", f"batch {batch}, 80 heads of 64 x 128", call)


def scan_prefill(tokens, heads=80, dim=64, n=128):
    x, dt, a = torch.randn(1, tokens, heads, dim), torch.randn(1, tokens, heads), -torch.rand(heads)
    b, c, d = torch.randn(1, tokens, 1, n), torch.randn(1, tokens, 1, n), torch.randn(heads)
    call = lambda: mamba2.mamba2_chunk_scan(
        x, dt, a, b, c, chunk_size=256, D=d, dt_softplus=True, return_final_states=True
    )
    report("scan prefill", f"{tokens} tokens, 80 heads of 64 x 128", call, rounds=3)


def attention(op, group, batch, context, tokens, kv_heads=8, dim=128):
    q = torch.randn(batch, group * kv_heads, tokens, dim)
    k, v = torch.randn(batch, kv_heads, context, dim), torch.randn(batch, kv_heads, context, dim)
    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
    shape = f"batch {batch}, context {context}, 8 KV heads of 128, {group} queries each"
    report(op, shape, call)


def conv(tokens, channels=5376):
    x, weight, bias = torch.randn(1, tokens, channels), torch.randn(channels, 1, 4), torch.randn(channels)
    call = lambda: F.silu(F.conv1d(x.transpose(1, 2), weight, bias, padding=3, groups=channels)[..., :tokens])
    report("conv prefill", f"batch 1, {tokens} tokens, 5376 channels, width 4", call)


def delta_rule(batch, tokens, key_heads=16, heads=32, dim=128):
    # Hugging Face repeats key heads itself where its model does.
    q, k, v = (torch.randn(batch, tokens, heads, dim) for _ in range(3))
    g, beta = -torch.rand(batch, tokens, heads), torch.rand(batch, tokens, heads)
    state = torch.zeros(batch, heads, dim, dim)
    function = qwen.torch_chunk_gated_delta_rule if tokens > 1 else qwen.torch_recurrent_gated_delta_rule
    call = lambda: function(
        q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    op = "delta rule prefill" if tokens > 1 else "delta rule update"
    report(op, f"batch {batch}, {tokens} tokens, 32 heads of 128 x 128", call, rounds=3 if tokens > 1 else 7)


print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
state_update(1)
state_update(16)
scan_prefill(4096)
for group in (1, 4, 8):
    attention("attention decode", group, 4, 4096, 1)
attention("attention decode", 4, 1, 16384, 1)
attention("attention prefill", 4, 1, 2048, 2048)
conv(4096)
delta_rule(16, 1)
delta_rule(1, 2048)
