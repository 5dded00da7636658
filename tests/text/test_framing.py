"""What stands around texts: as data, and as a template of the `tokenizers` library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from clearhead.base.errors import UserError
from clearhead.text.framing import Framing, Framings, bert_framing, template_of, with_template
from clearhead.text.tokenizer import Tokenizer

NAMES = ["<pad>", "<s>", "</s>", "<unk>", "<:0", "$A", "a", "b"]
IDS = {name: id for id, name in enumerate(NAMES)}


def plain() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


ids = st.integers(0, 5)
slots = st.lists(st.tuples(ids, st.integers(0, 2)), max_size=3)
segment = st.integers(0, 2)


@st.composite
def framings(draw: st.DrawFn) -> Framing:
    single = [*draw(slots), ("A", draw(segment)), *draw(slots)]
    first, second = draw(st.permutations(["A", "B"]))
    pair = [*draw(slots), (first, draw(segment)), *draw(slots), (second, draw(segment)), *draw(slots)]
    return Framing(single=tuple(single), pair=tuple(pair))


@settings(max_examples=30, derandomize=True, deadline=None)
@given(framings())
def test_a_framing_is_its_template_and_back(framing: Framing) -> None:
    """Also with tokens whose names look like the library's own shorthand."""
    made = with_template(Tokenizer(plain()), framing)
    assert template_of(made) == framing
    assert Framings.from_dict(json.loads(json.dumps(Framings(source=framing).to_dict()))).source == framing
    found = made.backend.encode("a b b")
    assert framing.frame([6, 7, 7]) == (found.ids, found.type_ids)
    assert framing.around([6, 7, 7]) == found.ids
    assert framing.around([6, 7, 7], limit=framing.extra + 2) == framing.around([6, 7])
    both = made.backend.encode("a b", "b")
    assert framing.frame([6, 7], [7]) == (both.ids, both.type_ids)


STOP, START = ("</s>", 2), ("<s>", 1)
BYTES = processors.ByteLevel()
TEMPLATE = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[START])


@pytest.mark.parametrize(
    "processor",
    [
        BYTES,
        TEMPLATE,
        processors.BertProcessing(STOP, START),
        processors.RobertaProcessing(STOP, START),
        processors.Sequence([BYTES, TEMPLATE]),
        processors.Sequence([processors.Sequence([TEMPLATE]), BYTES]),
        processors.TemplateProcessing(single="bos $A", pair="bos $A $B", special_tokens=[("bos", 4)]),
    ],
    ids=["bytes", "template", "bert", "roberta", "bytes first", "nested", "another name"],
)
def test_what_the_library_puts_around_texts_is_read(processor: Any) -> None:
    backend = plain()
    backend.post_processor = processor
    found = template_of(Tokenizer(backend)) or Framing(pair=(("A", 0), ("B", 1)))
    for texts in (["a b"], ["a b", "b"]):
        wanted = backend.encode(*texts)
        assert found.frame(*([IDS[word] for word in text.split()] for text in texts)) == (
            wanted.ids,
            wanted.type_ids,
        )
    # another framing takes the template's place, and the rest of the file stays
    changed = with_template(Tokenizer(backend), bert_framing(0, 5))
    assert changed.encode("a", specials=True) == [0, 6, 5]
    assert ("ByteLevel" in changed.to_json()) == ("ByteLevel" in backend.to_str())


def test_templates_that_cannot_be_used_are_refused() -> None:
    backend = plain()
    backend.post_processor = TEMPLATE
    torn = json.loads(backend.to_str())
    torn["post_processor"]["special_tokens"] = {}
    with pytest.raises(UserError, match="a token '<s>' that has no id"):
        template_of(Tokenizer.from_json(json.dumps(torn)))
    backend.post_processor = processors.Sequence([TEMPLATE, TEMPLATE])
    with pytest.raises(UserError, match="nests one template inside another"):
        template_of(Tokenizer(backend))


@pytest.mark.parametrize(
    "noted, sentence",
    [
        ({"source": {"single": []}}, "'single' must contain 'A' exactly once"),
        ({"source": {"single": [["A", 0], ["A", 0]]}}, "must contain 'A' exactly once"),
        ({"source": {"single": [["B", 0]]}}, "must contain 'A' exactly once"),
        ({"source": {"pair": [["A", 0]]}}, "'pair' must contain 'A' and 'B' exactly once"),
        ({"source": {"single": [["C", 0]]}}, r"source.single\[0\]' must be of type int"),
        ({"source": {"single": [["A", -1]]}}, "negative"),
        ({"source": {"single": [["A", 0], [-3, 0]]}}, "negative"),
        ({"source": {"single": [["A", 0], [1.5, 0]]}}, "must be of type int"),
        ({"source": {"single": [["A", 0, 0]]}}, "must have 2 entries"),
        ({"source": {"single": "A"}}, "must be a list"),
        ({"sources": {}}, "did you mean 'source'"),
        ({"source": 7}, "must be a table"),
        ([], "must be a table"),
        ("none", "must be a table"),
    ],
)
def test_what_is_no_framing_is_a_sentence(noted: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Framings.from_dict(noted, "framing")


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    bert_framing(6, 7).check(8)
    with pytest.raises(UserError, match="the token id 7, but the vocabulary ends at 6"):
        bert_framing(6, 7).check(7)
    with pytest.raises(UserError, match="one text at a time"):
        Framing.of(before=1).frame([5], [6])
