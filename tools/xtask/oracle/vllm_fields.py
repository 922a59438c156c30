"""What pydantic takes for each field of vLLM's configurations: a line for each class and field, with its type and bounds.

A type is `int`, `float`, `bool`, `str`, `of:` and words, `list:` and what each element is, `dict`, a class of these lines, or `any`
where a validator of its own comes first or it is none of these; with `?` where it may be none, and `~` where it may be so but for the parser; a bound `required` is of a field that must be stated. The class `-` has the flags of JSON, the class `Frontend`
those of the server itself.
"""

import dataclasses
import sys
import types
import typing

import vllm.config as config
import vllm.config.quantization as quantization
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.common.cli_args import FrontendArgs

SCALARS = {int: "int", float: "float", bool: "bool", str: "str"}


def of(hint, found):
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return "any" if any("SkipValidation" in repr(each) for each in args[1:]) else of(args[0], found)
    if origin in (typing.Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        kind = of(rest[0], found) if len(rest) == 1 else "any"
        return kind + "?" * (len(rest) < len(args))
    if origin is typing.Literal:
        return "of:" + ",".join(str(arg) for arg in args) if all(isinstance(arg, str) for arg in args) else "any"
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is list:
        return "list:" + of(args[0], found)
    if origin is dict or hint is dict:
        return "dict"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        found.append(hint)
        return hint.__name__
    return "any"


def validated(cls, skips_none):
    """Fields with a validator in front of pydantic's own, by whether it only lets none pass."""
    found = set()
    if not hasattr(cls, "__pydantic_decorators__"):
        return found
    for name, made in cls.__pydantic_decorators__.field_validators.items():
        if made.info.mode != "after" and name.startswith("_skip_none") == skips_none:
            found.update(made.info.fields)
    return found


def rows(cls, found):
    hints = typing.get_type_hints(cls, vars(config) | vars(sys.modules[cls.__module__]), include_extras=True)
    own, may_be_none = validated(cls, False), validated(cls, True)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        info = getattr(cls, "__pydantic_fields__", {}).get(field.name)
        bounds = ["required"] if info and info.is_required() else []
        for each in info.metadata if info else ():
            bounds += [f"{sign}{getattr(each, sign)}" for sign in ("ge", "gt", "le", "lt") if getattr(each, sign, None) is not None]
        kind = of(hints[field.name], found)
        # Of a configuration the fields are known whatever stands in front.
        if field.name in own and not dataclasses.is_dataclass(hints[field.name]):
            kind = "any"
        if field.name in may_be_none:
            kind = kind.rstrip("?") + ("?" if kind.endswith("?") else "~")
        yield "Frontend" if cls is FrontendArgs else cls.__name__, field.name, kind, " ".join(bounds)


def main():
    lines, seen, waiting = [], set(), [FrontendArgs]
    hints = typing.get_type_hints(EngineArgs, vars(config) | vars(quantization))
    for field in dataclasses.fields(EngineArgs):
        before = len(waiting)
        kind = of(hints[field.name], waiting)
        if len(waiting) > before:
            lines.append(("-", "--" + field.name.replace("_", "-"), kind, ""))
    waiting += [getattr(config, name) for name in dir(config) if dataclasses.is_dataclass(getattr(config, name))]
    while waiting:
        cls = waiting.pop(0)
        if cls in seen or not hasattr(cls, "__pydantic_fields__") and cls is not FrontendArgs:
            continue
        seen.add(cls)
        lines += rows(cls, waiting)
    for line in sorted(set(lines)):
        print("\t".join(line))


if __name__ == "__main__":
    main()
