"""The index for routers: bytes of engines in, what each worker can go on from out."""

import gzip
import json
import threading

import pytest

import cacheplan
from conftest import ROOT

EVENTS = ROOT / "tests/fixtures/events/vllm-0.33.0.jsonl.gz"


def test_every_request_reuses_what_vllm_counted() -> None:
    limited = 0
    with gzip.open(EVENTS, "rt") as lines:
        for line in [line for line in lines if "states" in json.loads(line)["model"]][:3]:
            trace = json.loads(line)
            index = cacheplan.Index()
            for number, (tokens, _, reused, events) in enumerate(trace["steps"]):
                assert index.next_number(7) == (number or None)
                index.take(7, number, bytes.fromhex(events))
                if tokens is not None:
                    (answer,) = index.ask(tokens)
                    assert answer.tokens == reused
                    limited += answer.limited_by == "state"
    assert limited > 0


def test_hashes_ask_as_tokens_do() -> None:
    index = cacheplan.Index()
    index.take(1, 0, b"\x92\x00\x91\x96\xabBlockStored\x91\x07\xc0\x92\x01\x02\x02\xc0")
    expected = [cacheplan.Reuse(worker=1, rank=0, tokens=2, keys=2, limited_by=None, trust="at_most")]
    assert index.ask([1, 2, 3]) == expected
    assert index.ask_hashes([7], block=2, tokens=3) == expected
    assert index.sizes() == {(1, 0): (1, 0)}
    index.forget(1)
    assert index.ask([1, 2, 3]) == []


def test_tensorrt_llm_gives_dictionaries() -> None:
    tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in (5, 6)]
    block = {"type": "stored_block", "block_hash": -3, "tokens": tokens, "cache_level": 0, "priority": 35}
    event = {"event_id": 0, "data": {"type": "stored", "parent_hash": None, "blocks": [block]}, "window_size": 64}
    for events in (event, [event], json.dumps(event).encode()):
        index = cacheplan.Index()
        index.take_trtllm(2, events)
        assert [(reuse.tokens, reuse.trust) for reuse in index.ask([5, 6, 7])] == [(2, "at_most")]


def test_bytes_that_no_engine_sends_are_refused() -> None:
    index = cacheplan.Index(workers=1)
    with pytest.raises(cacheplan.EventError, match="not \\[time, events, rank\\]"):
        index.take(1, 0, b"\x05")
    with pytest.raises(cacheplan.EventError):
        index.take_trtllm(1, b"{")
    assert index.ask([1]) == []


def test_threads_share_an_index() -> None:
    index = cacheplan.Index()

    def publish(worker: int) -> None:
        for number in range(200):
            index.take(worker, number, b"\x92\x00\x91\x96\xabBlockStored\x91\x07\xc0\x92\x01\x02\x02\xc0")
            index.ask([1, 2, 3])

    threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reuse.tokens for reuse in index.ask([1, 2, 3])] == [2] * 4
