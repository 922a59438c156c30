"""Models of transformers through planned memory: their own cache's tokens, in the plan's bytes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import cacheplan
from conftest import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cacheplan.transformers import PlannedCache  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
FIXTURES = ROOT / "tests/fixtures/models"
#: They keep every token's index row, where a plan has a key for several tokens and the rows of the next.
KEPT_OTHERWISE = {"glm5_next_text": "index_cache_1", "qwen4_exp_text": "index_cache_1"}
MODELS = sorted(
    path for path in FIXTURES.iterdir() if (path / "model.safetensors").exists() and path.name not in KEPT_OTHERWISE
)
TOKENS, SEQUENCES, NEW = 48, 3, 8
# Other threads cost models of this size more than they do.
torch.set_num_threads(1)


@lru_cache(maxsize=2)
def load(folder: Path, dtype: str = "float32") -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def prompts(lengths: tuple[int, ...]) -> tuple[Any, Any]:
    """Tokens and their mask, padded on the left."""
    drawn = torch.Generator().manual_seed(7)
    ids = torch.randint(3, 60, (len(lengths), max(lengths)), generator=drawn)
    mask = torch.stack([torch.arange(max(lengths)) >= max(lengths) - length for length in lengths]).long()
    return ids, mask


def generate(model: Any, ids: Any, mask: Any, cache: PlannedCache | None = None, **options: Any) -> Any:
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    if cache is not None:
        options["cache_params" if model.config.model_type in ("mamba", "mamba2") else "past_key_values"] = cache
    return model.generate(ids, attention_mask=mask, **options)


def planned(source: Any, **keys: Any) -> cacheplan.Plan:
    keys = {"max_seq_len": TOKENS, "max_batch_size": SEQUENCES, "tokens_per_block": TOKENS, **keys}
    return cacheplan.plan(source, **keys)


def tensors(cache: PlannedCache) -> list[Any]:
    """Every tensor that the layers hold."""
    held = []
    for layer in cache.layers:
        parts = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for states in ("conv_states", "recurrent_states"):
            parts += getattr(layer, states, {}).values()
        held += [part for part in parts if part is not None]
    return held


def test_every_model_with_golden_outputs_has_weights() -> None:
    golden = (ROOT / "tests/fixtures/models").glob("*/golden.safetensors")
    folders = (path.parent for path in golden)
    assert sorted(path for path in folders if path.name not in KEPT_OTHERWISE) == MODELS


@pytest.mark.parametrize("static", [False, True], ids=["growing", "static"])
@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_a_model_draws_the_tokens_of_its_own_cache_in_planned_bytes(folder: Path, static: bool) -> None:
    model, plan = load(folder), planned(folder)
    cache = PlannedCache(plan, static=static)
    assert cache.planned_bytes == cache.actual_bytes == {pool.id: pool.bytes for pool in plan.pools}
    # The second batch lies over what the first has left.
    for lengths in ((21, 21, 21), (21, 12, 17)):
        ids, mask = prompts(lengths)
        cache.reset()
        ours = generate(model, ids, mask, cache)
        if folder.name == "minimax" and min(lengths) < max(lengths):
            # Its own cache counts no padding: the rows of a ragged batch are those of the sequences alone.
            for row, length in enumerate(lengths):
                alone = generate(model, ids[row : row + 1, -length:], mask[row : row + 1, -length:])
                assert torch.equal(ours[row, -NEW:], alone[0, -NEW:])
        else:
            assert torch.equal(ours, generate(model, ids, mask))
    held = tensors(cache)
    assert held
    starts = {memory.untyped_storage().data_ptr() for memory in cache._pools.values()}
    assert {part.untyped_storage().data_ptr() for part in held} <= starts
    assert cache.planned_bytes == cache.actual_bytes


@pytest.mark.parametrize(("name", "cache"), KEPT_OTHERWISE.items())
def test_caches_that_transformers_keeps_otherwise_are_refused(name: str, cache: str) -> None:
    with pytest.raises(cacheplan.PlanError, match=f"`{cache}` is a core.index_key"):
        PlannedCache(planned(FIXTURES / name))


@pytest.mark.parametrize("name", ["bamba", "kimi_linear", "qwen3_next"])
def test_a_plan_of_a_models_own_config_has_its_dtypes(name: str) -> None:
    model = load(ROOT / "tests/fixtures/models" / name, "bfloat16")
    ids, mask = prompts((21, 21))
    assert torch.equal(generate(model, ids, mask, PlannedCache(planned(model.config))), generate(model, ids, mask))


def test_the_padding_in_front_of_a_pool_stays_zero() -> None:
    folder = ROOT / "tests/fixtures/models/falcon_h1"
    plan = planned(folder)
    cache = PlannedCache(plan)
    generate(load(folder), *prompts((21, 21, 21)), cache)
    for pool in plan.pools:
        reserved, rest = cache._pools[pool.id].split([pool.reserved * pool.unit_bytes, pool.bytes - pool.unit_bytes])
        assert pool.reserved == 1 and not reserved.any() and rest.any()


def test_heads_may_lie_behind_tokens() -> None:
    folder = ROOT / "tests/fixtures/models/gemma3"
    ids, mask = prompts((21, 12))
    cache = PlannedCache(planned(folder, layout="NHD"))
    assert torch.equal(generate(load(folder), ids, mask, cache), generate(load(folder), ids, mask))


@pytest.mark.parametrize("name", ["gemma3", "zamba2"])
def test_beams_move_in_place(name: str) -> None:
    folder = ROOT / "tests/fixtures/models" / name
    ids, mask = prompts((21,))
    cache = PlannedCache(planned(folder))
    ours = generate(load(folder), ids, mask, cache, num_beams=SEQUENCES)
    assert torch.equal(ours, generate(load(folder), ids, mask, num_beams=SEQUENCES))
    assert cache.planned_bytes == cache.actual_bytes


def test_attention_goes_back_also_behind_a_window() -> None:
    folder = ROOT / "tests/fixtures/models/gemma3"
    model, (ids, _) = load(folder), prompts((21,))
    cache = PlannedCache(planned(folder))
    with torch.no_grad():
        first = model(ids, past_key_values=cache).logits[:, 15:]
        cache.crop(-6)
        again = model(ids[:, 15:], past_key_values=cache).logits
    assert cache.get_seq_length() == 21
    assert torch.allclose(first, again, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma3", "falcon_h1"])
def test_a_fixed_shape_is_compiled_once(name: str) -> None:
    folder = ROOT / "tests/fixtures/models" / name
    model, (ids, _) = load(folder), prompts((21, 21))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    fixed, own = PlannedCache(planned(folder), static=True), transformers.DynamicCache(config=model.config)
    graphs = []
    with torch.no_grad():
        model(ids, past_key_values=fixed)
        model(ids, past_key_values=own)
        for position in range(6):
            token = ids[:, position : position + 1]
            ours, theirs = compiled(token, past_key_values=fixed), model(token, past_key_values=own)
            assert torch.allclose(ours.logits, theirs.logits, atol=1e-4)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # Not anew for each length.
    assert fixed.is_compileable and graphs[1] == graphs[-1]


def test_what_was_not_planned_is_refused() -> None:
    folder = ROOT / "tests/fixtures/models/llama"
    model = load(folder)
    with pytest.raises(cacheplan.PlanError) as blocks:
        PlannedCache(planned(folder, tokens_per_block=16))
    assert (blocks.value.key, blocks.value.hint) == ("tokens_per_block", f"tokens_per_block={TOKENS}")
    with pytest.raises(cacheplan.PlanError) as quantized:
        PlannedCache(planned(folder, kv_dtype="fp8_e4m3"))
    assert quantized.value.found == "f8_e4m3"
    ids, mask = prompts((21,) * (SEQUENCES + 1))
    with pytest.raises(cacheplan.BookError) as batch:
        generate(model, ids, mask, PlannedCache(planned(folder)))
    assert batch.value.key == "max_batch_size"
    with pytest.raises(cacheplan.BookError) as long:
        generate(model, ids[:1], mask[:1], PlannedCache(planned(folder)), max_new_tokens=TOKENS)
    assert (long.value.key, long.value.found) == ("max_seq_len", str(TOKENS + 1))
    with pytest.raises(cacheplan.BookError) as dtype:
        generate(model, ids[:1], mask[:1], PlannedCache(planned(folder, kv_dtype="bf16")))
    assert "torch.float32" in str(dtype.value) and "kv_dtype" in str(dtype.value.hint)
    with pytest.raises(cacheplan.BookError):
        generate(model, ids[:1], mask[:1], PlannedCache(planned(ROOT / "tests/fixtures/models/qwen3")))
