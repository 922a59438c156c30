"""Writes the tables of the flags that engines' own parsers take.

Usage: flags.py FOLDER OUT. FOLDER holds wheels of vllm, sglang and ai-dynamo, one of xllamacpp (llama.cpp as a library), and `arg.cpp`. OUT gets
vllm.tsv, sglang.tsv, llama.cpp.tsv and dynamo.tsv. A row holds from the first version that has it to the last, of those that were read.
"""

import ast
import os
import sys
import zipfile

import dynamo
import llama_cpp
import sglang
import vllm
from rows import COLUMNS

READ = {
    "vllm": ("vllm/config/", "engine/arg_utils.py", "cli_args.py", "argparse_utils.py"),
    "sglang": sglang.PATHS,
}


def modules_of(path, parts):
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".py") and any(part in name for part in parts)]
        return {name: ast.parse(wheel.read(name)) for name in names if "multimodal_gen" not in name}


def versions_of(folder, engine):
    found = [name for name in os.listdir(folder) if name.startswith(engine + "-") and name.endswith(".whl")]
    numbered = [(tuple(map(int, name.split("-")[1].split("."))), name) for name in found]
    return [(".".join(map(str, version)), os.path.join(folder, name)) for version, name in sorted(numbered)]


def alike(one, other):
    """Whether two versions take the same; where help shows it is the newer one's."""
    return {**one, "group": ""} == {**other, "group": ""}


def merged(tables):
    """Rows of several versions: what is alike in neighbours is one row."""
    names = [version for version, _ in tables]
    lines, open_rows = [], {}
    for at, (version, rows) in enumerate(tables):
        current = {row["flag"]: row for row in rows}
        for flag, row in current.items():
            known = open_rows.get(flag)
            if known and known["until"] == at - 1 and alike(known["row"], row):
                known |= {"row": row, "until": at}
            else:
                open_rows[flag] = {"row": row, "since": at, "until": at}
                lines.append(open_rows[flag])
    # A name that has it still is not bounded.
    bound = lambda line: ("" if line["since"] == 0 else names[line["since"]], "" if line["until"] == len(names) - 1 else names[line["until"]])
    return [bound(line) + tuple(line["row"][column] for column in COLUMNS) for line in lines]


def write(path, versions, lines):
    with open(path, "w") as file:
        file.write(f"# versions read: {' '.join(versions)}\n")
        file.write("\t".join(["since", "until", *COLUMNS]) + "\n")
        for line in sorted(lines, key=lambda line: (line[2], line[0])):
            file.write("\t".join(line) + "\n")
    print(f"{path}: {len(lines)} rows")


def main():
    folder, out = sys.argv[1:]
    for engine, reader in (("vllm", vllm), ("sglang", sglang)):
        versions = versions_of(folder, engine)
        tables = [(version, reader.rows(modules_of(path, READ[engine]))) for version, path in versions]
        for version, rows in tables:
            print(engine, version, len(rows))
        write(os.path.join(out, engine + ".tsv"), [version for version, _ in versions], merged(tables))
    workers = next(name for name in os.listdir(folder) if name.startswith("ai_dynamo-"))
    rows = dynamo.rows(modules_of(os.path.join(folder, workers), dynamo.PATHS))
    with open(os.path.join(out, "dynamo.tsv"), "w") as file:
        file.write(f"# read: ai-dynamo {workers.split('-')[1]}\nworker\tflag\tvalues\tbecomes\n")
        file.writelines("\t".join(row) + "\n" for row in rows)
    library = next(name for name in os.listdir(folder) if name.startswith("xllamacpp-"))
    build = "b" + library.split("-")[1].split(".")[2]
    with zipfile.ZipFile(os.path.join(folder, library)) as wheel:
        binary = wheel.read(next(name for name in wheel.namelist() if name.endswith(".so")))
    with open(os.path.join(folder, "arg.cpp")) as file:
        rows = llama_cpp.rows(file.read(), binary)
    write(os.path.join(out, "llama.cpp.tsv"), [build], merged([(build, rows)]))


if __name__ == "__main__":
    main()
