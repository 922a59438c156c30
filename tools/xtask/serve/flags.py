"""Writes the tables of the flags that engines' own parsers take.

Usage: flags.py FOLDER OUT. FOLDER holds what `wheels.py` fetched of vllm, sglang, ai-dynamo and xllamacpp (llama.cpp as a library), and
`bBUILD.cpp`, the `arg.cpp` of builds of llama.cpp. OUT gets vllm.tsv, sglang.tsv, llama.cpp.tsv and dynamo.tsv. A row holds from the
first version that has it to the last, of those that were read.
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

def modules_of(path):
    with zipfile.ZipFile(path) as kept:
        return {name: ast.parse(kept.read(name)) for name in kept.namelist() if "multimodal_gen" not in name}


def rows_of(reader, paths):
    """The flags of a release and of those behind it that have its number: all of them, as the last has them."""
    return list({row["flag"]: row for path in paths for row in reader.rows(modules_of(path))}.values())


def versions_of(folder, name):
    """The releases, oldest first, each with the files of it and of what was released behind it."""
    found = [file.removesuffix(".zip").rsplit("-", 1) for file in os.listdir(folder) if file.endswith(".zip")]
    releases = {}
    for full in (version for of, version in found if of == name):
        release, _, post = full.partition(".post")
        path = os.path.join(folder, f"{name}-{full}.zip")
        releases.setdefault(tuple(map(int, release.split("."))), []).append((int(post or 0), path))
    return [(".".join(map(str, release)), [path for _, path in sorted(files)]) for release, files in sorted(releases.items())]


def libraries_of(folder):
    """The libraries of llama.cpp by their builds."""
    found = {}
    for version, [path] in versions_of(folder, "xllamacpp"):
        with zipfile.ZipFile(path) as kept:
            found[int(version.split(".")[2])] = b"".join(kept.read(name) for name in kept.namelist())
    return found


def alike(one, other):
    """Whether two versions take the same; where help shows it is the newer one's."""
    return {**one, "group": ""} == {**other, "group": ""}


def renamed(tables):
    """A flag has one first name in all versions, the newest's: what reads it asks for that. Older builds of llama.cpp have `--no-x`
    alone, newer ones `--x` that it negates: both are rows of `--x`."""
    first, negates = {}, {}
    for _, rows in reversed(tables):
        for row in rows:
            aliases, negated = ([name for name in row[of].split(",") if name] for of in ("aliases", "negated"))
            names = [row["flag"], *aliases, *negated]
            known = next((first[name] for name in names if name in first), row["flag"])
            if known in aliases:
                row.update(flag=known, aliases=",".join(row["flag"] if name == known else name for name in aliases))
            elif row["flag"] in negates and not negated:
                row.update(flag=negates[row["flag"]], aliases="", negated=",".join([row["flag"], *aliases]))
            for name in names:
                first.setdefault(name, row["flag"])
            for name in negated:
                negates.setdefault(name, row["flag"])
    return tables


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
        tables = [(version, rows_of(reader, paths)) for version, paths in versions]
        for version, rows in tables:
            print(engine, version, len(rows))
        write(os.path.join(out, engine + ".tsv"), [version for version, _ in versions], merged(renamed(tables)))
    version, [path] = versions_of(folder, "ai-dynamo")[-1]
    rows = dynamo.rows(modules_of(path))
    with open(os.path.join(out, "dynamo.tsv"), "w") as file:
        file.write(f"# read: ai-dynamo {version}\nworker\tflag\tvalues\tbecomes\n")
        file.writelines("\t".join(row) + "\n" for row in rows)
    libraries = libraries_of(folder)
    builds = sorted(int(file[1:-4]) for file in os.listdir(folder) if file.endswith(".cpp"))
    tables = []
    for build in builds:
        with open(os.path.join(folder, f"b{build}.cpp")) as file:
            tables.append((f"b{build}", llama_cpp.rows(file.read(), libraries.get(build))))
        print("llama.cpp", build, len(tables[-1][1]))
    write(os.path.join(out, "llama.cpp.tsv"), [build for build, _ in tables], merged(renamed(tables)))


if __name__ == "__main__":
    main()
