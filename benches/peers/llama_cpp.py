"""Runs the bench models in cacheplan's runtime and in llama.cpp, from the same GGUF files, in turns.

    python -m venv venv && venv/bin/pip install xllamacpp gguf numpy
    cargo bench -p cacheplan-runtime --bench end_to_end --no-run    # prints where the bench lies
    venv/bin/python benches/peers/llama_cpp.py target/release/deps/end_to_end-* FOLDER

Writes a Llama and a hybrid of the dimensions in `models/` with random weights as F16, BF16, Q8_0 and Q4_K under FOLDER, once, and
prints a table in Markdown. The hybrid, of type bamba, is the `granitehybrid` that llama.cpp's converter makes of it; a last argument
names one model alone, `MODEL.KIND` one file, `MODEL.KIND.fast` with `--products fast`. Both use two threads, take in a prompt of 512 tokens and decode one sequence. Rates are medians of the rounds;
`ratio` is the median of each round's ours over theirs, which other load on the machine meets alike.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

import gguf
import numpy

PROMPT, DECODED, ROUNDS, THREADS = 512, 48, 5, 2
MODELS = pathlib.Path(__file__).parent / "models"


def q4_k(values):
    """Blocks of 256: scales and minima of 6 bits for groups of 32, the plain way, which the package has not."""
    groups = values.reshape(-1, 8, 32)
    least = numpy.maximum(-groups.min(2), 0)
    scale = (groups.max(2) + least) / 15
    d, dmin = [(of.max(1) / 63).astype(numpy.float16) for of in (scale, least)]
    six = lambda of, d: numpy.clip(numpy.rint(of / numpy.maximum(d.astype(numpy.float32), 1e-20)[:, None]), 0, 63).astype(numpy.uint8)
    s, m = six(scale, d), six(least, dmin)
    wide = lambda of, d: (of * d.astype(numpy.float32)[:, None])[:, :, None]
    q = numpy.clip(numpy.rint((groups + wide(m, dmin)) / numpy.maximum(wide(s, d), 1e-20)), 0, 15).astype(numpy.uint8)
    packed = numpy.concatenate([s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], 1)
    quants = (q[:, ::2] | q[:, 1::2] << 4).reshape(-1, 128)
    blocks = numpy.concatenate([d[:, None].view(numpy.uint8), dmin[:, None].view(numpy.uint8), packed, quants], 1)
    return blocks.reshape(len(values), -1)


def write(path, kind, model):
    c = json.loads((MODELS / model / "config.json").read_text())
    random = numpy.random.default_rng(0)
    hybrid = c["model_type"] == "bamba"
    w = gguf.GGUFWriter(path, "granitehybrid" if hybrid else "llama")
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head, ffn, layers, vocab = c.get("head_dim") or hidden // heads, c["intermediate_size"], c["num_hidden_layers"], c["vocab_size"]
    w.add_block_count(layers)
    w.add_context_length(4096)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    attends = set(c["attn_layer_indices"]) if hybrid else set(range(layers))
    w.add_head_count_kv([kv if layer in attends else 0 for layer in range(layers)] if hybrid else kv)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(int(head * c["rope_parameters"].get("partial_rotary_factor", 1)))
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-6)
    if hybrid:
        ssm_heads, state, groups = c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"]
        inner, channels = ssm_heads * c["mamba_d_head"], ssm_heads * c["mamba_d_head"] + 2 * groups * state
        w.add_ssm_conv_kernel(c["mamba_d_conv"])
        w.add_ssm_inner_size(inner)
        w.add_ssm_state_size(state)
        w.add_ssm_group_count(groups)
        w.add_ssm_time_step_rank(ssm_heads)
        # Bamba has no factors but that of scores.
        w.add_attention_scale(head**-0.5)
        w.add_embedding_scale(1.0)
        w.add_residual_scale(1.0)
        w.add_logit_scale(1.0)
        w.add_rope_scaling_finetuned(True)
    w.add_vocab_size(vocab)
    # llama.cpp wants a vocabulary, though ids are given.
    w.add_tokenizer_model("llama")
    w.add_token_list([f"t{i}" for i in range(vocab)])
    w.add_token_scores([0.0] * vocab)
    w.add_token_types([1] * vocab)

    def matrix(name, rows, columns):
        values = (random.standard_normal((rows, columns), dtype=numpy.float32) / columns**0.5)
        # Rows that blocks of 256 do not fill take 8 bits.
        own = gguf.GGMLQuantizationType.Q8_0 if kind == gguf.GGMLQuantizationType.Q4_K and columns % 256 else kind
        stored = q4_k(values) if own == gguf.GGMLQuantizationType.Q4_K else gguf.quantize(values, own)
        w.add_tensor(name, stored, raw_dtype=own)

    def norm(name, size=hidden):
        w.add_tensor(name, numpy.ones(size, dtype=numpy.float32))

    def attention(at):
        matrix(at + "attn_q.weight", heads * head, hidden)
        matrix(at + "attn_k.weight", kv * head, hidden)
        matrix(at + "attn_v.weight", kv * head, hidden)
        matrix(at + "attn_output.weight", hidden, heads * head)

    def mamba2(at):
        matrix(at + "ssm_in.weight", inner + channels + ssm_heads, hidden)
        floats = lambda name, *shape: w.add_tensor(at + name, 0.1 * random.standard_normal(shape, dtype=numpy.float32))
        floats("ssm_conv1d.weight", channels, c["mamba_d_conv"])
        floats("ssm_conv1d.bias", channels)
        floats("ssm_dt.bias", ssm_heads)
        w.add_tensor(at + "ssm_a", -numpy.ones((ssm_heads, 1), dtype=numpy.float32))
        w.add_tensor(at + "ssm_d", numpy.ones((ssm_heads, 1), dtype=numpy.float32))
        w.add_tensor(at + "ssm_norm.weight", numpy.ones((groups, inner // groups), dtype=numpy.float32))
        matrix(at + "ssm_out.weight", hidden, inner)

    matrix("token_embd.weight", vocab, hidden)
    for layer in range(layers):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight")
        (attention if layer in attends else mamba2)(at)
        norm(at + "ffn_norm.weight")
        matrix(at + "ffn_gate.weight", ffn, hidden)
        matrix(at + "ffn_up.weight", ffn, hidden)
        matrix(at + "ffn_down.weight", hidden, ffn)
    norm("output_norm.weight")
    if not c.get("tie_word_embeddings"):
        matrix("output.weight", vocab, hidden)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_cpp(path):
    """Tokens per second of the prompt and of decoding, by llama.cpp's own timings."""
    program = f"""
import json, sys, xllamacpp as x
p = x.CommonParams()
p.model.path = {str(path)!r}
p.n_ctx = 1024; p.n_parallel = 1; p.n_batch = 512; p.n_ubatch = 512; p.warmup = True
p.cpuparams.n_threads = {THREADS}; p.cpuparams_batch.n_threads = {THREADS}; p.n_gpu_layers = 0
s = x.Server(p)
prompt = [(t * 37) % 32000 for t in range({PROMPT})]
r = s.handle_completions({{"prompt": prompt, "n_predict": {DECODED}, "temperature": 0, "ignore_eos": True, "cache_prompt": False}})
print("TIMINGS", json.dumps(r["timings"]))
"""
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    timings = json.loads(next(line for line in out.splitlines() if line.startswith("TIMINGS"))[8:])
    return timings["prompt_per_second"], timings["predicted_per_second"]


