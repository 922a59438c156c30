"""What all tests share: the zoo of real configs, a small hybrid, the examples."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cacheplan

ROOT = Path(__file__).resolve().parents[2]
ZOO = sorted((ROOT / "tests/fixtures/configs").glob("*.json"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


def put(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> ModuleType:
    """A stand-in for a module of an engine."""
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)
    return module


HYBRID = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M*M-",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


@pytest.fixture
def hybrid() -> dict[str, object]:
    return dict(HYBRID)


@pytest.fixture
def llama() -> cacheplan.Plan:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    return cacheplan.plan(config, max_seq_len=256, max_batch_size=8)
