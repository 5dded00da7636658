"""Loaders: every example once an epoch, resumable at any batch, made ahead in order, closed cleanly."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.encodings import SKIP
from clearhead.data.layouts import pack_batch
from clearhead.data.load import Loader, made_ahead
from clearhead.data.plan import BatchConfig
from clearhead.tasks import TASKS

from .storing import SPECIALS, a_store, pairs

lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=40)
configs = st.builds(
    BatchConfig,
    tokens=st.integers(1, 60),
    shapes=st.sampled_from(["free", "fixed"]),
    workers=st.integers(0, 3),
    context=st.integers(1, 12),
) | st.builds(BatchConfig, tokens=st.integers(1, 60), layout=st.just("packed"), context=st.integers(1, 12))


def plain(batch: Batch) -> tuple[object, ...]:
    tensors = (batch.source, batch.source_lengths, batch.inputs, batch.lengths, batch.labels)
    return (*(t.tolist() if isinstance(t, Tensor) else t for t in tensors), batch.rows, batch.tokens)


def examples_in(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs of a batch, as they were stored."""
    packed = pack_batch(batch)
    assert packed.source is not None
    assert isinstance(packed.lengths, tuple)
    assert isinstance(packed.source_lengths, tuple)
    sources = packed.source.split(packed.source_lengths)
    inputs, labels = packed.inputs.split(packed.lengths), packed.labels.split(packed.lengths)
    for read, said in zip(inputs, labels, strict=True):
        assert int(read[0]) == SPECIALS.start
        assert int(said[-1]) == SPECIALS.stop
        assert read[1:].tolist() == said[:-1].tolist()
    return [(tuple(s.tolist()), tuple(t[:-1].tolist())) for s, t in zip(sources, labels, strict=True)]


@settings(max_examples=40, deadline=None)
@given(lengths, configs, st.integers(0, 3), st.integers(0, 9), st.booleans(), st.integers(1, 3))
def test_every_pair_once_and_any_resumption_goes_on_alike(
    sizes: list[tuple[int, int]], config: BatchConfig, epoch: int, seed: int, evaluation: bool, corpora: int
) -> None:
    sources, targets = pairs(sizes)
    cuts = [len(sizes) * n // corpora for n in range(corpora + 1)]
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            a_store(Path(folder) / str(begin), "translate", targets[begin:end], sources[begin:end])
            for begin, end in itertools.pairwise(cuts)
            if end > begin
        ]
        loader = Loader(stores, TASKS["translate"].encoding(), config, SPECIALS, seed, evaluation=evaluation)
        batches = list(loader.batches(epoch))
        assert len(batches) == loader.count(epoch)
        found = [pair for batch in batches for pair in examples_in(batch)]
        assert Counter(found) == Counter((tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True))
        for batch in batches:
            assert batch.rows == len(examples_in(batch))
            assert batch.tokens == int((batch.labels != IGNORED).sum())
            assert batch.indices is not None
            assert [tuple(sources[n]) for n in batch.indices] == [pair[0] for pair in examples_in(batch)]
        again = Loader(stores, TASKS["translate"].encoding(), config, SPECIALS, seed, evaluation=evaluation)
        for start in {0, len(batches) // 2, len(batches)}:
            rest = [plain(batch) for batch in again.batches(epoch, start)]
            assert rest == [plain(batch) for batch in batches[start:]]
        if config.shapes == "fixed":
            assert len(loader.shapes()) <= 12
            shapes = {
                (*batch.inputs.shape, batch.source.shape[1]) for batch in batches if batch.source is not None
            }
            assert shapes <= {(rows, target, source) for rows, source, target in loader.shapes()}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 20), max_size=9), min_size=1, max_size=6),
    st.lists(st.integers(10, 99), max_size=40),
    configs,
    st.integers(0, 5),
    st.booleans(),
)
def test_every_token_of_a_text_is_predicted_once(
    documents: list[list[int]], long: list[int], config: BatchConfig, epoch: int, evaluation: bool
) -> None:
    """Two corpora: documents of their own, and one long text; ids tell their place in the text."""
    fresh = itertools.count(100)
    first = [[SPECIALS.start, *(next(fresh) for _ in document), SPECIALS.stop] for document in documents]
    second = [[SPECIALS.start, *(next(fresh) for _ in long)]]
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            a_store(Path(folder) / "documents", "generate", first),
            a_store(Path(folder) / "long", "generate", second),
        ]
        loader = Loader(stores, TASKS["generate"].encoding(), config, SPECIALS, 3, evaluation=evaluation)
        predicted: Counter[tuple[int, int]] = Counter()
        for batch in loader.batches(epoch):
            packed = pack_batch(batch)
            assert isinstance(packed.lengths, tuple)
            assert max(packed.lengths) <= config.context
            for before, after in zip(packed.inputs.tolist(), packed.labels.tolist(), strict=True):
                if after != IGNORED:
                    predicted[before, after] += 1
        expected: Counter[tuple[int, int]] = Counter()
        for stream in ([one for row in first for one in row], second[0]):
            expected.update(pair for pair in itertools.pairwise(stream) if pair[1] != SPECIALS.start)
        assert predicted == expected
        if config.shapes == "fixed":
            [(rows, source, target)] = loader.shapes()
            assert source == 0
            assert {tuple(batch.inputs.shape) for batch in loader.batches(epoch)} == {(rows, target)}


