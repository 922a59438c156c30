"""Starts vLLM on this CPU with tiny models of random weights under the guard: as planned, and not.

Usage: starts.py FIXTURES FOLDER. Models are made in FOLDER from the configs of FIXTURES, with heads as wide as the CPU's
kernels want. Each start as planned answers a request and names its owners in its log; each other one ends with its reason.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import cacheplan
from tokenizers import Tokenizer, models, pre_tokenizers

FIXTURES, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
ENGINE = "vllm@0.32.0"
PORT = 18231
# Imports alone take half a minute on two cores.
PATIENCE = 300
MIB = 2**20
LENGTH, SEQUENCES, STEP, BLOCK, BYTES = 256, 8, 512, 128, 64 * MIB
PLANNED = {"max_seq_len": LENGTH, "max_batch_size": SEQUENCES, "max_num_tokens": STEP, "tokens_per_block": BLOCK}
STARTED = {
    "max-model-len": LENGTH,
    "max-num-seqs": SEQUENCES,
    "max-num-batched-tokens": STEP,
    "kv-cache-memory-bytes": BYTES,
    "dtype": "bfloat16",
}
MODELS = {
    "llama": {"head_dim": 64},
    "gemma3": {"head_dim": 64, "sliding_window": 64},
}
# Mamba-2, attention and an MLP; mixtures of experts like its own do not run on CPUs. There vLLM rounds a hybrid's block up to
# whole ones of 128 tokens, on a GPU to whole ones of 16, which is what is planned.
HYBRID = {
    "head_dim": 64,
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "mlp"],
    "mamba_head_dim": 64,
    "ssm_state_size": 64,
}
OF_THE_CPU = "tokens_per_block, num_blocks"
# What is told otherwise than planned, what is named, and the reason.
DRIFTS = [
    ({"block-size": 64}, "tokens_per_block", "the engine was told another, or took its kernel's"),
    ({"kv-cache-memory-bytes": BYTES // 2}, "cache_bytes", "the engine has 32.00 MiB less"),
    ({"dtype": "float32"}, "FullAttentionSpec", "f32, planned bf16"),
]


def model(name, changes):
    """A model of random weights, whose words are `w0`, `w1`, …"""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((FIXTURES / name / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{word}": word for word in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def plan(folder, **changes):
    made = cacheplan.plan(folder, engine=ENGINE, cache_bytes=f"{BYTES}B", prefix_caching=True, **PLANNED | changes)
    path = folder / "plan.json"
    path.write_text(made.to_json())
    return path


def start(folder, path, told, enforce="refuse"):
    """The server's process, and the file that it logs to. It speaks to nobody but this machine."""
    log = folder / "start.log"
    flags = [word for key, value in (STARTED | told).items() for word in (f"--{key}", str(value))]
    # What `vllm serve` starts; the wheel's own command looks for a package of another name.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--load-format",
        "dummy",
    ]
    environment = os.environ | {
        "CACHEPLAN_PLAN": str(path),
        "CACHEPLAN_ENFORCE": enforce,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    with log.open("wb") as out:
        host = ["--host", "127.0.0.1", "--port", str(PORT), "--enforce-eager"]
        server = subprocess.Popen([*command, *flags, *host], env=environment, stdout=out, stderr=out)
    return server, log


def ask(folder):
    body = {"model": str(folder), "prompt": "w3 w4 w5", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def until_it_serves(server, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the server does not serve, exit code {server.poll()}:\n{log.read_text()[-4000:]}")


def answers(name, changes, enforce, verdict):
    """It starts, answers, and its log names the owners and has the verdict."""
    folder = model(name, changes)
    path = plan(folder)
    server, log = start(folder, path, {}, enforce)
    try:
        until_it_serves(server, log)
        usage = ask(folder)["usage"]
        assert usage["completion_tokens"] == 4, usage
        told = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60).read().decode()
        assert "\nvllm:kv_cache_planned_blocks{" in told and "\nvllm:kv_cache_most_used_blocks{" in told, told[-4000:]
    finally:
        server.terminate()
        server.wait(60)
    said = [line for line in log.read_text().splitlines() if "cacheplan: " in line]
    assert any("kv_cache_manager: " in line for line in said), said
    assert any(line.endswith(verdict.format(path)) for line in said), said
    print(f"{name}: started and answered\n" + "\n".join(said), flush=True)


def refused(name, told, names, reason):
    folder = model(name, MODELS[name])
    server, log = start(folder, plan(folder), told)
    code = server.wait(PATIENCE)
    text = log.read_text()
    assert code != 0, "it started"
    said = next((line for line in text.splitlines() if "EngineError: vLLM" in line), text[-4000:])
    assert names in said.rpartition(" plans it: ")[2], said
    assert reason in text, text[-4000:]
    assert "GPU KV cache size" not in text and "CPU KV cache size" not in text, "caches were allocated"
    print(f"{name} with {told}: exit code {code}, {said.strip()}", flush=True)


if __name__ == "__main__":
    for name, changes in MODELS.items():
        answers(name, changes, "refuse", " is as {} plans it")
    answers("nemotron_h", HYBRID, "warn", f" is not as {{}} plans it: {OF_THE_CPU}")
    for told, names, reason in DRIFTS:
        refused("llama", told, names, reason)
