"""llama.cpp's own caches on a CPU: one line of answers per question, which is a line of JSON.

Usage: llama_cpp.py FILE.gguf. A question is {"ctx": cells, "parallel": sequences} and, where they are not the engine's own,
"unified", "ubatch", "type_k", "type_v", "swa_full". An answer has for each cache that the engine logs "kv CELLS LAYERS K V",
"rs CELLS LAYERS R S" or, of compressors, "cs STREAMS LAYERS SIZE" with sizes in MiB as printed and a comma between, or "-"
where it does not start; why goes to stderr.

Weights may be a hole: the process is ended as soon as its caches are said.
"""

import json
import os
import re
import signal
import subprocess
import sys

NUMBER = r" *([\d.]+)"
KV = re.compile(rf"llama_kv_cache: size = .*\({NUMBER} cells,{NUMBER} layers,.*K \(\w+\):{NUMBER} MiB, V \(\w+\):{NUMBER}")
STATES = re.compile(rf"llama_memory_recurrent: size = .*\({NUMBER} cells,{NUMBER} layers,.*R \(\w+\):{NUMBER} MiB, S \(\w+\):{NUMBER}")

COMPRESSORS = re.compile(rf"llama_dsv4_comp_state: .* ratio =.* streams ={NUMBER}, .* layers ={NUMBER}, size ={NUMBER} MiB")


def start(file, question):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = question["ctx"], question["parallel"]
    params.kv_unified = question.get("unified", False)
    params.n_ubatch = question.get("ubatch", params.n_ubatch)
    params.swa_full = question.get("swa_full", False)
    for key in ("type_k", "type_v"):
        if key in question:
            kind = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + question[key].upper())
            setattr(params, "cache_" + key, kind)
    params.verbosity, params.port = 4, 0
    params.warmup = params.fit_params = False
    params.no_mmproj = True
    xllamacpp.Server(params)


def answer(file, question):
    command = [sys.executable, __file__, file, "--start", json.dumps(question)]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    caches, said = [], []
    for line in engine.stdout:
        said.append(line.strip())
        for kind, pattern in (("kv", KV), ("rs", STATES), ("cs", COMPRESSORS)):
            if found := pattern.search(line):
                caches.append(" ".join([kind, *found.groups()]))
        # Said once all caches are.
        if "sched_reserve:" in line:
            break
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    if not caches:
        wrong = [line for line in said if re.search(r"error|assert", line, re.IGNORECASE)] or said[-1:]
        print(f"{os.path.basename(file)}: {wrong[:1]}", file=sys.stderr, flush=True)
    return ", ".join(caches) or "-"


if __name__ == "__main__":
    if "--start" in sys.argv:
        start(sys.argv[1], json.loads(sys.argv[-1]))
        os._exit(0)
    for line in sys.stdin:
        print(answer(sys.argv[1], json.loads(line)), flush=True)
