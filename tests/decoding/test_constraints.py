"""Constraints against plain definitions: every text enumerated, expressions compared with Python's own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import pytest
import tokenizers
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Request, Search, Symbols
from clearhead.decoding.constraints import Pieces, constraint_processors, pieces_of
from clearhead.decoding.constraints.choices import holds
from clearhead.decoding.constraints.expression import byte_tree, characters, compiled
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.writer import make_search
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

from .bundles import ENGLISH, FRENCH, translator

SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))
SPECIAL = 3
PIECES = Pieces([b"", b"", b"", b"a", b"b", b"ab", "é".encode()[:1], "é".encode()[1:]])
Text = tuple[int, ...]


# -- expressions --------------------------------------------------------------------------------------

LETTERS = "ab1_ é日\n-"
ATOMS = st.sampled_from(
    ["a", "b", "1", ".", "é", "日", "[ab]", "[^a]", "[a-z]", r"\d", r"\w", r"\s", r"\W", r"[\w-]", r"[^\d\s]"]
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "{0}"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("(%s|%s)".__mod__),
        st.tuples(inner, times).map(lambda both: f"(?:{both[0]}){both[1]}"),
        inner.map("(%s|)".__mod__),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(ATOMS, grown, max_leaves=6), st.lists(st.text(LETTERS, max_size=7), max_size=12))
def test_an_expression_means_what_it_means_in_python(expression: str, texts: list[str]) -> None:
    automaton, known = compiled(expression), re.compile(expression)
    for text in texts:
        assert automaton.matches(text) == bool(known.fullmatch(text)), text


@pytest.mark.parametrize("letter", "dDwWsS")
def test_classes_hold_the_characters_that_python_says(letter: str) -> None:
    automaton, known = compiled(rf"\{letter}"), re.compile(rf"\{letter}")
    edges = {code + by for pair in characters(rf"\{letter}") for code in pair for by in (-1, 0, 1)}
    edges |= {0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF}
    for code in edges:
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            assert automaton.matches(chr(code)) == bool(known.fullmatch(chr(code))), hex(code)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.lists(st.characters(), max_size=30))
def test_ranges_of_characters_become_bytes(one: int, other: int, others: list[str]) -> None:
    first, last = sorted([one, other])
    nodes = byte_tree(((first, last),))
    near = {
        chr(code) for edge in (first, last) for code in (edge - 1, edge, edge + 1) if 0 <= code <= 0x10FFFF
    }
    for letter in [*others, *near]:
        if 0xD800 <= ord(letter) <= 0xDFFF:
            continue
        at: int | None = len(nodes) - 1 if nodes else None
        for byte in letter.encode():
            at = (
                next((to for low, high, to in nodes[at] if low <= byte <= high), None)
                if at is not None
                else None
            )
        assert (at == -1) == (first <= ord(letter) <= last)


@pytest.mark.parametrize(
    "expression",
    [
        "a{",
        "a{2,1x}",
        "[]a]+",
        "[a-]+",
        "x|",
        "^ab$",
        r"\x41\u00e9\t",
        "(?P<year>[0-9]{4})",
        r"[\]\\]",
        "a{,3}?",
        "",
    ],
)
def test_small_print_is_read_as_python_reads_it(expression: str) -> None:
    texts = ["", "a", "a{", "a{2,1x}", "]", "-", "a]", "x", "ab", "Aé\t", "1984", "\\", "aaa", "aaaa"]
    for text in texts:
        assert compiled(expression).matches(text) == bool(re.fullmatch(expression, text)), text


def test_letters_in_any_case() -> None:
    either = compiled("(?i)straße [k-m]+")
    assert either.matches("Straße KlM")
    assert either.matches("STRAßE m")
    assert not either.matches("Strase k")


@pytest.mark.parametrize(
    "expression, named",
    [
        (r"(a)\1", "backreference"),
        ("(?P=x)", "backreference"),
        ("a(?=b)", "look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("(?>a)", "atomic"),
        ("(?s)a", r"\(\?s"),
        (r"\bword", "word boundary"),
        (r"\p{L}", "escape"),
        ("a++", "possessive"),
        ("a**", "quantifier"),
        ("*a", "nothing to repeat"),
        ("a{3,2}", "exceeds its maximum"),
        ("(a", "not closed"),
        ("a)", "closes no group"),
        ("[a", "not closed"),
        ("[z-a]", "is reversed"),
        (r"[\d-z]", "range"),
        ("a^b", "anchor"),
        ("a\\", "backslash"),
        (r"\x4", "hexadecimal"),
        ("a{100000}", "too large"),
        (r"(?:\w{500}){500}", "too large"),
    ],
)
def test_what_is_not_regular_or_not_an_expression_is_a_sentence(expression: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        compiled(expression)


# -- every text that a processor lets through ---------------------------------------------------------------


def shaped(
    options: Options, limits: Sequence[int], pieces: Pieces
) -> Callable[[list[Text], list[int]], torch.Tensor]:
    """Which tokens (R, V) may follow texts of equal length of these requests, with all processors at work."""
    more = constraint_processors(options, SYMBOLS, pieces, limits)
    made = pipeline(options, SYMBOLS, len(pieces), has_source=True, more=more)

    def allowed(texts: list[Text], requests: list[int]) -> torch.Tensor:
        tokens = torch.tensor(texts, dtype=torch.long).reshape(len(texts), -1)
        past = Past(tokens, [[]] * len(limits), torch.tensor(requests), tokens.shape[1])
        return made.shape(torch.zeros(len(texts), len(pieces)), past) > -torch.inf

    return allowed


def let_through(options: Options, limit: int, pieces: Pieces = PIECES) -> set[Text]:
    """All texts that can be written; fails where a row comes to a place from which it cannot go on."""
    allowed = shaped(options, [limit], pieces)
    found: set[Text] = set()
    texts: list[Text] = [()]
    for count in range(limit + 1):
        following: list[Text] = []
        for text, line in zip(texts, allowed(texts, [0] * len(texts)), strict=True):
            ids = line.nonzero().flatten().tolist()
            assert ids, f"nothing may follow {text}"
            if SYMBOLS.stop in ids:
                found.add(text)
            following += [(*text, id) for id in ids if id != SYMBOLS.stop]
        texts = following
        if not texts:
            break
        assert count < limit, f"{texts[0]} goes beyond the limit"
    return found


def every_text(limit: int, size: int = len(PIECES)) -> list[Text]:
    return [text for n in range(limit + 1) for text in itertools.product(range(SPECIAL, size), repeat=n)]


def plain(options: Options, limit: int, pieces: Pieces = PIECES) -> set[Text]:
    """The same by definition."""

    def good(text: Text) -> bool:
        raw = pieces.text(text)
        try:
            words = raw.decode("utf-8")
        except UnicodeDecodeError:
            words = None
        begun = len(pieces.text(options.prefix))
        banned = any(
            raw.find(one.encode(), max(begun - len(one.encode()) + 1, 0)) >= 0
            if isinstance(one, str)
            else holds(text[: at + 1], one)
            and at >= len(options.prefix)
            and text[at + 1 - len(one) : at + 1] == one
            for one in options.banned
            for at in range(len(text))
        )
        return (
            len(text) >= options.min_length
            and text[: len(options.prefix)] == options.prefix
            and not banned
            and (options.regex is None or (words is not None and bool(re.fullmatch(options.regex, words))))
            and (not options.choices or text in options.choices)
            and all(one.encode() in raw for one in options.must_include)
        )

    return set(filter(good, every_text(limit, len(pieces))))


def agree(options: Options, limit: int, pieces: Pieces = PIECES) -> set[Text]:
    wanted = plain(options, limit, pieces)
    if not wanted:
        with pytest.raises(UserError):
            let_through(options, limit, pieces)
        return set()
    assert let_through(options, limit, pieces) == wanted
    return wanted


EXPRESSIONS = [
    "a*",
    "(ab)+",
    "a{2,3}b?",
    "é+|a",
    "(a|b)*abb",
    ".*",
    "[^a]+",
    "aaaa|b",
    "",
    "ba{3}|ab",
    r"\w{3}",
]
FEW = st.lists(st.integers(3, 5), min_size=1, max_size=3).map(tuple)
SHORT = st.text("ab", min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EXPRESSIONS),
    st.integers(0, 4),
    st.integers(0, 3),
    st.lists(st.integers(3, 7), max_size=2).map(tuple),
    st.sampled_from([(), ((3,),), ((5,), (4,))]),
)
def test_an_expression_lets_through_just_what_matches(
    regex: str, limit: int, least: int, prefix: Text, banned: tuple[Text, ...]
) -> None:
    assume(least <= limit and len(prefix) <= limit)
    assume(not any(token in prefix for (token,) in banned))
    agree(Options(regex=regex, min_length=least, prefix=prefix, banned=banned), limit)


def test_the_cases_above_are_not_all_contradictions() -> None:
    assert len(agree(Options(regex="(a|b)*abb"), 4)) > 5
    assert len(agree(Options(regex=r"\w{3}"), 4)) > 20  # also with the two halves of a letter


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(3, 6), max_size=4).map(tuple), min_size=1, max_size=5).map(tuple),
    st.integers(0, 3),
    st.sampled_from([(), (3,), (4, 4)]),
    st.lists(FEW, max_size=1).map(tuple),
)
def test_choices_let_through_just_themselves(
    choices: tuple[Text, ...], least: int, prefix: Text, banned: tuple[Text, ...]
) -> None:
    assume(not any(holds(prefix, one) for one in banned))
    agree(Options(choices=choices, min_length=least, prefix=prefix, banned=banned), 4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SHORT, max_size=2).map(tuple),
    st.integers(0, 4),
    st.lists(SHORT, max_size=2).map(tuple),
    st.integers(0, 2),
    st.lists(st.integers(3, 6), max_size=2).map(tuple),
    st.sampled_from([None, "a*", "(a|b)*abb", ".*"]),
)
def test_required_texts_are_in_every_text_banned_ones_in_none_and_nothing_else_is_asked(
    required: tuple[str, ...],
    limit: int,
    banned: tuple[str, ...],
    least: int,
    prefix: Text,
    regex: str | None,
) -> None:
    """However they are tokenised; overlaps and texts inside others count once."""
    assume(least <= limit and len(prefix) <= limit and (required or banned))
    assume(not any(ban in one for ban in banned for one in required))  # refused, whatever the prefix holds
    options = Options(must_include=required, banned=banned, min_length=least, prefix=prefix, regex=regex)
    if required or regex is not None:
        agree(options, limit)
    elif not least:  # nothing is looked ahead for: a text may end anywhere
        assert let_through(options, limit) == plain(options, limit)


def test_overlaps_save_room() -> None:
    letters = Pieces([b"", b"", b"", b"a", b"b", b"c"])
    assert let_through(Options(must_include=("aba", "acb", "bac")), 5, letters) == {(3, 4, 3, 5, 4)}
    assert let_through(Options(must_include=("a", "b"), banned=("ab", "ba")), 3, letters) == {
        (3, 5, 4),
        (4, 5, 3),
    }
    assert let_through(Options(must_include=((3, 4),)), 1) == {(5,)}  # ids stand for what they spell


def test_choices_keep_to_all_else_that_is_asked() -> None:
    choices = ((3, 4), (5, 3), (4, 4), (5, 4))
    pieces = Pieces(PIECES)
    assert let_through(Options(choices=choices, must_include=("ab",)), 4, pieces) == {(3, 4), (5, 3), (5, 4)}
    assert let_through(Options(choices=choices, banned=("ba", "abb")), 4, pieces) == {(3, 4), (4, 4)}
    assert let_through(Options(choices=choices, regex="a.*", stop_texts=("bb",)), 4, pieces) == {
        (3, 4),
        (5, 3),
    }


def test_a_ban_that_was_begun_in_a_prompt_is_not_ended_behind_it() -> None:
    """And one that stands in the prompt bars nothing."""
    options = Options(banned=("abb", "b" * 3))
    prompts = [[3], [5], [3, 4, 4], [4, 4], [1, 2]]
    more = constraint_processors(options, SYMBOLS, Pieces(PIECES), [9] * len(prompts), prompts)
    made = pipeline(options, SYMBOLS, len(PIECES), has_source=False, more=more)
    empty = torch.zeros(len(prompts), 0, dtype=torch.long)
    past = Past(empty, prompts, torch.arange(len(prompts)), 0)
    kept = made.shape(torch.zeros(len(prompts), len(PIECES)), past) > -torch.inf
    assert kept[:, 4].tolist() == [True, False, False, False, True]
    assert kept[:, 3].all()


def test_each_row_has_its_own_limit_and_past() -> None:
    """Rows of several requests in any order, told apart by nothing but their past."""
    letters = Pieces([b"", b"", b"", b"a", b"b", b"c"])
    allowed = shaped(Options(must_include=("ab",)), [2, 3, 9], letters)
    assert allowed([()] * 3, [2, 0, 1])[:, 5].tolist() == [True, False, True]
    assert allowed([(3,), (5,), (3,)], [0, 1, 1])[:, 5].tolist() == [False, False, False]
    assert allowed([(5,), (3,)], [1, 0])[:, 3:5].tolist() == [[True, False], [False, True]]
    matching = shaped(Options(regex="a{2,4}"), [2, 4], PIECES)
    assert matching([(3, 3), (3, 3)], [0, 1])[:, 2:4].tolist() == [[True, False], [True, True]]
    assert matching([(3,), (5,)], [1, 1])[:, 3].tolist() == [True, False]  # (5,) is "ab", where nothing fits


def test_a_model_may_have_more_tokens_than_its_tokenizer() -> None:
    [processor] = constraint_processors(Options(regex="a+"), SYMBOLS, PIECES, [4])
    past = Past(torch.zeros(1, 0, dtype=torch.long), [[]], torch.zeros(1, dtype=torch.long), 0)
    kept = processor(torch.zeros(1, len(PIECES) + 3), past) > -torch.inf
    assert kept.nonzero()[:, 1].tolist() == [3]


@pytest.mark.parametrize(
    "settings, limit, named",
    [
        ({"must_include": ("bbb", "aa")}, 3, "at least 4 tokens"),
        ({"must_include": ("ab",), "banned": ("b",)}, 9, "banned"),
        ({"must_include": ("ab",), "banned": ((3,), (5,))}, 9, "cannot be written"),
        ({"must_include": ("aa", "bb"), "prefix": (5, 6)}, 4, "after the prefix"),
        ({"must_include": ("z",)}, 9, "cannot be written"),
        ({"must_include": tuple(f"a{number}b" for number in range(20))}, 99, "At most"),
        ({"must_include": ("ba",), "regex": "a+b"}, 9, "matches .* and contains"),
        ({"choices": ((3, 4, 5),)}, 2, "A choice has 3 tokens"),
        ({"choices": ((3, 4), (5,)), "banned": ((4,), (5,))}, 9, "None of the choices"),
        ({"choices": ((3, 0),)}, 9, "never occurs in a text"),
        ({"regex": "a{5}"}, 4, "at most 4 tokens"),
        ({"regex": "a{2}", "min_length": 3}, 4, "at least 3 and at most 4"),
        ({"regex": "z+"}, 4, "No text"),
        ({"regex": "a+", "prefix": (4,)}, 4, "prefix does not match"),
        ({"regex": "a+", "banned": ((3,),)}, 4, "No text"),
    ],
)
def test_contradictions_are_a_sentence_before_anything_is_written(
    settings: dict[str, object], limit: int, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        constraint_processors(Options(**settings), SYMBOLS, PIECES, [50, limit])


# -- what tokens add to a text ----------------------------------------------------------------------------

SPACE = "▁"
METASPACE = [SPACE + "the", SPACE, "cat", "s", SPACE + "é", "," + SPACE, SPACE * 2]


def imported(decoder: object, vocabulary: Sequence[str]) -> Tokenizer:
    tokens = ["<pad>", "<start>", "<stop>", "<unknown>", *vocabulary]
    model = models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="<unknown>")
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder
    return Tokenizer(backend, {"pad": 0, "start": 1, "stop": 2, "unknown": 3})


LLAMA = decoders.Sequence(
    [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS = {
    **{
        kind: learn_tokenizer(ENGLISH + FRENCH, TokenizerConfig(kind=kind, vocabulary=600))
        for kind in ("bpe", "unigram", "wordpiece", "characters", "words")
    },
    "words by hand": Tokenizer.words(ENGLISH),
    "metaspace": imported(decoders.Metaspace(), METASPACE),
    "metaspace, no opening": imported(decoders.Metaspace(prepend_scheme="never"), METASPACE),
    "llama": imported(LLAMA, [*METASPACE, "<0xC3>", "<0xA9>", "<0x0A>"]),
    "bert": imported(decoders.WordPiece(cleanup=False), ["the", "##s", "cat", "##é"]),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_join_to_what_the_tokenizer_says(name: str, data: st.DataObject) -> None:
    """Where they join to a text at all: single bytes, drawn at random, seldom do."""
    tokenizer = TOKENIZERS[name]
    pieces = pieces_of(tokenizer)
    assert len(pieces) == tokenizer.vocabulary_size
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=9))
    real = [id for id in ids if pieces[id]]
    if real and real[0] in pieces.never_first:
        return
    try:
        text = pieces.text(ids).decode("utf-8")
    except UnicodeDecodeError:
        return
    assert text == tokenizer.decode(ids)


def test_a_decoder_that_mends_texts_is_refused() -> None:
    for decoder in (decoders.WordPiece(cleanup=True), decoders.CTC(), decoders.BPEDecoder()):
        with pytest.raises(UserError, match="use choices"):
            pieces_of(imported(decoder, ["the", "##s", "."]))


@pytest.mark.parametrize("name", ["metaspace", "llama", "bert"])
def test_the_opening_space_is_no_part_of_the_text(name: str) -> None:
    """Every text that matches, as the tokenizer puts it together, is let through, and no other.

    But for texts whose first token would be read otherwise than elsewhere.
    """
    tokenizer, expression = TOKENIZERS[name], "(the )?cats?|é, ?| the|thes"
    pieces = pieces_of(tokenizer)
    texts = [text for text in every_text(4, len(pieces)) if all(pieces[id] for id in text)]
    wanted = {
        text
        for text in texts
        if re.fullmatch(expression, tokenizer.decode(text))
        and (not text or text[0] not in pieces.never_first)
    }
    assert len({tokenizer.decode(text) for text in wanted}) >= 4
    assert let_through(Options(regex=expression), 4, pieces) == wanted


@pytest.mark.parametrize("name", ["metaspace", "metaspace, no opening", "llama", "bert", "words by hand"])
@pytest.mark.parametrize("banned, required", [((" cat", "é", "st"), ()), (("ss",), ("cat",)), ((), (", s",))])
def test_banned_and_required_texts_are_those_of_the_text_as_it_is_read(
    name: str, banned: tuple[str, ...], required: tuple[str, ...]
) -> None:
    """Its opening included: a space that a text loses there is not in it."""
    tokenizer = TOKENIZERS[name]
    pieces = pieces_of(tokenizer)
    texts = [text for text in every_text(3, min(len(pieces), 12)) if all(pieces[id] for id in text)]
    texts = [text for text in texts if not text or text[0] not in pieces.never_first]
    wanted = {
        text
        for text in texts
        if not any(one in tokenizer.decode(text) for one in banned)
        and all(one in tokenizer.decode(text) for one in required)
    }
    assert required or len(wanted) < len(texts) or name == "words by hand"
    kept = Pieces(pieces[:12], pieces.opening_lost, pieces.never_first)  # few tokens, and no unknown one
    options = Options(banned=(*banned, (3,)), must_include=required)
    if wanted:
        assert let_through(options, 3, kept) == wanted
    else:
        with pytest.raises(UserError, match=r"required|cannot be written"):
            let_through(options, 3, kept)


# -- real models ------------------------------------------------------------------------------------------


def written(options: Options, count: int = 6) -> list[str]:
    """What a random model writes under a constraint, several requests of unlike length and limit together."""
    bundle = translator()
    tokenizer = bundle.tokenizer
    symbols, pieces = Symbols.of(tokenizer), pieces_of(tokenizer)
    requests = [Request((*range(4, 6 + i), 2), 6 + i % 3, options.replace(seed=i)) for i in range(count)]

    def make(batch: Batch) -> Search:
        return make_search(batch, True, pieces)

    engine = rows_engine(TorchRows(bundle.model, symbols), symbols, make, room=4)
    found = dict(engine.run(requests))
    return [tokenizer.decode(one.ids) for number in range(count) for one in found[number]]


SEARCHES: list[dict[str, object]] = [
    {},
    {"sample": True},
    {"sample": True, "nbest": 3, "temperature": 3.0},
    {"beam": 4, "nbest": 3},
]


@pytest.mark.parametrize("search", SEARCHES)
def test_models_keep_to_constraints(search: dict[str, object]) -> None:
    bundle = translator()
    ids = {
        text: tuple(bundle.tokenizer.encode(text)) for text in ("le chat dort", "le chien", "one", "un chien")
    }
    for text in written(Options(regex="(le|un) [a-z]+( .*)?dort", **search)):
        assert re.fullmatch("(le|un) [a-z]+( .*)?dort", text)
    for text in written(Options(choices=tuple(ids.values()), **search)):
        assert text in ids
    asked = {"must_include": ("le chat dort", "un chien"), "banned": ("oi", "mange ")}
    for text in written(Options(**asked, **search)):
        assert "le chat dort" in text
        assert "un chien" in text
        assert "oi" not in text
        assert "mange " not in text