def test_a_long_text_is_cut_elsewhere_in_every_epoch_but_not_in_evaluation(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", "generate", [[SPECIALS.start, *range(10, 1000)]])
    config = BatchConfig(context=50, tokens=500)

    def begins(epoch: int, evaluation: bool) -> set[int]:
        loader = Loader([store], TASKS["generate"].encoding(), config, SPECIALS, 1, evaluation=evaluation)
        return {int(row[0]) for batch in loader.batches(epoch) for row in batch.inputs[: batch.rows]}

    assert begins(0, False) != begins(1, False)
    assert begins(0, True) == begins(1, True) == {SPECIALS.start, *range(59, 1000, 50)}


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_classes_and_tags(tmp_path: Path, task: str) -> None:
    sources = [[5, 6, 7], [8], [9, 10]]
    targets = [[0], [1], [1]] if task == "classify" else [[0, SKIP, 1], [1], [0, SKIP]]
    store = a_store(tmp_path / "s", task, targets, sources)
    [batch] = Loader([store], TASKS[task].encoding(), BatchConfig(), SPECIALS, 1, evaluation=True).batches()
    assert batch.source is None
    if task == "classify":
        assert batch.inputs.tolist() == [[1, 5, 6, 7], [1, 8, 0, 0], [1, 9, 10, 0]]
        assert batch.labels.tolist() == [0, 1, 1]
    else:
        assert batch.inputs.tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]
        assert batch.labels.tolist() == [[0, IGNORED, 1], [1, IGNORED, IGNORED], [0, IGNORED, IGNORED]]


def small_loader(folder: Path, **changes: object) -> Loader:
    sources, targets = pairs([(1 + n % 7, n % 5) for n in range(40)])
    config = BatchConfig.from_dict({"tokens": 20, **changes})
    return Loader(
        [a_store(folder, "translate", targets, sources)], TASKS["translate"].encoding(), config, SPECIALS, 1
    )


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_stream_is_the_epochs_one_after_another(tmp_path: Path, workers: int) -> None:
    loader = small_loader(tmp_path / "s", workers=workers)
    wanted = [(e, n, plain(b)) for e in range(2, 6) for n, b in enumerate(loader.batches(e))]
    found = itertools.islice(loader.stream(2, 0), len(wanted))
    assert [(one.epoch, one.number, plain(one.batch)) for one in found] == wanted
    start = loader.count(2) - 1
    later = itertools.islice(loader.stream(2, start), 7)
    assert [(one.epoch, one.number, plain(one.batch)) for one in later] == wanted[start : start + 7]
    after_the_last = next(loader.stream(2, loader.count(2)))
    assert (after_the_last.epoch, after_the_last.number) == (3, 0)
    assert_no_threads_stay()