def cacheplan(bench, path, *flags):
    table = subprocess.run([bench, str(path), *flags], check=True, capture_output=True, text=True).stdout
    cells = [cell.strip() for cell in table.strip().splitlines()[-1].strip("|").split("|")]
    return float(cells[7]), float(cells[5])


def main():
    bench, work = sys.argv[1], pathlib.Path(sys.argv[2])
    print("| model | prefill tokens/s | llama.cpp | ratio | decode tokens/s | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|")
    kinds = {name: gguf.GGMLQuantizationType[name] for name in ["F16", "BF16", "Q8_0", "Q4_K"]}
    models = sys.argv[3:] or ["llama_137m", "hybrid_128m"]
    names = [*kinds, "Q8_0.fast", "Q4_K.fast"]
    files = [(model, name) for model, _, kind in (model.partition(".") for model in models) for name in ([kind] if kind else names)]
    for model, name in files:
        name, _, fast = name.partition(".")
        kind, flags = kinds[name], ["--fast"] * bool(fast)
        path = work / f"{model}.{name}.gguf"
        if not path.exists():
            write(path, kind, model)
        rounds = [(cacheplan(bench, path, *flags), llama_cpp(path)) for _ in range(ROUNDS)]
        cells = []
        for what in (0, 1):
            ours, theirs = [r[0][what] for r in rounds], [r[1][what] for r in rounds]
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            cells += [f"{statistics.median(ours):.1f}", f"{statistics.median(theirs):.1f}", f"{ratio:.2f}"]
        print(f"| {model} {name}{', fast' * bool(fast)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    started = time.time()
    main()
    print(f"{ROUNDS} rounds, {time.time() - started:.0f} s", file=sys.stderr)
