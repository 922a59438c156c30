"""What the scripts beside this one write: a row for each flag that an engine's parser takes."""

import ast
import json

# One line of a table. A flag that takes no value has `values` 0, one that may take one `?`, a list `+`; `types` are those of
# the parser, `choices` what it takes alone.
COLUMNS = "flag aliases values negated type default choices group env".split()


def row(flag, aliases=(), values="1", negated=(), type="str", default="", choices=(), group="", env=""):
    return {
        "flag": flag,
        "aliases": ",".join(aliases),
        "values": str(values),
        "negated": ",".join(negated),
        "type": type,
        "default": plain(default),
        "choices": ",".join(sorted(str(choice) for choice in flat(choices))),
        "group": group,
        "env": env,
    }


def flat(choices):
    """Choices of which some are aliases of literals, one by one."""
    for choice in choices:
        yield from flat(choice) if isinstance(choice, (list, tuple)) else [choice]


def plain(value):
    """A default as it would be written behind its flag; empty where there is none."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if "\t" not in text and "\n" not in text else ""


def name_of(node):
    """The last name of what is called or named; empty of anything else."""
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class Constants:
    """Names that modules give values to, by the name alone."""

    def __init__(self, modules):
        self.nodes = {}
        for module in modules:
            for node in module.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                if value is not None:
                    self.nodes.update({target.id: value for target in targets if isinstance(target, ast.Name)})

    def value(self, node):
        """What a literal, a name or a sum of such comes to; None where that takes running the module."""
        if isinstance(node, ast.Name):
            return self.value(self.nodes[node.id]) if node.id in self.nodes else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self.value(node.left), self.value(node.right)]
            return None if None in parts else parts[0] + parts[1]
        if isinstance(node, ast.Subscript) and name_of(node.value) == "Literal":
            return [self.value(part) for part in parts_of(node.slice)]
        if isinstance(node, ast.Call) and name_of(node) in ("list", "get_args", "set", "tuple") and node.args:
            return self.value(node.args[0])
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = [self.value(part) for part in node.elts]
            return None if None in parts else parts
        try:
            return ast.literal_eval(node)
        except ValueError:
            return None


def parts_of(node):
    return node.elts if isinstance(node, ast.Tuple) else [node]


def keywords_of(call):
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
