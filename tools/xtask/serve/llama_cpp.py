"""The flags of `llama-server`, read from `common/arg.cpp`; names are held to those in a build of the library.

A source that is not quite of the build's commit may name what that has not; such a flag is left out.
"""

import re

from rows import row

# What a library has and the source of its build, a little older, has not: with what they take and their variables.
NEWER = {"--moe-cache-mib": row("--moe-cache-mib", type="int", env="LLAMA_ARG_MOE_CACHE_MIB")}

# Which of the programs an option is for; without a word it is for all.
SERVER = {"LLAMA_EXAMPLE_SERVER", "LLAMA_EXAMPLE_COMMON"}


def rows(source, library=None):
    known = library and {name.decode() for name in re.findall(rb"(--[a-z][a-z0-9-]+)\0", library)}
    words = {name: re.findall(r'"([^"]+)"', body) for name, body in re.findall(r"is_(truthy|falsey|autoy)\(const [^)]*\)\s*\{([^}]*)\}", source)}
    found = {}
    for call in calls(source):
        head, tail = call
        lists = re.match(r"\s*\{([^}]*)\}\s*(?:,\s*\{([^}]*)\}\s*)?,", head)
        if not lists:
            continue
        names = re.findall(r'"([^"]+)"', lists.group(1))
        negated = re.findall(r'"([^"]+)"', lists.group(2) or "")
        examples = re.search(r"set_examples\(\{([^}]*)\}", tail)
        if examples and not SERVER & set(re.findall(r"LLAMA_EXAMPLE_\w+", examples.group(1))):
            continue
        if re.search(r"set_excludes\(\{[^}]*LLAMA_EXAMPLE_SERVER", tail):
            continue
        long = [name for name in names if name.startswith("--")]
        if known and long and not known & set(long):
            continue
        # What it does with a value tells how many it takes.
        body = head[lists.end() :]
        taken = re.search(r"\]\s*\(\s*common_params\s*&\s*\w*\s*(?:,\s*([^)]*))?\)", body)
        arguments = taken.group(1) or "" if taken else ""
        values, kind = "1", "str"
        if not arguments:
            values, kind = "0", "bool"
        elif re.match(r"\s*bool\b", arguments):
            values, kind = "0", "bool"
        elif re.match(r"\s*int\b", arguments):
            kind = "int"
        elif arguments.count("std::string") == 2:
            values = "2"
        elif re.search(r"std::stof\(value\)", body):
            kind = "float"
        env = re.search(r'set_env\("([A-Z_0-9]+)"\)', tail)
        first = (long or names)[-1]
        # The server prefers its own of two.
        found[first] = row(
            first,
            [name for name in names if name != first],
            values=values,
            negated=negated,
            type=kind,
            choices=said(body, words) or choices(body),
            env=env.group(1) if env else "",
        )
    return list({**{name: NEWER[name] for name in NEWER if name in (known or ())}, **found}.values())


def said(body, words):
    """What stands for yes, no and `auto` where the value is asked for them."""
    asked = [name for name in ("truthy", "falsey", "autoy") if f"is_{name}(value)" in body]
    return [word for name in asked for word in words.get(name, [])]


def choices(body):
    """What is written in the place of a value as {a,b,c}."""
    said = re.match(r'\s*"[\[{<]([a-z0-9|,_-]+)[\]}>]"\s*,', body)
    parts = re.split(r"[|,]", said.group(1)) if said else []
    return parts if len(parts) > 1 else []


def calls(source):
    """What stands in the parentheses of `common_arg(...)`, and what is chained behind it."""
    for start in (match.end() for match in re.finditer(r"add_opt\(common_arg\(", source)):
        end = closing(source, start)
        rest = source[end + 1 :]
        behind = re.match(r"(?:\.\w+\([^;]*?\))*\s*\);", rest, re.S)
        yield source[start:end], rest[: behind.end()] if behind else rest[:200]


def closing(source, at):
    """Where the parenthesis closes that was opened before `at`; strings and characters are passed over."""
    depth = 1
    while depth:
        char = source[at]
        if char == '"' or (char == "'" and source[at + 1 : at + 3].find("'") >= 0):
            at += 1
            while source[at] != char:
                at += 2 if source[at] == "\\" else 1
        elif source.startswith("//", at):
            at = source.index("\n", at)
        elif char in "({[":
            depth += 1
        elif char in ")}]":
            depth -= 1
        at += 1
    return at - 1
