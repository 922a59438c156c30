"""The flags of SGLang's server, read from the sources in its wheel without importing them.

Newer versions make them of annotated fields (`arg_groups/arg_utils.py`), older ones of calls of `add_argument`.
"""

import ast
import re

from rows import Constants, keywords_of, name_of, parts_of, row

PATHS = (
    "srt/server_args.py",
    "srt/arg_groups/",
    "reasoning_parser",
    "function_call_parser.py",
    "function_call/parser_names.py",
    # What is listed there is chosen from.
    "srt/utils/common.py",
    "kv_canary/consts.py",
)
# What its own parsers of values read.
PARSERS = {"loads": "json", "json_list_type": "json", "human_readable_int": "si_int"}


def rows(modules):
    constants = Constants(modules.values())
    switches = {name for module in modules.values() for name in switch_actions(module)}
    found = []
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and (path.endswith("server_args.py") or "/fields/" in path):
                fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                found += filter(None, (of_field(part, constants, node.name) for part in fields))
            if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args" and path.endswith("server_args.py"):
                calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and name_of(part) == "add_argument"]
                choices = Choices(modules.values(), node, constants)
                found += [of_call(call, constants, switches, choices) for call in calls if call.args]
    unique = {}
    for one in found:
        unique.setdefault(one["flag"], one)
    return list(unique.values())


def of_field(field, constants, group):
    annotation = field.annotation
    if not (isinstance(annotation, ast.Subscript) and name_of(annotation.value) in ("A", "Annotated")):
        return None
    kind, *said = parts_of(annotation.slice)
    arg = next((part for part in said if isinstance(part, ast.Call) and name_of(part) == "Arg"), None)
    if arg is None and not any(isinstance(part, (ast.Constant, ast.JoinedStr, ast.BinOp)) for part in said):
        return None
    keywords = keywords_of(arg) if arg is not None else {}
    value = {name: constants.value(node) for name, node in keywords.items()}
    if value.get("no_cli"):
        return None
    name = value.get("cli_name") or "--" + field.target.id.replace("_", "-")
    kind, literal, values = inner(kind, constants), None, "1"
    if isinstance(kind, list):
        kind, literal = "int" if isinstance(kind[0], int) else "str", kind
    element = re.fullmatch(r"list\[(\w+)\]", kind)
    if element and "type_parser" not in keywords:
        kind, values = element[1], value.get("nargs") or "+"
    elif kind == "bool":
        values = "0"
    elif value.get("nargs"):
        values = value["nargs"]
    negated = []
    if name_of(keywords.get("action")) == "BooleanOptionalAction":
        kind, values, negated = "bool", "0", ["--no-" + known[2:] for known in [name, *(value.get("aliases") or [])]]
    elif "action" in keywords:
        told = keywords.get("action_kwargs")
        if isinstance(told, ast.Dict):
            value |= {key.value: constants.value(node) for key, node in zip(told.keys, told.values)}
        kind, values = "str", "0" if "True" in name_of(keywords["action"]) else value.get("nargs") or "1"
        said = constants.value(keywords["action"])
        values = "0" if said in ("store_true", "store_false") else values
    parser = name_of(keywords.get("type_parser", ast.Constant(None)))
    special = PARSERS.get(parser)
    return row(
        name,
        value.get("aliases") or [],
        negated=negated,
        values=values,
        type=special or (kind if kind in ("int", "float", "bool") and "type_parser" not in keywords else "str"),
        default=constants.value(field.value) if field.value is not None else None,
        choices=value.get("choices") or literal or [],
        group=group,
    )


