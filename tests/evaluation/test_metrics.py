"""Metrics against other implementations' numbers (frozen here), the tools they wrap, and their formulas."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead.base.errors import UserError
from clearhead.evaluation.labels_and_numbers import Confusion
from clearhead.evaluation.metrics import (
    bleu,
    bleu_metric,
    chrf,
    chrf_metric,
    common_subsequence,
    exact_match,
    rouge,
    rouge_scores,
)

OUTPUTS = ["the cat sat on the mat .", "A dog, eats fish!", "", "one bird sings a very long old song"]
REFERENCES = ["the cat is on the mat .", "a dog eats the fish!", "nothing", "one bird sings a long old song"]

# What the rouge-score package 0.1.2 gives (use_stemmer=False): output, reference, ROUGE-1, -2, -L.
ROUGE = [
    ("the cat sat on the mat", "the cat is on the mat", 0.833333, 0.6, 0.833333),
    ("Police killed the gunman!", "The gunman was shot by police; police said.", 0.5, 0.2, 0.333333),
    ("meeting tomorrow at 10am", "Re: Meeting at 10 am tomorrow", 0.6, 0.0, 0.4),
    ("", "something", 0.0, 0.0, 0.0),
    ("the the the", "the cat", 0.4, 0.0, 0.4),
    ("state-of-the-art results_2", "State of the art results 2", 1.0, 1.0, 1.0),
    ("a b c d e f g", "g f e d c b a", 1.0, 0.0, 0.142857),
]

# Sixty labels, and what scikit-learn 1.9 says of them.
TRUTH = "ddacddcdcbbcbacbcaacdacdcbddcaaadadcbcabbbbdaacdaccacbcdadcb"
CHOSEN = "ddacddbaecbcbecbcaecdacdccddbaaadadcabbebabcaacdaccecbbbabcb"


# --- BLEU, chrF, exact match ----------------------------------------------------------------------


@pytest.mark.parametrize("tokenise", ["13a", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_is_sacrebleus(tokenise: str, lowercase: bool) -> None:
    found = bleu(OUTPUTS, REFERENCES, tokenise=tokenise, lowercase=lowercase)  # type: ignore[arg-type]
    metric = BLEU(tokenize=tokenise, lowercase=lowercase, force=True)
    wanted = metric.corpus_score(OUTPUTS, [REFERENCES])
    assert found.value == wanted.score
    assert found.signature == str(metric.get_signature())
    assert f"tok:{tokenise}" in found.signature
    assert found.name == ("tokenised BLEU" if tokenise == "none" else "BLEU")
    assert "BP = " in found.details


def test_tokenised_bleu_is_the_formula_of_multi_bleu() -> None:
    """Precisions of whole words, brevity penalty; every order has a match here, so nothing is smoothed."""
    outputs, references = OUTPUTS[:1] + OUTPUTS[3:], REFERENCES[:1] + REFERENCES[3:]
    logs = []
    for order in (1, 2, 3, 4):
        shared = total = 0
        for output, reference in zip(outputs, references, strict=True):
            ours, theirs = (ngrams(text.split(), order) for text in (output, reference))
            total += len(ours)
            shared += sum(min(ours.count(n), theirs.count(n)) for n in set(ours))
        logs.append(math.log(shared / total))
    written, wanted = (sum(len(text.split()) for text in texts) for texts in (outputs, references))
    value = 100 * min(1.0, math.exp(1 - wanted / written)) * math.exp(sum(logs) / 4)
    assert bleu(outputs, references, tokenise="none").value == pytest.approx(value)


def ngrams(words: list[str], order: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]


def test_chrf_is_sacrebleus() -> None:
    found = chrf(OUTPUTS, REFERENCES)
    assert found.value == CHRF().corpus_score(OUTPUTS, [REFERENCES]).score
    assert "nc:6" in found.signature


def test_sentence_scores_are_sacrebleus() -> None:
    found = bleu_metric(sentence=True).sentences(OUTPUTS, REFERENCES)
    metric = BLEU(effective_order=True)
    assert found == [metric.sentence_score(o, [r]).score for o, r in zip(OUTPUTS, REFERENCES, strict=True)]
    found = chrf_metric().sentences(OUTPUTS, REFERENCES)
    assert found == [CHRF().sentence_score(o, [r]).score for o, r in zip(OUTPUTS, REFERENCES, strict=True)]


def test_several_references() -> None:
    several = [[REFERENCES[0], OUTPUTS[0]], [REFERENCES[1]], ["x", "y"], [REFERENCES[3]]]
    columns = [[row[0] for row in several], [OUTPUTS[0], None, "y", None]]
    metric = BLEU(force=True)
    assert bleu(OUTPUTS, several).value == metric.corpus_score(OUTPUTS, columns).score
    assert bleu(OUTPUTS, several).value > bleu(OUTPUTS, [row[0] for row in several]).value
    assert exact_match(OUTPUTS, several).value == 25.0


def test_statistics_add_up_to_the_corpus_score() -> None:
    for metric in (bleu_metric(), bleu_metric("none", lowercase=True), chrf_metric()):
        total = metric.statistics(OUTPUTS, REFERENCES).sum(0)
        assert metric.score(total) == pytest.approx(metric(OUTPUTS, REFERENCES).value, abs=1e-9)


def test_text_that_looks_tokenised_is_no_reason_to_complain(capsys) -> None:
    bleu(["a b ."] * 150, ["a b ."] * 150)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: bleu(["a"], []), "1 outputs but 0 references"),
        (lambda: bleu([], []), "at least one"),
        (lambda: rouge(["a", "b"], [["a"], []]), "Text 2 has no reference"),
        (lambda: Confusion.of(["a"], []), "1 true labels but 0"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()


# --- ROUGE ----------------------------------------------------------------------------------------


def test_rouge_is_the_rouge_score_packages() -> None:
    outputs, references = [row[0] for row in ROUGE], [row[1] for row in ROUGE]
    for place, kind in enumerate("12L", start=2):
        found = rouge_scores(outputs, references, kind)
        assert found == pytest.approx([row[place] for row in ROUGE], abs=1e-6)
        mean = 100 * sum(row[place] for row in ROUGE) / len(ROUGE)
        assert rouge(outputs, references)[f"ROUGE-{kind}"].value == pytest.approx(mean, abs=1e-4)


def test_rouge_takes_the_best_reference() -> None:
    found = rouge(["the cat sat"], [["the dog lay", "a cat sat here"]])
    values = [score.value for score in found.values()]
    assert values == pytest.approx([57.1429, 40.0, 57.1429], abs=1e-4)  # rouge-score's score_multi


def test_rouge_knows_letters_of_any_script_and_takes_a_stemmer() -> None:
    assert rouge_scores(["L'été à Kyōto"], ["l été à kyōto!"], "2") == [1.0]
    plain, stemmed = (
        rouge(["cats sit"], ["cat sit"], stem=stem)["ROUGE-1"] for stem in (None, lambda w: w[:3])
    )
    assert (plain.value, stemmed.value) == (50.0, 100.0)
    assert "stem:no" in plain.signature
    assert "stem:yes" in stemmed.signature


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abcd"), max_size=9))
def test_the_longest_common_subsequence(first: list[str], second: list[str]) -> None:
    assert common_subsequence(first, second) == next(
        size
        for size in range(len(first), -1, -1)
        if any(is_inside(chosen, second) for chosen in itertools.combinations(first, size))
    )


def is_inside(words: tuple[str, ...], text: list[str]) -> bool:
    rest = iter(text)
    return all(word in rest for word in words)


# --- labels ---------------------------------------------------------------------------------------


def test_label_metrics_are_scikit_learns() -> None:
    found = Confusion.of(list(TRUTH), list(CHOSEN))
    assert found.accuracy == pytest.approx(0.7)
    assert found.macro_f1 == pytest.approx(0.5815883913246996)
    assert found.metrics()["micro F1"] == pytest.approx(70)
    assert found.matthews == pytest.approx(0.6156819612521548)
    wanted = {"a": 22 / 29, "b": 7 / 13, "c": 13 / 17, "d": 11 / 13, "e": 0.0}
    assert found.f1_by_label() == pytest.approx(wanted)
    two = [["yes" if label in "ab" else "no" for label in labels] for labels in (TRUTH, CHOSEN)]
    binary = Confusion.of(*two)
    assert binary.matthews == pytest.approx(0.5640760748177662)
    assert binary.f1_by_label()["yes"] == pytest.approx(0.7636363636363637)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_matthews_for_two_classes_is_his_own_formula(pairs: list[tuple[bool, bool]]) -> None:
    counts = {both: pairs.count(both) for both in itertools.product([True, False], repeat=2)}
    tp, tn, fp, fn = (counts[b] for b in [(True, True), (False, False), (False, True), (True, False)])
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    found = Confusion.of([str(a) for a, _ in pairs], [str(b) for _, b in pairs])
    assert found.matthews == pytest.approx((tp * tn - fp * fn) / root if root else 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=40))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pairs: list[tuple[str, str]]) -> None:
    found = Confusion.of([a for a, _ in pairs], [b for _, b in pairs], labels="abcdz")
    for name, value in found.f1_by_label().items():
        right = pairs.count((name, name))
        given_, true = sum(b == name for _, b in pairs), sum(a == name for a, _ in pairs)
        if right:
            precision, recall = right / given_, right / true
            assert value == pytest.approx(2 * precision * recall / (precision + recall))
        else:
            assert value == 0.0
    assert found.counts.sum() == len(pairs)
    assert found.labels == tuple("abcdz")


def test_labels_nobody_announced_still_count() -> None:
    found = Confusion.of(["a", "x"], ["a", "a"], labels=["a", "b"])
    assert found.labels == ("a", "b", "x")
    assert found.accuracy == 0.5
    assert found.macro_f1 == pytest.approx((2 / 3 + 0) / 2)  # b occurs nowhere and does not weigh


def test_guessing_has_no_correlation() -> None:
    chance = random.Random(0)
    truth, chosen = ([chance.choice("abc") for _ in range(20_000)] for _ in range(2))
    assert abs(Confusion.of(truth, chosen).matthews) < 0.02
    assert Confusion.of(truth, truth).matthews == pytest.approx(1.0)
    assert Confusion.of(truth, ["a"] * len(truth)).matthews == 0.0
