"""What packed weights take of memory, and what they are made from: memory of a model's own, or its file."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle.mapped import MAPPED
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows, pack, why_not
from clearhead.decoding.native.binding import instruction_sets, portions, rows_of
from clearhead.decoding.native.pack import BYTES, Dtype
from clearhead.decoding.native.weight_memory import HUGE, PrivateMemory

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="weights are mapped on Linux alone")

SYMBOLS = Symbols(1, 2, (0, 1))
SETS = instruction_sets() if why_not() is None else []  # that this processor can run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model = clearhead.build("tiny", vocabulary=71, width=36, attention__heads=3, feedforward__width=50)
    return clearhead.save(model.eval(), tmp_path / "bundle")


def loaded(folder: Path, mapped: bool) -> nn.Module:
    return clearhead.load(folder, mapped=mapped).model


def scores(model: nn.Module, dtype: Dtype) -> torch.Tensor:
    return NativeRows(model, SYMBOLS, dtype).admit([[5, 6, 7, 2], [70, 2]]).logp()


def test_portions_cover_all_rows_once() -> None:
    for sizes in ([64], [1], [100, 28], [64, 64, 64], [30, 30, 30], [128, 7, 57], [512, 512, 513]):
        whole = torch.arange(sum(sizes)).float()[:, None]
        for most in (32, 64, 96, 1024):
            found = list(portions(sizes, 32, most))
            assert found[0][0] == 0
            assert found[-1][1] == sum(sizes)
            assert all(one[1] == two[0] and one[1] % 32 == 0 for one, two in pairwise(found))
            parts = [rows_of(list(whole.split(sizes)), *one) for one in found]
            assert torch.equal(torch.cat(parts), whole)


def test_private_memory() -> None:
    memory = PrivateMemory(5 * HUGE)
    taken = [(memory.take(size), size) for size in (1, 64, 3 * HUGE, 100, 2 * HUGE, HUGE, 7)]
    assert all(begin % 64 == 0 for begin, _ in taken)
    assert taken[0][0] % HUGE == 0
    in_order = sorted(taken)
    assert all(one + size <= two for (one, size), (two, _) in pairwise(in_order))
    with pytest.raises(UserError, match="not enough memory"):
        PrivateMemory(1).take(1 << 60)


@linux
@pytest.mark.parametrize("dtype", list(BYTES))
def test_mapped_weights_give_the_same_numbers(folder: Path, dtype: Dtype) -> None:
    model = loaded(folder, mapped=True)
    file = MAPPED.get(model)
    assert file is not None
    assert torch.equal(scores(model, dtype), scores(loaded(folder, mapped=False), dtype))
    assert file.written() is False  # packing and decoding write to none of them
    assert pack(model, dtype) is pack(model, dtype)


@linux
@pytest.mark.parametrize("hidden", [False, True], ids=["in sight", "by its data"])
def test_changed_weights_are_packed_anew(folder: Path, hidden: bool) -> None:
    """Whatever was changed and however: no sample would find a single number."""
    model, usual = loaded(folder, mapped=True), loaded(folder, mapped=False)
    first = pack(model, "int8")
    for one in (model, usual):
        weight = one.decoder.layers[1].feedforward.inner.weight  # type: ignore[union-attr, index]
        with torch.no_grad():
            (weight.data if hidden else weight)[3, 1] += 1.0  # type: ignore[index, union-attr]
    assert pack(model, "int8") is not first
    assert torch.equal(scores(model, "int8"), scores(usual, "int8"))


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Each row as int8 has it: the largest is 127 steps from 0."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return torch.trunc(weight / step + 0.5 * weight.sign()) * step


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("tied", [True, False])
def test_int8_embeddings(tied: bool, instruction_set: str) -> None:
    """They are the embeddings of a model whose tables were rounded before."""
    torch.manual_seed(5)
    changes = {} if tied else {"source_vocabulary": 83, "embedding__tie_output": False}
    model = clearhead.build("tiny", vocabulary=71, width=36, attention__heads=3, **changes).eval()
    given = [[5, 6, 7, 2], [70, 2]]
    exact = NativeRows(model, SYMBOLS, "int8", instruction_set=instruction_set).admit(given).logp()
    rows = NativeRows(model, SYMBOLS, "int8", instruction_set=instruction_set, int8_embeddings=True)
    found = rows.admit(given).logp()
    alone = pack(model, "int8", instruction_set)
    assert (pack(model, "int8", instruction_set, int8_embeddings=True).bytes == alone.bytes) == tied
    with torch.no_grad():
        for table in (model.source_embedding.table, model.target_embedding.table):  # type: ignore[union-attr]
            table.weight.copy_(rounded(table.weight))  # type: ignore[operator, union-attr, arg-type]
    wanted = NativeRows(model, SYMBOLS, "int8", instruction_set=instruction_set).admit(given).logp()
    assert not torch.allclose(found, exact, atol=1e-6)
    assert torch.allclose(found, wanted, atol=2e-4)


def test_int8_embeddings_go_with_int8() -> None:
    with pytest.raises(UserError, match="need int8 weights, not bf16"):
        pack(clearhead.build("tiny").eval(), "bf16", int8_embeddings=True)


@linux
def test_a_file_overwritten_in_place_is_refused(folder: Path) -> None:
    model = loaded(folder, mapped=True)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="load it again"):
        pack(model)


@linux
def test_a_file_that_is_cut_off_while_it_is_used(folder: Path) -> None:
    """Embeddings are read from it: those that are gone are no numbers, and the process goes on."""
    rows = NativeRows(loaded(folder, mapped=True), SYMBOLS)
    assert rows.admit([[5, 6, 7, 2]]).logp().isfinite().all()
    os.truncate(folder / "model.safetensors", 100)
    assert rows.admit([[5, 6, 7, 2]]).logp().isnan().all()


@linux
def test_a_model_that_left_its_file(folder: Path) -> None:
    """Other parameters than those that were loaded, in part or altogether."""
    model, usual = loaded(folder, mapped=True), loaded(folder, mapped=False)
    for one in (model, usual):
        one.output.weight = nn.Parameter(one.output.weight.detach() * 2)  # type: ignore[union-attr, operator]
    assert torch.equal(scores(model, "int8"), scores(usual, "int8"))
    assert torch.equal(scores(model.bfloat16(), "int8"), scores(usual.bfloat16(), "int8"))
