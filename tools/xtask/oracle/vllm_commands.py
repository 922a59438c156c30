"""What `vllm serve` makes of a command, without a GPU: one line of JSON per question, which is a line of JSON.

Usage: vllm_commands.py FOLDER_OF_CONFIGS. A question is {"model": a config there, "words": those behind the model, in which
`config:NAME` stands for the folder of another config, "env": variables, "devices": GPUs of the machine, "bytes": for caches of each
rank, where the command does not state them}. An answer is one of
  {"parser": what argparse says},
  {"refused": what its configuration, or the planner of its caches, says},
  {"values": [sequences, tokens of a step] at most, "plan": [blocks, groups, block size, tokens, longest sequence]}, or in place of the plan
  {"values": ..., "needed": GiB of one sequence, "longest": that these bytes hold, 0 where it says none}
  {"values": ..., "unplanned": why no plan could be made, which may be this machine's lack of a GPU}.

Each question is answered in a process of its own, so that none changes what the next one finds. What a real start does to sockets
and processes is left out; all that it looks at before a worker starts is asked.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
import vllm_planner as planner
from configs import CLASSES, config_of, write

# Set for the planner's own questions alone.
del os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"]


GPUS = [1]


def visible(_):
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return GPUS[0] if listed is None else min(GPUS[0], len([name for name in listed.split(",") if name.strip()]))


# What is imported from here on finds this platform.
planner.AbsentDevice.device_count = classmethod(visible)
planner.without_a_device()

import torch
import vllm.entrypoints.cli.serve as serve
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.common.cli_args import propagate_flash_late_interaction, validate_api_server_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

LONGEST = 160
HOME = pathlib.Path(tempfile.mkdtemp())
OTHER = re.compile(r"config:([\w.-]+)")


class Refused(Exception):
    """What argparse says before it ends."""


class Started(Exception):
    """A start came as far as its workers."""

    def __init__(self, config=None):
        self.config = config


def refuse(_, message):
    raise Refused(message)


def start(config):
    raise Started(config)


def engine_of(args, **how):
    validate_api_server_args(args)
    engine = AsyncEngineArgs.from_cli_args(args)
    propagate_flash_late_interaction(args, engine)
    config = engine.create_engine_config(usage_context=serve.UsageContext.OPENAI_API_SERVER, **how)
    serve.Executor.get_class(config)
    raise Started(config)


def without_servers():
    """In place of what opens sockets and starts processes stands that it was reached."""
    import vllm.v1.engine.utils as engines

    def servers(args, **_):
        validate_api_server_args(args)
        return "", None

    def reached(*_, vllm_config=None, **__):
        raise Started(vllm_config)

    def supervised(args):
        raise Started()

    serve.run_server = engine_of
    serve.uvloop = argparse.Namespace(run=lambda ran: ran)
    serve.setup_server = servers
    serve.setup_multiprocess_prometheus = lambda: None
    serve.create_server_socket = lambda *_, **__: None
    serve.CoreEngineProcManager = reached
    serve.MultiprocExecutor = lambda config, **_: start(config)
    serve.run_dp_supervisor = supervised
    engines.bind_engine_zmq_listeners = lambda config, *_: start(config)
    serve.signal = argparse.Namespace(signal=lambda *_: None, SIGTERM=None, SIGINT=None)


def parser_of():
    argparse.ArgumentParser.error = refuse
    parser = FlexibleArgumentParser()
    command = serve.ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    return parser, command


def folder(model):
    """Where the config of a model lies."""
    place = HOME / model.replace("/", "_")
    if not place.exists():
        place.mkdir()
        config = config_of(sys.argv[1], model)
        if named := CLASSES.get(config.get("model_type")):
            config.setdefault("architectures", [named])
        config.pop("auto_map", None)
        write(config, place)
    return str(place)


def configured(parser, command, question):
    """The configuration that a command starts with; of a supervisor of several commands none."""
    words = [OTHER.sub(lambda found: folder(found[1]), word) for word in question["words"]]
    args = parser.parse_args(["serve", folder(question["model"]), *words])
    try:
        serve.ServeSubcommand.validate(command, args)
        command.cmd(args)
    except Started as started:
        return started.config
    raise AssertionError("it ended")


# What differs between any two starts, and no plan depends on.
BESIDE = re.compile(r"port|_ip$|address|master|uuid|instance_id|hf_config|hf_text_config|seed|served|token(izer|s_ids)|log|_id$")


def fields(config):
    return {name: value for name, value in vars(config).items() if not BESIDE.search(name)} if config is not None else None


def fingerprint(question, config):
    parts = ("cache", "scheduler", "model", "parallel", "speculative", "attention", "mamba", "lora", "kv_transfer", "quant")
    shown = [fields(getattr(config, f"{part}_config", None)) for part in parts]
    return re.sub(r"0x[0-9a-f]+", "", f"{question['model']} {question.get('bytes')} {os.environ.get('VLLM_PP_LAYER_PARTITION')} {shown}")


def values(config):
    return [config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens]


def planned(parser, command, question, config):
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, resolve_kv_cache_block_sizes

    stages = config.parallel_config.pipeline_parallel_size
    again = lambda: configured(parser, command, question)
    specs = [planner.specs_of(config, 0)] + [planner.specs_of(again(), stage) for stage in range(1, stages)]
    available = config.cache_config.kv_cache_memory_bytes or question.get("bytes")
    with set_current_vllm_config(config):
        plan, concurrency = planner.planned_by_0_33(config, specs, available)
        resolve_kv_cache_block_sizes(generate_scheduler_kv_cache_config([plan]), config)
    block, length = config.cache_config.block_size, config.model_config.max_model_len
    return [plan.num_blocks, len(plan.kv_cache_groups), block, int(concurrency * length), length]


def said(error):
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = re.sub(rf"{HOME}/([\w.-]+)", r"config:\1", text)
    # The rest is what was given.
    return re.sub(r"/tmp/\w+", "FOLDER", text).split(" [type=")[0][:LONGEST]


def answer(parser, command, question, known):
    """The answer, and the plan that others share."""
    os.environ.update(question.get("env", {}))
    GPUS[0] = question.get("devices", 1)
    try:
        config = configured(parser, command, question)
    except Refused as error:
        return {"parser": " ".join(str(error).split())[:LONGEST]}, None
    except SystemExit as end:
        return {"ends": end.code}, None
    except BaseException as error:
        return {"refused": said(error)}, None
    if config is None:
        return {"values": None}, None
    found = {"values": values(config)}
    mark = fingerprint(question, config)
    if mark in known:
        return found | known[mark], None
    try:
        plan = {"plan": planned(parser, command, question, config)}
    except BaseException as error:
        text = " ".join(str(error).split())
        needed, longest = re.search(r"\(([\d.]+) GiB KV cache is needed", text), re.search(r"maximum model length is (\d+)", text)
        plan = {"unplanned": said(error)}
        if needed:
            plan = {"needed": float(needed[1]), "longest": int(longest[1]) if longest else 0}
    return found | plan, (mark, plan)


def in_a_process(parser, command, question, known):
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(written, "w") as out:
                json.dump(answer(parser, command, question, known), out)
        finally:
            os._exit(0)
    os.close(written)
    with os.fdopen(read) as back:
        text = back.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ({"unplanned": "the process ended"}, None)


def main():
    without_servers()
    parser, command = parser_of()
    questions = [json.loads(line) for line in sys.stdin]
    # What the first question of a model imports, all others share.
    for model in dict.fromkeys(question["model"] for question in questions):
        answer(parser, command, {"model": model, "words": [], "bytes": 20 << 30}, {})
        torch.set_default_dtype(torch.float32)
    known = {}
    for question in questions:
        found, plan = in_a_process(parser, command, question, known)
        if plan:
            known[plan[0]] = plan[1]
        print(json.dumps(found), file=planner.ANSWERS, flush=True)
    shutil.rmtree(HOME)


if __name__ == "__main__":
    main()
