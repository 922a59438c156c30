"""Books: an engine's loop over them, arrays over their memory, and clear errors for what no engine may do."""

import gc
import random
import resource
import threading

import pytest

import cacheplan
import toy_engine


def requests(count: int, seed: int) -> list[toy_engine.Request]:
    draw = random.Random(seed)
    shared = [draw.randrange(1000) for _ in range(200)]
    made = []
    for _ in range(count):
        own = [draw.randrange(1000) for _ in range(draw.randrange(1, 60))]
        made.append(toy_engine.Request(shared[: draw.choice((0, 0, 64, 128, 200))] + own, draw.randrange(1, 40)))
    return made


@pytest.mark.parametrize("scarce", [False, True])
def test_a_toy_engine_serves_a_thousand_requests(hybrid: dict[str, object], scarce: bool) -> None:
    # Sequences are planned for a mean length, so that long ones together need more than there is.
    budget = {
        "max_seq_len": 512,
        "max_batch_size": 8,
        "workload": {
            "checkpoints_per_sequence": 2,
            **({"prompt": {"fixed": 60}, "output": {"fixed": 20}} if scarce else {}),
        },
    }
    plan = cacheplan.plan(hybrid, budget=budget)
    random.seed(7)
    served = requests(1000, 7)
    wanted = [len(request.tokens) + request.wanted for request in served]
    counts = toy_engine.serve(plan, served)
    assert [len(request.tokens) for request in served] == wanted
    assert counts["cached"] > 0
    assert (counts["preempted"] > 0) == scarce


def test_arrays_say_what_the_books_hold(llama: cacheplan.Plan) -> None:
    numpy = pytest.importorskip("numpy")
    with cacheplan.CacheBook(llama) as book:
        sequences = [book.admit(20), book.admit(40)]
        step = book.step([(sequences[0], 20), (sequences[1], 40)])
        assert numpy.asarray(step.cu_seqlens).tolist() == [0, 20, 60]
        assert numpy.asarray(step.kv_lens).tolist() == [20, 40]
        assert numpy.asarray(step.positions).tolist() == [*range(20), *range(40)]
        (pool,) = step.pools
        tables, mapping = numpy.asarray(pool.block_tables), numpy.asarray(pool.slot_mapping)
        assert tables.dtype == numpy.int32 and mapping.dtype == numpy.int64
        assert tables.shape == (2, 3) and tables[0, 2] == -1
        # A token lies in the block of its table, at its place in it.
        for row, (start, tokens) in enumerate(((0, 20), (20, 40))):
            for position in range(tokens):
                assert mapping[start + position] == tables[row, position // 16] * 16 + position % 16
        assert numpy.from_dlpack(pool.slot_mapping).tolist() == mapping.tolist() == pool.slot_mapping.tolist()
        assert pool.block_tables.tolist() == tables.tolist() and pool.block_tables[-1] == tables[-1].tolist()
        with pytest.raises(ValueError):
            tables[0, 0] = 1


def test_a_view_keeps_its_numbers_while_the_books_go_on(llama: cacheplan.Plan) -> None:
    numpy = pytest.importorskip("numpy")
    book = cacheplan.CacheBook(llama)
    sequence = book.admit(30)
    views, wanted = [], []
    for _ in range(40):
        array = numpy.asarray(book.step([(sequence, 1)]).positions)
        views.append(array)
        wanted.append(array.tolist())
    book.close()
    del book
    gc.collect()
    assert [view.tolist() for view in views] == wanted == [[position] for position in range(40)]


def test_memory_is_used_again_where_nobody_looks(llama: cacheplan.Plan) -> None:
    book = cacheplan.CacheBook(llama)
    sequence = book.admit(10)

    def place() -> int:
        return int(book.step([(sequence, 1)]).slots.__array_interface__["data"][0])

    places = {place() for _ in range(20)}
    assert len(places) == 1


def test_what_no_engine_may_do_is_a_clear_error(llama: cacheplan.Plan) -> None:
    book = cacheplan.CacheBook(llama)
    other = cacheplan.CacheBook(llama)
    sequence = book.admit(10)
    with pytest.raises(cacheplan.BookError, match="another"):
        other.finish(sequence)
    book.finish(sequence)
    with pytest.raises(cacheplan.BookError, match="stale"):
        book.finish(sequence)
    with pytest.raises(cacheplan.NoRoom) as full:
        for _ in range(100):
            book.admit(256)
    assert full.value.lack.needed > full.value.lack.free
    with pytest.raises(cacheplan.BookError, match="max_seq_len"):
        book.admit(257)
    with pytest.raises(OverflowError):
        book.admit(-1)
    book.close()
    with pytest.raises(cacheplan.BookError, match="closed"):
        book.admit(1)


def test_a_lease_ends_once(hybrid: dict[str, object]) -> None:
    plan = cacheplan.plan(hybrid, max_seq_len=256, max_batch_size=4, checkpoints=1)
    book = cacheplan.CacheBook(plan)
    reuse = cacheplan.PrefixReuse(plan, book)
    lease = reuse.admit(list(range(20)))
    with pytest.raises(cacheplan.BookError):
        reuse.computed(lease, [1, 2, 3])
    # A forward ends where a state is to be kept.
    for wanted in (16, 4):
        assert reuse.next_tokens(lease, 20) == wanted
        book.step([(lease.sequence, wanted)])
        reuse.computed(lease)
    reuse.finish(lease)
    with pytest.raises(cacheplan.BookError, match="ended"):
        reuse.finish(lease)
    assert reuse.admit(list(range(30))).cached == 20
    assert reuse.metrics()["requests"] == 2


def test_a_plan_without_room_for_states_allows_no_reuse(hybrid: dict[str, object]) -> None:
    plan = cacheplan.plan(hybrid, max_seq_len=256, max_batch_size=4)
    with pytest.raises(cacheplan.BookError):
        cacheplan.PrefixReuse(plan, cacheplan.CacheBook(plan))


def test_a_book_belongs_to_its_thread(llama: cacheplan.Plan) -> None:
    book = cacheplan.CacheBook(llama)
    raised: list[BaseException] = []

    def use() -> None:
        try:
            book.admit(1)
        except cacheplan.BookError as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(raised) == 1 and "thread" in str(raised[0])
    book.admit(1)


def test_many_operations_leak_nothing(llama: cacheplan.Plan) -> None:
    numpy = pytest.importorskip("numpy")
    book = cacheplan.CacheBook(llama)

    def rounds(count: int) -> int:
        for _ in range(count):
            sequence = book.admit(10)
            step = book.step([(sequence, 10)])
            numpy.asarray(step.positions)
            numpy.from_dlpack(step.slots)
            step.pools[0].slot_mapping.__dlpack__()
            book.finish(sequence)
            book.take_ops()
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = rounds(5_000)
    # A million calls of the book.
    assert rounds(250_000) - before < 2_048
