"""Runs whole models in cacheplan's runtime and in Hugging Face transformers, from the same files, in turns.

    python -m venv venv && venv/bin/pip install torch transformers
    cargo bench -p cacheplan-runtime --bench end_to_end --no-run    # prints where the bench lies
    venv/bin/python benches/peers/end_to_end.py target/release/deps/end_to_end-* FOLDER

Makes random weights for the configs in `models/` under FOLDER, once, and prints a table in Markdown. Both decode one
sequence greedily after a prompt of 512 tokens. The bound is the rate at which the bench reads memory over the bytes of
weights and caches that a token needs. Ours are means of the bench's medians, those of Hugging Face its best.
"""

import pathlib
import statistics
import subprocess
import sys
import time

import torch
import transformers

PROMPT, DECODED, ROUNDS, TURNS = 512, 32, 3, 2
MODELS = pathlib.Path(__file__).parent / "models"


def folder_of(name, work):
    folder = pathlib.Path(work) / name
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(MODELS / name)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@torch.inference_mode()
def hugging_face(folder):
    """Seconds of the fastest prompt and of the fastest mean decode step."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = torch.arange(PROMPT)[None] * 37 % model.config.vocab_size
    prefill, decode = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        out = model(prompt, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        prefill.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(DECODED):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        decode.append((time.perf_counter() - start) / DECODED)
    return min(prefill), min(decode)


def cacheplan(bench, folder):
    """The figures of the bench's one row."""
    table = subprocess.run([bench, str(folder)], check=True, capture_output=True, text=True).stdout
    return [float(cell) for cell in table.splitlines()[-1].strip("| ").split("|")[1:]]


def main(bench, work):
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    print("| model | weights MB | cache MB | read GB/s | bound tokens/s "
          "| decode tokens/s | part | HF decode tokens/s | part | prefill tokens/s | HF prefill tokens/s |")
    print("|---" * 11 + "|")
    for name in sorted(path.name for path in MODELS.iterdir()):
        folder = folder_of(name, work)
        turns = [(cacheplan(bench, folder), hugging_face(folder)) for _ in range(TURNS)]
        weights, cache, read, _, decode, _, prefill = map(statistics.mean, zip(*(ours for ours, _ in turns)))
        bound = read * 1e3 / (weights + cache)
        hf_prefill, hf_decode = PROMPT / min(hf[0] for _, hf in turns), 1 / min(hf[1] for _, hf in turns)
        print(f"| {name} | {weights:.1f} | {cache:.1f} | {read:.1f} | {bound:.1f} | {decode:.1f} | {decode / bound:.2f} "
              f"| {hf_decode:.1f} | {hf_decode / bound:.2f} | {prefill:.0f} | {hf_prefill:.0f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
