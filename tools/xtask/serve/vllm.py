"""The flags of `vllm serve`, read from the sources in its wheel without importing them.

Its parser makes most flags of the fields of dataclasses (`get_kwargs` in `engine/arg_utils.py`); the same is done here of their
annotations.
"""

import ast

from rows import Constants, keywords_of, name_of, parts_of, row

PATHS = ("vllm/config/", "vllm/config.py", "engine/arg_utils.py", "cli_args.py", "argparse_utils.py")
HUMAN = {"max_num_batched_tokens", "max_num_scheduled_tokens", "kv_cache_memory_bytes", "max_num_queued_tokens"}
HUMAN |= {"safetensors_prefetch_block_size"}


class Fields:
    """The fields of the dataclasses, with those that they inherit."""

    def __init__(self, modules):
        self.constants = Constants(modules)
        self.takes_auto = any("human_readable_int_or_auto" in ast.dump(module) for module in modules)
        self.classes = {}
        for module in modules:
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)

    def of(self, name):
        node = self.classes.get(name)
        if node is None:
            return {}
        fields = {}
        for base in node.bases:
            fields.update(self.of(name_of(base)))
        for part in node.body:
            is_field = isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.dump(part.annotation)
            if is_field and isinstance(part.target, ast.Name):
                fields[part.target.id] = part
        return fields

    def kinds(self, node):
        """The types in an annotation: names, and lists of the choices of literals."""
        if isinstance(node, ast.Constant):
            return [self.kinds(ast.parse(node.value, mode="eval").body)[0]] if isinstance(node.value, str) else ["None"]
        if isinstance(node, ast.BinOp):
            return self.kinds(node.left) + self.kinds(node.right)
        if isinstance(node, ast.Subscript):
            name = name_of(node.value)
            if name in ("Annotated", "SkipValidation", "InitVar"):
                return self.kinds(parts_of(node.slice)[0])
            if name in ("Optional", "Union"):
                rest = [kind for part in parts_of(node.slice) for kind in self.kinds(part)]
                return rest + (["None"] if name == "Optional" else [])
            # What is in a list of whole numbers is read as one.
            if name in ("list", "tuple", "set") and name_of(parts_of(node.slice)[0]) == "int":
                return [name, "of int"]
            return [self.constants.value(node)] if name == "Literal" else [name]
        name = name_of(node)
        alias = self.constants.nodes.get(name)
        if isinstance(alias, (ast.Subscript, ast.BinOp)):
            return self.kinds(alias)
        return [name]

    def is_json(self, kind):
        node = self.classes.get(kind)
        return node is not None and not any("Enum" in name_of(base) for base in node.bases)

    def default(self, value):
        if isinstance(value, ast.Call):
            return self.constants.value(keywords_of(value).get("default", ast.Constant(None)))
        return self.constants.value(value) if value is not None else None

    def arguments(self, field, name):
        """What `get_kwargs` makes of a field."""
        kinds = self.kinds(field.annotation)
        literal = next((kind for kind in kinds if isinstance(kind, list)), None)
        arguments = {"default": self.default(field.value)}
        named = [kind for kind in kinds if isinstance(kind, str)]
        if any(self.is_json(kind) for kind in named):
            arguments["type"] = "json"
        elif sorted(named) == ["None", "bool", "str"]:
            arguments["values"] = "?"
        elif "bool" in named:
            arguments |= {"values": "0", "type": "bool", "negated": True}
        elif literal is not None:
            arguments["type"] = "int" if isinstance(literal[0], int) else "str"
            # Beside `str` they are hints.
            arguments["choices"] = [] if "str" in named else literal
        elif {"tuple", "list", "set"} & set(named):
            arguments["values"] = "+"
            if "of int" in named:
                arguments["type"] = "int"
        elif "int" in named:
            arguments["type"] = "human_int" if name in HUMAN else "int"
            if name == "max_model_len":
                arguments["type"] = "human_int_or_auto" if self.takes_auto else "human_int"
        elif "float" in named:
            arguments["type"] = "float"
        elif {"dict", "Dict"} & set(named):
            arguments["type"] = "str" if "str" in named else "json"
        return arguments