def test_weights_change_how_often_a_corpus_comes(tmp_path: Path) -> None:
    stores = [
        a_store(tmp_path / name, "translate", [[5]] * n, [[5, 2]] * n) for name, n in (("a", 10), ("b", 30))
    ]
    loader = Loader(
        stores, TASKS["translate"].encoding(), BatchConfig(tokens=8), SPECIALS, 1, weights=[1.0, 1.0]
    )
    seen: Counter[int] = Counter()
    for batch in loader.batches(0):
        assert batch.indices is not None
        seen.update(batch.indices.tolist())
    assert sum(times for number, times in seen.items() if number < 10) == 20
    assert sum(seen.values()) == 40
    assert (
        sum(
            b.rows
            for b in Loader(stores, TASKS["translate"].encoding(), BatchConfig(), SPECIALS, 1).batches(0)
        )
        == 40
    )


def test_going_on_where_there_is_nothing_is_a_sentence(tmp_path: Path) -> None:
    loader = small_loader(tmp_path / "s")
    for start in (-1, loader.count(0) + 1):
        with pytest.raises(UserError, match="cannot resume at batch"):
            next(loader.batches(0, start))
        with pytest.raises(UserError, match="cannot resume at batch"):
            next(loader.stream(0, start))


def test_wrong_stores_are_refused(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", "translate", [[5]], [[5]])
    with pytest.raises(UserError, match="is for the task 'translate', not 'classify'"):
        Loader([store], TASKS["classify"].encoding(), BatchConfig(), SPECIALS, 1)
    for task, empty in (("translate", []), ("generate", [[1]])):
        nothing = a_store(tmp_path / task, task, empty, [] if task == "translate" else None)
        with pytest.raises(UserError, match="is empty"):
            Loader([nothing], TASKS[task].encoding(), BatchConfig(), SPECIALS, 1)
    with pytest.raises(ValueError, match="free shapes"):
        small_loader(tmp_path / "t").shapes()


# -- made ahead ----------------------------------------------------------------------------------------


def assert_no_threads_stay() -> None:
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("clearhead")]
    assert names == []


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_come_in_order_whoever_is_first(workers: int) -> None:
    def slow(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number

    assert list(made_ahead(slow, range(40), workers, 5)) == list(range(40))
    assert_no_threads_stay()


def test_no_more_is_made_ahead_than_allowed() -> None:
    started: list[int] = []
    results = made_ahead(lambda n: started.append(n) or n, range(100), 2, 6)  # type: ignore[func-returns-value]
    assert next(results) == 0
    time.sleep(0.05)
    assert len(started) == 7
    next(results)
    time.sleep(0.05)
    assert len(started) == 8
    results.close()  # type: ignore[attr-defined]
    assert_no_threads_stay()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_comes_where_its_result_would_have(workers: int) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise UserError("the third is damaged")
        return number

    seen = []
    with pytest.raises(UserError, match="third"):
        for number in made_ahead(work, range(10), workers, 4):
            seen.append(number)
    assert seen == [0, 1, 2]
    assert_no_threads_stay()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_who_stops_early_leaves_no_thread(tmp_path: Path, error: type[BaseException] | None) -> None:
    def consume() -> None:
        for number, _ in enumerate(small_loader(tmp_path / "s", workers=2).stream()):
            if number == 3 and error is not None:
                raise error
            if number == 3:
                break

    if error is None:
        consume()
    else:
        with pytest.raises(error):
            consume()
    assert_no_threads_stay()


def test_a_damaged_store_is_told_by_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.data.store._MAPPED_AT_MOST", 0)
    loader = small_loader(tmp_path / "s")
    (tmp_path / "s" / "target.ids").write_bytes(b"")
    with pytest.raises(UserError, match="truncated while it was being read"):
        list(loader.batches(0))


@pytest.mark.gpu
def test_pinned_batches_reach_the_gpu(tmp_path: Path) -> None:
    sources, targets = pairs([(3, 4), (5, 6)])
    store = a_store(tmp_path / "s", "translate", targets, sources)
    [batch] = Loader([store], TASKS["translate"].encoding(), BatchConfig(), SPECIALS, 1, pin=True).batches()
    assert batch.inputs.is_pinned()
    moved = batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert plain(moved.to("cpu")) == plain(batch)
