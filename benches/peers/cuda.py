"""The sizes of `cacheplan bench --device cuda:0` through PyTorch, Triton and FlashInfer, and a table of both.

    cacheplan-gpu bench --list --json sizes.json                    # needs no device
    python3 benches/peers/cuda.py --sizes sizes.json --dry-run      # who would measure what; needs nothing
    python3 benches/peers/cuda.py --sizes sizes.json --json peers.json
    python3 benches/peers/cuda.py --table bench.json peers.json     # ours beside theirs, in Markdown

Each peer is optional; one that is missing is named with the reason. Peers: `torch` (scaled_dot_product_attention,
index_copy_, rms_norm), `mamba_ssm` (Triton: state update, SSD), `causal_conv1d`, `fla` (flash-linear-attention, Triton: gated and
Kimi delta rules, lightning attention), `flashinfer` (paged attention and MLA). A call is timed by events, median of 30, after a
read that leaves nothing of its memory in the caches, as ours are. Paged attention of torch reads a contiguous cache: torch has
none that is paged.
"""

import argparse
import importlib
import json
import statistics
import sys

REPEATS, WARM_UP = 30, 5


class Missing(Exception):
    """Why a peer does not measure a size."""


def needs(module):
    try:
        return importlib.import_module(module)
    except Exception as error:  # A library for CUDA may fail in any way where there is none.
        raise Missing(f"{module} does not load: {type(error).__name__}: {error}") from error


def dtype(torch, name):
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]


def formats(figure):
    """The format of a state, pool or weight, and that of activations."""
    words = figure["variant"].replace(",", "").split()
    return words[0], next((word for word in words[1:] if word in ("f32", "bf16", "f16")), words[0])


def plain(figure, *allowed):
    """Refuses what the peer's call does not do."""
    if formats(figure)[0] not in allowed:
        raise Missing(f"not with {figure['variant']}")


# Each function makes the operands of a size and gives a call without arguments.


def torch_attention(torch, size, figure):
    plain(figure, "bf16", "f16")
    number = dtype(torch, formats(figure)[1])
    batch, heads, kv_heads, dim = size["batch"], size["heads"], size["kv_heads"], size["head_dim"]
    rows = lambda heads, tokens: torch.randn(batch, heads, tokens, dim, device="cuda", dtype=number)
    q, k, v = rows(heads, size["tokens"]), rows(kv_heads, size["context"]), rows(kv_heads, size["context"])
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=size["tokens"] > 1, enable_gqa=heads != kv_heads)