# Classes whose field a name of keyword arguments stands for, in the order of the source, are found by running it: `x = get_kwargs(C)`.
class Parser(ast.NodeVisitor):
    def __init__(self, fields):
        self.fields, self.rows = fields, []
        # Newer versions pair `--enable-x` with `--disable-x`.
        self.pairs = "EnableDisableAction" in fields.classes
        self.classes, self.groups, self.frontend = {}, {}, None
        self.own = {}

    def visit_Assign(self, node):
        target = node.targets[0]
        if isinstance(target, ast.Name):
            value = node.value
            field = None
            if isinstance(value, ast.Subscript):
                value, field = value.value, self.fields.constants.value(value.slice)
            if isinstance(value, ast.Call) and name_of(value) == "get_kwargs":
                config = name_of(value.args[0])
                self.classes[target.id] = config
                if field:
                    self.own[target.id] = (config, field)
            elif isinstance(value, ast.Call) and name_of(value) == "add_argument_group":
                self.groups[target.id] = self.fields.constants.value(keywords_of(value)["title"])
            elif field and name_of(value) in self.classes:
                self.own[target.id] = (self.classes[name_of(value)], field)
        self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        if name_of(node) != "add_argument":
            return
        names = [name.value for name in node.args if isinstance(name, ast.Constant)]
        if not names or not names[0].startswith("-"):
            return
        group = self.groups.get(node.func.value.id, "") if isinstance(node.func.value, ast.Name) else ""
        arguments = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                arguments |= self.spread(keyword.value)
        arguments |= self.stated(keywords_of(node))
        self.add(names, group, arguments)

    def spread(self, node):
        """`**kwargs["field"]`, or `**{**kwargs["field"], "default": None}`."""
        if isinstance(node, ast.Dict):
            found = {}
            for key, value in zip(node.keys, node.values):
                if key is None:
                    found |= self.spread(value)
                elif key.value == "default":
                    found["default"] = self.fields.constants.value(value)
            return found
        if isinstance(node, ast.Name) and node.id in self.own:
            config, name = self.own[node.id]
        elif isinstance(node, ast.Subscript) and name_of(node.value) in self.classes:
            config, name = self.classes[name_of(node.value)], self.fields.constants.value(node.slice)
        else:
            return {}
        field = self.fields.of(config).get(name)
        return self.fields.arguments(field, name) if field is not None else {}

    def stated(self, keywords):
        found = {}
        value = self.fields.constants.value
        action = keywords.get("action")
        if action is not None:
            said = action.value if isinstance(action, ast.Constant) else name_of(action)
            if said == "BooleanOptionalAction":
                found |= {"values": "0", "type": "bool", "negated": True}
            elif said in ("store_true", "store_false"):
                found |= {"values": "0", "type": "bool"}
        if "type" in keywords:
            found["type"] = {"int": "int", "float": "float"}.get(name_of(keywords["type"]), "str")
        if "choices" in keywords and isinstance(value(keywords["choices"]), list):
            found["choices"] = value(keywords["choices"])
        if "default" in keywords:
            found["default"] = value(keywords["default"])
        if "nargs" in keywords:
            found["values"] = value(keywords["nargs"]) or "1"
        return found

    def add(self, names, group, arguments):
        longest = [name for name in names if name.startswith("--")]
        first = (longest or names)[0]
        negated = []
        if arguments.pop("negated", False):
            negated = ["--no-" + name[2:] for name in longest]
            for one, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                negated += [other + name.removeprefix(one) for name in longest if self.pairs and name.startswith(one)]
        self.rows.append(row(first, [name for name in names if name != first], negated=negated, group=group, **arguments))

    def of_frontend(self, config, group):
        """Every field of a class is a flag."""
        json_fields = {"default_chat_template_kwargs", "reasoning_effort_map"}
        once = {"allowed_origins", "allowed_methods", "allowed_headers", "middleware", "disable_access_log_for_endpoints"}
        for name, field in self.fields.of(config).items():
            arguments = self.fields.arguments(field, name)
            if name in json_fields or name in once:
                arguments = {"type": "json" if name in json_fields else "str", "default": None}
            self.add(["--" + name.replace("_", "-")], group, arguments)


def rows(modules):
    """The rows of the parser that the modules, parsed and by their paths, make."""
    fields = Fields(modules.values())
    parser = Parser(fields)
    for path, module in modules.items():
        if path.endswith("engine/arg_utils.py"):
            for node in ast.walk(module):
                if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                    for part in node.body:
                        parser.visit(part)
    for path, module in modules.items():
        if path.endswith("cli_args.py"):
            parser.of_frontend("FrontendArgs", "Frontend")
            for node in module.body:
                if isinstance(node, ast.FunctionDef) and node.name == "make_arg_parser":
                    parser.visit(node)
    # `-O` is rewritten before the parser sees it.
    unique = {}
    for found in parser.rows:
        unique.setdefault(found["flag"], found)
    return list(unique.values())
