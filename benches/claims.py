"""Measures what the documents behind this project claim, as ratios of runs in turns: `python3 benches/claims.py FOLDER`.

    cargo build --release

- a prompt in chunks against the same prompt token by token,
- prefixes that are kept against none,
- a decoding step of an exported graph whose caches hold 4096 tokens against one whose caches hold 128, with as many tokens in them.

Models are made with random weights under FOLDER, once, from `peers/models`. Each round runs both sides one after the other; the
ratio is the median of the rounds' ratios, which other load on the machine meets alike. Prints a table in Markdown.
"""

import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
COMMAND = HERE.parent / "target/release/cacheplan"
ROUNDS = 3
PROMPT = [7 + 31 * at % 31_000 for at in range(512)]


def run(model, *arguments):
    said = subprocess.run(
        [COMMAND, "run", model, "--format", "json", "--ignore-eos", *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return json.loads(said.stdout)


def first_token(model, step):
    """Seconds to the first token of a prompt that is taken in `step` tokens at a time."""
    ids = ",".join(map(str, PROMPT))
    answer = run(model, "--prompt-ids", ids, "--max-new-tokens", 1, "--max-batch-size", 1, "--max-num-tokens", step)
    return answer["speed"]["time_to_first_token"]["p50"]


def served(model, requests, *arguments):
    """Seconds in which requests that begin alike are served, one after the other."""
    report = requests.with_suffix(".report.json")
    asked = [COMMAND, "run", model, "--ignore-eos", "--requests", requests, "--max-batch-size", 1, "--report", "json", report]
    subprocess.run([*map(str, [*asked, *arguments])], check=True, capture_output=True)
    return json.loads(report.read_text())["speed"]["seconds"]


def decoded(model, graphs):
    """Seconds of a decoding step of an exported graph."""
    ids = ",".join(map(str, PROMPT[:64]))
    answer = run(model, "--static", graphs, "--prompt-ids", ids, "--max-new-tokens", 32)
    return answer["speed"]["time_per_token"]["p50"]


def prepared(folder, name, length):
    """The graphs of a model, exported once with random weights; a folder that `run` takes as the model too."""
    graphs = folder / f"{name}-{length}"
    if not graphs.exists():
        subprocess.run(
            [COMMAND, "export-graph", HERE / "peers/models" / name, "--random-weights", "--max-cache-len", str(length), "--out", graphs],
            check=True,
        )
    return graphs


def row(what, slow, fast):
    pairs = [(slow(), fast()) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    slow, fast = (statistics.median(side) * 1e3 for side in zip(*pairs))
    print(f"| {what} | {slow:.1f} | {fast:.1f} | {ratio:.2f} |", flush=True)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    short = {name: prepared(folder, name, 128) for name in ("hybrid_128m", "llama_137m")}
    long = {name: prepared(folder, name, 4096) for name in short}
    requests = folder / "requests.jsonl"
    lines = [{"prompt_ids": PROMPT[:480] + [at + 1] * 32, "max_tokens": 8} for at in range(8)]
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print("| claim | without, ms | with, ms | ratio |\n|---|---|---|---|")
    for name, model in short.items():
        row(f"{name}: a prompt of 512 in chunks", lambda: first_token(model, 1), lambda: first_token(model, 512))
        if name.startswith("hybrid"):
            kept = ("--checkpoints", 4)
            row(f"{name}: eight prompts that share 480 of 512 tokens", lambda: served(model, requests), lambda: served(model, requests, *kept))
        row(f"{name}: a step of a graph whose caches hold 128, not 4096", lambda: decoded(model, long[name]), lambda: decoded(model, model))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
