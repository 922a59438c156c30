"""The configs that engines are asked about."""

import json
import pathlib

# How a model is named that is the defaults of one of transformers' config classes.
DEFAULTS = "transformers:"
# What transformers calls it that a class generates; those of a whole model first.
TASKS = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM")
# Classes of types that transformers lacks, where a file in the fixtures does not name its own.
CLASSES = {
    "bailing_moe": "BailingMoeV2ForCausalLM",
    "bailing_moe_linear": "BailingMoeLinearV2ForCausalLM",
    "chatglm": "ChatGLMForConditionalGeneration",
    "dory": "DoryForCausalLM",
    "flint": "FlintForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "nanbeige": "NanbeigeForCausalLM",
    "step3_vl": "Step3VLForConditionalGeneration",
}

# The code that some repositories bring beside their weights, for their configs: such a class of transformers as it is, of which
# `PretrainedConfig` stores all keys as they are. Without it, a class that transformers has for the type reads other sizes, or none reads it.
CODE = """import transformers


class Config(transformers.{base}):
    model_type = "{kind}"
"""


def table(folder):
    """Defaults of transformers' config classes, by name, from the table beside the folder of the zoo."""
    rows = (pathlib.Path(folder) / "../transformers/parameters.tsv").read_text().splitlines()
    cells = (row.split("\t") for row in rows)
    return {name: config for name, _, config in cells if config != "-"}


def config_of(folder, model):
    """The config of a model of the zoo, of a folder beside it (`../published/NAME`), or of a class of transformers."""
    if model.startswith(DEFAULTS):
        return json.loads(table(folder)[model.removeprefix(DEFAULTS)])
    return json.loads((pathlib.Path(folder) / f"{model}.json").read_text())


def whole(config, read=()):
    """A config as an engine needs it: with the class that generates where the file does not name it, and of a type that can be
    read where nothing reads it, which stores the keys as they are; what the engine or code beside the weights reads is `read`."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    mappings = (getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in TASKS)
    found = [name for names in (CLASSES, *mappings) if (name := names.get(kind))]
    if found:
        config.setdefault("architectures", [found[0]] if isinstance(found[0], str) else list(found[0]))
    if kind and kind not in CONFIG_MAPPING and kind not in read:
        AutoConfig.register(kind, type("Stored", (PretrainedConfig,), {"model_type": kind}))
    return config


def write(config, folder, code=None):
    """The files of a model: its config, and the code that reads it, if any."""
    folder = pathlib.Path(folder)
    if code:
        config["auto_map"] = {"AutoConfig": "configuration.Config"}
        (folder / "configuration.py").write_text(CODE.format(base=code, kind=config["model_type"]))
    (folder / "config.json").write_text(json.dumps(config))


def change(config, changes):
    """Keys by their paths get other values."""
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = config
        for section in sections:
            place = place[section]
        place[last] = value


def beside_the_zoo(folder):
    """Models of the folders beside the zoo."""
    for beside in ("published", "reconstructed"):
        for path in sorted((folder / ".." / beside).glob("*.json")):
            yield f"../{beside}/{path.stem}"


def classes(folder):
    """The defaults of transformers' config classes."""
    return [DEFAULTS + name for name in table(folder)]
