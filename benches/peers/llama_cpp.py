"""Runs the bench models in cacheplan's runtime and in llama.cpp, from the same GGUF files, in turns.

    python -m venv venv && venv/bin/pip install xllamacpp gguf numpy
    cargo bench -p cacheplan-runtime --bench end_to_end --no-run    # prints where the bench lies
    venv/bin/python benches/peers/llama_cpp.py target/release/deps/end_to_end-* FOLDER

Writes a Llama of `models/llama_137m`'s dimensions with random weights as F16 and as Q8_0 under FOLDER, once, and prints a table in
Markdown. Both use two threads, take in a prompt of 512 tokens and decode one sequence. Rates are medians of the rounds;
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


def write(path, kind):
    c = json.loads((MODELS / "llama_137m" / "config.json").read_text())
    random = numpy.random.default_rng(0)
    w = gguf.GGUFWriter(path, "llama")
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head, ffn, layers, vocab = c.get("head_dim") or hidden // heads, c["intermediate_size"], c["num_hidden_layers"], c["vocab_size"]
    w.add_block_count(layers)
    w.add_context_length(4096)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(vocab)
    # llama.cpp wants a vocabulary, though ids are given.
    w.add_tokenizer_model("llama")
    w.add_token_list([f"t{i}" for i in range(vocab)])
    w.add_token_scores([0.0] * vocab)
    w.add_token_types([1] * vocab)

    def matrix(name, rows, columns):
        values = (random.standard_normal((rows, columns), dtype=numpy.float32) / columns**0.5)
        w.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    def norm(name):
        w.add_tensor(name, numpy.ones(hidden, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, hidden)
    for layer in range(layers):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight")
        matrix(at + "attn_q.weight", heads * head, hidden)
        matrix(at + "attn_k.weight", kv * head, hidden)
        matrix(at + "attn_v.weight", kv * head, hidden)
        matrix(at + "attn_output.weight", hidden, heads * head)
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


def cacheplan(bench, path):
    table = subprocess.run([bench, str(path)], check=True, capture_output=True, text=True).stdout
    cells = [cell.strip() for cell in table.strip().splitlines()[-1].strip("|").split("|")]
    return float(cells[7]), float(cells[5])


def main():
    bench, work = sys.argv[1], pathlib.Path(sys.argv[2])
    print("| model | prefill tokens/s | llama.cpp | ratio | decode tokens/s | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, kind in [("F16", gguf.GGMLQuantizationType.F16), ("Q8_0", gguf.GGMLQuantizationType.Q8_0)]:
        path = work / f"llama_137m.{name}.gguf"
        if not path.exists():
            write(path, kind)
        rounds = [(cacheplan(bench, path), llama_cpp(path)) for _ in range(ROUNDS)]
        cells = []
        for what in (0, 1):
            ours, theirs = [r[0][what] for r in rounds], [r[1][what] for r in rounds]
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            cells += [f"{statistics.median(ours):.1f}", f"{statistics.median(theirs):.1f}", f"{ratio:.2f}"]
        print(f"| llama_137m {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    started = time.time()
    main()
    print(f"{ROUNDS} rounds, {time.time() - started:.0f} s", file=sys.stderr)