def inner(node, constants):
    """The one type that an annotation is optional of."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp):
        kinds = [inner(part, constants) for part in (node.left, node.right)]
        return next((kind for kind in kinds if kind != "None"), "str")
    if isinstance(node, ast.Subscript):
        name = name_of(node.value)
        if name in ("Optional", "Union"):
            kinds = [inner(part, constants) for part in parts_of(node.slice)]
            rest = [kind for kind in kinds if kind != "None"]
            return rest[0] if len(rest) == 1 else "str"
        if name == "Literal":
            return constants.value(node)
        return f"list[{name_of(node.slice)}]" if name in ("List", "list") else "str"
    return "None" if isinstance(node, ast.Constant) else name_of(node)


def switch_actions(module):
    """Classes of actions that take no value unless they are told otherwise."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and any("Action" in name_of(base) for base in node.bases):
            for made in (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"):
                named = made.args.args[len(made.args.args) - len(made.args.defaults) :]
                defaults = {name.arg: value for name, value in zip(named, made.args.defaults)}
                calls = [keywords_of(part) for part in ast.walk(made) if isinstance(part, ast.Call)]
                said = [defaults.get("nargs"), *(keywords.get("nargs") for keywords in calls)]
                if any(isinstance(value, ast.Constant) and value.value == 0 for value in said):
                    yield node.name


class Choices:
    """What is listed while flags are added: words of a variable, of a function, or the keys of a class's dictionary."""

    def __init__(self, modules, adds, constants):
        self.constants, self.nodes, self.more, self.members, self.fields = constants, {}, {}, {}, {}
        for module in modules:
            for node in module.body:
                if isinstance(node, ast.FunctionDef):
                    self.nodes.update({node.name: last for last in node.body if isinstance(last, ast.Return)})
                elif isinstance(node, ast.ClassDef) and any("Enum" in name_of(base) for base in node.bases):
                    members = [target.id for part in node.body if isinstance(part, ast.Assign) for target in targets(part)]
                    self.members[node.name] = members
                elif isinstance(node, ast.ClassDef):
                    kept = [part for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign))]
                    self.nodes.update({target.id: part for part in kept for target in targets(part) if isinstance(part.value, ast.Dict)})
                    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value is not None]
                    self.fields.update({target.id: part.value for part in fields for target in targets(part)})
        for node in ast.walk(adds):
            if isinstance(node, ast.Assign):
                self.nodes.update({target.id: node for target in targets(node)})
            # A variable that adds a word, whatever it is told.
            if isinstance(node, ast.Call) and name_of(node) == "add" and isinstance(node.func.value, ast.Name):
                self.more.setdefault(node.func.value.id, []).extend(self.constants.value(word) for word in node.args)

    def declared(self, node):
        """The default of a field, where the parser takes it from there."""
        if not isinstance(node, ast.Call) or name_of(node) != "_declared_default":
            return None
        return self.constants.value(self.fields.get(self.constants.value(node.args[0]), ast.Constant(None)))

    def of(self, node):
        """The words; None where they take running the module."""
        known = self.constants.value(node)
        if isinstance(known, list):
            return known
        if isinstance(node, ast.Dict):
            return [self.constants.value(key) for key in node.keys]
        if isinstance(node, ast.BinOp):
            parts = [self.of(node.left), self.of(node.right)]
            return None if None in parts else parts[0] + parts[1]
        if isinstance(node, ast.Call) and name_of(node) == "keys":
            return self.of(node.func.value)
        # Names of an enumeration's members, in small letters.
        if isinstance(node, ast.ListComp) and name_of(node.elt) == "lower":
            return (words := self.of(node.generators[0].iter)) and [word.lower() for word in words]
        if isinstance(node, ast.Call) and name_of(node) in ("list", "set", "frozenset") and node.args:
            return self.of(node.args[0])
        name = name_of(node)
        if name in self.members:
            return self.members[name]
        if name in self.nodes:
            words = self.of(self.nodes[name].value)
            return words and words + self.more.get(name, [])
        return self.of(self.constants.nodes[name]) if name in self.constants.nodes else None


def targets(node):
    """The names that an assignment gives values to."""
    return [target for target in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(target, ast.Name)]


def of_call(call, constants, switches, choices):
    names = [name.value for name in call.args if isinstance(name, ast.Constant)]
    first = next(name for name in names if name.startswith("--"))
    keywords = keywords_of(call)
    value = {name: constants.value(node) for name, node in keywords.items()}
    action = keywords.get("action")
    flag = value.get("action") in ("store_true", "store_false") or "StoreTrue" in name_of(action) or name_of(action) in switches
    # A switch may be told to take a value.
    flag = flag and value.get("nargs", 0) == 0
    kind = name_of(keywords.get("type", ast.Constant(None)))
    special = PARSERS.get(kind)
    negated = ["--no-" + name[2:] for name in names if name_of(action) == "BooleanOptionalAction" and name.startswith("--")]
    flag = flag or bool(negated)
    return row(
        first,
        [name for name in names if name != first],
        negated=negated,
        values="0" if flag else value.get("nargs") or "1",
        type="bool" if flag else special or (kind if kind in ("int", "float") else "str"),
        default=choices.declared(keywords.get("default")),
        choices=choices.of(keywords["choices"]) or [] if "choices" in keywords else [],
        group="ServerArgs",
    )