def flashinfer_attention(torch, size, figure):
    plain(figure, "bf16", "f16")
    if size["tokens"] > 1:
        raise Missing("decode only")
    flashinfer = needs("flashinfer")
    number = dtype(torch, formats(figure)[1])
    batch, block, dim = size["batch"], size["block"], size["head_dim"]
    blocks = -(-size["context"] // block)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND")
    offsets = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * blocks
    pages = torch.randperm(batch * blocks, device="cuda").int()
    last = torch.full((batch,), size["context"] - (blocks - 1) * block, dtype=torch.int32, device="cuda")
    wrapper.plan(offsets, pages, last, size["heads"], size["kv_heads"], dim, block, q_data_type=number, kv_data_type=number)
    q = torch.randn(batch, size["heads"], dim, device="cuda", dtype=number)
    pool = torch.randn(batch * blocks, 2, size["kv_heads"], block, dim, device="cuda", dtype=number)
    return lambda: wrapper.run(q, pool)


def flashinfer_mla(torch, size, figure):
    plain(figure, "bf16", "f16")
    if size["tokens"] > 1:
        raise Missing("decode only")
    mla = needs("flashinfer.mla")
    number = dtype(torch, formats(figure)[1])
    batch, heads, block = size["batch"], size["heads"], size["block"]
    blocks = -(-size["context"] // block)
    int32 = {"dtype": torch.int32, "device": "cuda"}
    wrapper = mla.BatchMLAPagedAttentionWrapper(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    pages = torch.randperm(batch * blocks, device="cuda").int()
    lengths = torch.full((batch,), size["context"], **int32)
    offsets = torch.arange(batch + 1, **int32)
    wrapper.plan(offsets, offsets * blocks, pages, lengths, heads, 512, 64, block, False, 192**-0.5, number, number)
    rows = lambda *shape: torch.randn(*shape, device="cuda", dtype=number)
    q, q_rope = rows(batch, heads, 512), rows(batch, heads, 64)
    latents, keys = rows(batch * blocks, block, 512), rows(batch * blocks, block, 64)
    return lambda: wrapper.run(q, q_rope, latents, keys)


def torch_index_copy(torch, size, figure):
    plain(figure, "bf16", "f16", "f32")
    if "rotated" in figure["variant"]:
        raise Missing("writes without a rotation only")
    number = dtype(torch, formats(figure)[0])
    width = size["kv_heads"] * size["head_dim"]
    pools = [torch.zeros(size["tokens"] + size["block"], width, device="cuda", dtype=number) for _ in range(2)]
    rows = [torch.randn(size["tokens"], width, device="cuda", dtype=number) for _ in range(2)]
    slots = torch.arange(size["tokens"] - 1, -1, -1, device="cuda")
    return lambda: [pool.index_copy_(0, slots, row) for pool, row in zip(pools, rows)]


def torch_copy_rows(torch, size, figure):
    number = dtype(torch, formats(figure)[0])
    pool = torch.zeros(2 * size["rows"], size["elements"], device="cuda", dtype=number)
    rows = size["rows"]
    return lambda: pool[:rows].copy_(pool[rows:])


def torch_norm(torch, size, figure):
    number = dtype(torch, formats(figure)[0])
    x = torch.randn(size["rows"], size["width"], device="cuda", dtype=number)
    weight = torch.randn(size["width"], device="cuda", dtype=number)
    return lambda: torch.nn.functional.rms_norm(x, (size["width"],), weight, 1e-5)


def torch_product(torch, size, figure):
    number = dtype(torch, formats(figure)[0])
    x = torch.randn(size["rows"], size["inputs"], device="cuda", dtype=number)
    weight = torch.randn(size["outputs"], size["inputs"], device="cuda", dtype=number)
    return lambda: torch.nn.functional.linear(x, weight)


def mamba_operands(torch, size, figure):
    number = dtype(torch, formats(figure)[1])
    rows = lambda *shape: torch.randn(*shape, device="cuda", dtype=number)
    heads, dim, groups, states = size["heads"], size["head_dim"], size["groups"], size["d_state"]
    a = -torch.rand(heads, device="cuda") - 0.1
    d, bias = torch.randn(heads, device="cuda"), torch.randn(heads, device="cuda")
    return rows, heads, dim, groups, states, a, d, bias


def mamba_state_update(torch, size, figure):
    op = needs("mamba_ssm.ops.triton.selective_state_update").selective_state_update
    rows, heads, dim, groups, states, a, d, bias = mamba_operands(torch, size, figure)
    batch = size["batch"]
    state = torch.randn(batch, heads, dim, states, device="cuda", dtype=dtype(torch, formats(figure)[0]))
    x, z, dt = rows(batch, heads, dim), rows(batch, heads, dim), rows(batch, heads)[:, :, None].expand(-1, -1, dim)
    b, c = rows(batch, groups, states), rows(batch, groups, states)
    # One number for each head, as the layer has it.
    a = a[:, None, None].expand(-1, dim, states)
    d, bias = d[:, None].expand(-1, dim), bias[:, None].expand(-1, dim)
    return lambda: op(state, x, dt, a, b, c, d, z=z, dt_bias=bias, dt_softplus=True)


def mamba_ssd(torch, size, figure):
    op = needs("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    rows, heads, dim, groups, states, a, d, bias = mamba_operands(torch, size, figure)
    batch, tokens = size["batch"], size["tokens"]
    x, z, dt = rows(batch, tokens, heads, dim), rows(batch, tokens, heads, dim), rows(batch, tokens, heads)
    b, c = rows(batch, tokens, groups, states), rows(batch, tokens, groups, states)
    return lambda: op(x, dt, a, b, c, 128, D=d, z=z, dt_bias=bias, dt_softplus=True, return_final_states=True)


def conv_update(torch, size, figure):
    op = needs("causal_conv1d").causal_conv1d_update
    number = dtype(torch, formats(figure)[0])
    x = torch.randn(size["batch"], size["channels"], device="cuda", dtype=number)
    state = torch.randn(size["batch"], size["channels"], size["d_conv"] - 1, device="cuda", dtype=number)
    weight = torch.randn(size["channels"], size["d_conv"], device="cuda", dtype=number)
    bias = torch.randn(size["channels"], device="cuda", dtype=number)
    return lambda: op(x, state, weight, bias, "silu")


def conv_prefill(torch, size, figure):
    op = needs("causal_conv1d").causal_conv1d_fn
    number = dtype(torch, formats(figure)[0])
    # Channels last, as a projection leaves them.
    x = torch.randn(size["batch"], size["tokens"], size["channels"], device="cuda", dtype=number).transpose(1, 2)
    weight = torch.randn(size["channels"], size["d_conv"], device="cuda", dtype=number)
    bias = torch.randn(size["channels"], device="cuda", dtype=number)
    return lambda: op(x, weight, bias, activation="silu")


def linear_operands(torch, size, figure, key_heads):
    number = dtype(torch, formats(figure)[1])
    batch, tokens, heads = size["batch"], size["tokens"], size["heads"]
    rows = lambda heads, dim: torch.randn(batch, tokens, heads, dim, device="cuda", dtype=number)
    q, k, v = rows(key_heads, size["key_dim"]), rows(key_heads, size["key_dim"]), rows(heads, size["value_dim"])
    beta = torch.rand(batch, tokens, heads, device="cuda", dtype=number)
    state = torch.randn(batch, heads, size["key_dim"], size["value_dim"], device="cuda")
    return q, k, v, beta, state


def fla_gated_delta(torch, size, figure):
    plain(figure, "f32")
    fla = needs("fla.ops.gated_delta_rule")
    # Its recurrent kernel shares keys among value heads; its chunked one has as many of both.
    recurrent = size["tokens"] == 1
    q, k, v, beta, state = linear_operands(torch, size, figure, size["key_heads"] if recurrent else size["heads"])
    decay = -torch.rand(size["batch"], size["tokens"], size["heads"], device="cuda")
    op = fla.fused_recurrent_gated_delta_rule if recurrent else fla.chunk_gated_delta_rule
    more = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return lambda: op(q, k, v, decay, beta, **more)


def fla_kimi_delta(torch, size, figure):
    plain(figure, "f32")
    fla = needs("fla.ops.kda")
    q, k, v, beta, state = linear_operands(torch, size, figure, size["heads"])
    decay = -torch.rand(size["batch"], size["tokens"], size["heads"], size["key_dim"], device="cuda")
    op = fla.fused_recurrent_kda if size["tokens"] == 1 else fla.chunk_kda
    more = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return lambda: op(q, k, v, decay, beta, **more)


PEERS = {
    "attention decode": {"torch": torch_attention, "flashinfer": flashinfer_attention},
    "attention prefill": {"torch": torch_attention},
    "MLA decode": {"flashinfer": flashinfer_mla},
    "cache write": {"torch": torch_index_copy},
    "cache write with RoPE": {"torch": torch_index_copy},
    "copy rows": {"torch": torch_copy_rows},
    "norm": {"torch": torch_norm},
    "product": {"torch": torch_product},
    "state update": {"mamba_ssm": mamba_state_update},
    "SSD prefill": {"mamba_ssm": mamba_ssd},
    "conv update": {"causal_conv1d": conv_update},
    "conv prefill": {"causal_conv1d": conv_prefill},
    "gated delta update": {"fla": fla_gated_delta},
    "gated delta prefill": {"fla": fla_gated_delta},
    "Kimi delta update": {"fla": fla_kimi_delta},
    "Kimi delta prefill": {"fla": fla_kimi_delta},
}


def timed(torch, call, flush):
    """Median seconds."""
    times = []
    for repeat in range(WARM_UP + REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.sum()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if repeat >= WARM_UP:
            times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def measure(figures):
    try:
        torch = needs("torch")
        if not torch.cuda.is_available():
            raise Missing("torch sees no CUDA device")
    except Missing as why:
        sys.exit(f"nothing can be measured: {why}")
    torch.set_grad_enabled(False)
    found = torch.cuda.get_device_properties(0)
    flush = torch.ones(max(4 * found.L2_cache_size, 256 << 20) // 4, device="cuda")
    for figure in figures:
        for peer, make in PEERS.get(figure["op"], {}).items():
            one = {key: figure[key] for key in ("op", "sizes", "variant", "bytes", "flops")} | {"by": peer}
            try:
                one["microseconds"] = 1e6 * timed(torch, make(torch, figure["sizes"], figure), flush)
            except Missing as why:
                one["missing"] = str(why)
            except Exception as error:  # A peer that fails is no reason to stop the others.
                one["missing"] = f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.empty_cache()
            yield one


def told(figure):
    return ", ".join(f"{name} {size}" for name, size in figure["sizes"].items()) + ", " + figure["variant"]


def dry_run(figures):
    for figure in figures:
        peers = ", ".join(PEERS.get(figure["op"], {})) or "nobody"
        print(f"{figure['op']:<24} {peers:<24} {told(figure)}")
    for module in ("torch", "mamba_ssm", "causal_conv1d", "fla", "flashinfer"):
        try:
            print(f"{module}: {getattr(needs(module), '__version__', 'found')}")
        except Missing as why:
            print(f"{module}: {why}")


def key(figure):
    return figure["op"], json.dumps(figure["sizes"], sort_keys=True), figure["variant"]


def table(ours, theirs):
    """Ours beside theirs: microseconds, the part of the limit, and how many times ours each takes."""
    others = {}
    for figure in theirs["figures"]:
        others.setdefault(key(figure), []).append(figure)
    number = lambda value, form: format(value, form) if value is not None else "none"
    lines = ["| op | size | ours, µs | part of the limit | others, µs | times ours |", "|---|---|---|---|---|---|"]
    for figure in ours["figures"]:
        own = figure.get("microseconds")
        time = number(own, ".1f") if own else figure.get("missing", "none")
        part = f"{number(figure.get('part'), '.2f')} of {figure['limit']}" if own and "limit" in figure else ""
        for other in others.get(key(figure), [{}]):
            value = other.get("microseconds")
            said = f"{other['by']} {number(value, '.1f') if value else other.get('missing', 'none')}" if other else ""
            times = number(value / own, ".2f") if value and own else ""
            lines.append(f"| {figure['op']} | {told(figure)} | {time} | {part} | {said} | {times} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", metavar="FILE", help="what `cacheplan-gpu bench --list` or `bench --json` wrote")
    parser.add_argument("--json", metavar="FILE", help="where to write the figures")
    parser.add_argument("--list", "--dry-run", dest="list", action="store_true", help="say who would measure what, and stop")
    parser.add_argument("--table", nargs=2, metavar=("OURS", "THEIRS"), help="print both files as one table")
    args = parser.parse_args()
    read = lambda name: json.load(open(name, encoding="utf-8"))
    if args.table:
        print(table(*map(read, args.table)))
        return
    if not args.sizes:
        parser.error("--sizes FILE is needed")
    figures = read(args.sizes)["figures"]
    if args.list:
        dry_run(figures)
        return
    measured = []
    for figure in measure(figures):
        measured.append(figure)
        time = figure.get("microseconds")
        print(f"{figure['op']}, {told(figure)}: {figure['by']} {f'{time:.1f} µs' if time else figure['missing']}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"by": "peers", "device": "cuda:0", "figures": measured}, file, indent=2)


if __name__ == "__main__":
    main()
