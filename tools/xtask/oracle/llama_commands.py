"""What llama-server's own parser makes of commands: one answer per question, which is a line of JSON.

Usage: llama_commands.py, or llama_commands.py questions COUNT. A question is {"words": behind `llama-server -m x.gguf`, "env":
variables}, an answer {"parser": what it says before it ends} or {"values": what shapes caches, as it has read it}. The library's
parser is called with the struct that a Python object of the package holds behind its head, in a process of its own, since it may end it.
Questions are each flag of its help with values at the bounds of what it takes and beyond, and COUNT pairs of them.
"""

import ctypes
import json
import os
import random
import re
import sys
import tempfile

import xllamacpp

PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
# Of `llama_example`.
SERVER = 12
HEAD = 16
VALUES = """n_ctx n_batch n_ubatch n_parallel n_predict n_gpu_layers kv_unified cache_type_k cache_type_v swa_full flash_attn_type
cache_ram_mib ctx_shift fit_params no_kv_offload split_mode main_gpu""".split()
# A parser that fetches or opens nothing.
ALONE = {"HF_HUB_OFFLINE": "1"}
WORDS = ["0", "1", "-1", "4096", "99999999999", "1.5", "32k", "abc", "", "0x10", "on", "q8_0", "1,2", "{}", "none"]


def read(words):
    parse = ctypes.CDLL(xllamacpp.xllamacpp.__file__)[PARSE]
    parse.restype = ctypes.c_bool
    params = xllamacpp.CommonParams()
    argv = (ctypes.c_char_p * (len(words) + 2))(b"llama-server", *(word.encode() for word in words), None)
    if not parse(len(words) + 1, argv, ctypes.c_void_p(id(params) + HEAD), SERVER, None):
        return {"parser": ""}
    found = {name: getattr(params, name) for name in VALUES}
    return {"values": {name: value if isinstance(value, (bool, str)) else getattr(value, "name", value) for name, value in found.items()}}


def asked(words, env):
    """What a process says that reads them, and all that it prints."""
    pipe, end = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            os.environ.update(env)
            said = read(words)
            os.write(end, json.dumps(said, default=str).encode())
            os._exit(0)
        os.close(end)
        with os.fdopen(pipe) as file:
            said = file.read()
        os.waitpid(child, 0)
        printed.seek(0)
        text = printed.read()
    return (json.loads(said) if said else {"parser": "the process ends"}), text


def answer(question):
    said, text = asked(["-m", "x.gguf", *question["words"]], {**ALONE, **question.get("env", {})})
    if "parser" in said:
        lines = [line for line in text.splitlines() if re.search(r"error|invalid|argument|terminate", line)]
        said["parser"] = (lines or [said["parser"]])[0][:200]
    return said


def flags():
    """Names of each flag of its help, and whether a value stands behind them."""
    text = asked(["--help"], {})[1]
    for line in text.splitlines():
        if found := re.match(r"((?:-[\w-]+, +)*-[\w-]+)(?: +(\S.*))?", line):
            # Behind two blanks stands what it does.
            value = re.match(r"((?:-[\w-]+, +)*-[\w-]+) (\S+)", line)
            yield re.split(r", +", found[1]), bool(value)


def questions(count):
    every = list(flags())
    for names, takes in every:
        values = WORDS if takes else []
        yield from ([names[-1], value] for value in values)
        yield from ([name] for name in names)
        if takes:
            yield from ([name, "1"] for name in names)
        else:
            yield [names[-1], "1"]
    generator = random.Random(count)
    shape = ["-c", "-b", "-ub", "-np", "-ctk", "-ctv", "-fa", "-ngl", "--swa-full", "-kvu", "--no-kv-offload", "-sm", "-ts", "-fit", "-n", "--cache-ram"]
    known = {name: takes for names, takes in every for name in names}
    for _ in range(count):
        words = []
        for name in generator.sample(shape, generator.choice([2, 3, 4])):
            words += [name, *([generator.choice([*WORDS, "q4_0", "f16", "512", "2048", "row"])] if known.get(name) else [])]
        yield words


def main():
    out = os.fdopen(os.dup(1), "w")
    if sys.argv[1:2] == ["questions"]:
        for words in questions(int(sys.argv[2])):
            print(json.dumps({"words": words}, separators=(",", ":")), file=out)
        return
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
