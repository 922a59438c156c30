"""Reads exports for Ray, a line of JSON each with the file in it, and prints for each `true`, or why Ray refuses it.

A file is held to Ray's schema of a deployment, its arguments to that of its builder, each of its models to that of a model, and
what is handed on to the engine to the arguments that vLLM has.
"""

import dataclasses
import json
import sys

from ray.llm._internal.serve.core.ingress.builder import LLMServingArgs
from ray.serve.schema import ServeDeploySchema
from vllm.engine.arg_utils import AsyncEngineArgs

ARGUMENTS = {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def answer(file):
    [application] = ServeDeploySchema.model_validate(json.loads(file)).applications
    if application.import_path != "ray.serve.llm:build_openai_app":
        return f"built by {application.import_path}"
    for model in LLMServingArgs.model_validate(application.args).llm_configs:
        if unknown := set(model.engine_kwargs) - ARGUMENTS:
            return f"vLLM has no {sorted(unknown)}"
        AsyncEngineArgs(**model.engine_kwargs)
    return True


for line in sys.stdin:
    try:
        said = answer(json.loads(line)["file"])
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said))
