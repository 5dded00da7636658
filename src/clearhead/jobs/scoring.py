"""Scores pairs of texts with a model: forced decoding of files, with bounded memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from clearhead.base.errors import UserError, counted
from clearhead.bundle import Bundle
from clearhead.bundle.folder import tokenizers_of
from clearhead.data.config import CorpusConfig
from clearhead.data.read import check_corpus, read_rows
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.score import Scored, score
from clearhead.evaluation.loss import Loss
from clearhead.jobs.lines import count_lines, file_lines
from clearhead.jobs.music import prompt_of
from clearhead.tasks import TASKS

CHUNK = 256  # pairs scored together

Pair = tuple[str, str]


@dataclass
class Total:
    """The totals over all pairs."""

    pairs: int = 0
    tokens: int = 0  # stop symbols included
    logp: float = 0.0

    def add(self, one: Scored) -> None:
        self.pairs += 1
        self.tokens += len(one.token_logps)
        self.logp += one.logp

    def report(self) -> str:
        """One sentence.

        >>> Total(2, 10, -23.0).report()
        '2 pairs, 10 tokens: log-probability -23.0000, -2.3000 per token, perplexity 9.974.'
        """
        if not self.tokens:
            return "There were no pairs to score."
        loss = Loss(-self.logp, self.tokens)
        return (
            f"{counted(self.pairs, 'pair')}, {self.tokens:,} tokens: log-probability {self.logp:.4f}, "
            f"{-loss.per_token:.4f} per token, perplexity {loss.perplexity:.4g}."
        )


def aligned_pairs(source: Path | None, target: Path) -> Iterator[Pair]:
    """Two files line by line; without a source every text has an empty prompt."""
    if source is None:
        return (("", line) for line in file_lines(target))
    counts = [count_lines(path) for path in (source, target)]
    if counts[0] != counts[1]:
        raise UserError(
            f"'{source}' has {counts[0]:,} lines but '{target}' has {counts[1]:,}: they must be aligned "
            "line by line."
        )
    return zip(file_lines(source), file_lines(target), strict=True)


def table_pairs(file: Path) -> Iterator[Pair]:
    """The rows of a file with columns: .tsv, .csv, .jsonl."""
    corpus = CorpusConfig(file=str(file))
    columns = TASKS["translate"].columns
    check_corpus(corpus, columns)
    return ((row.source, row.target) for row in read_rows(corpus, columns))


def scored(bundle: Bundle, pairs: Iterable[Pair], penalty: LengthPenalty) -> Iterator[tuple[Pair, Scored]]:
    """Each pair with its score, in order; an error names the line of a pair that cannot be scored."""
    coming, first = iter(pairs), 1
    while chunk := list(islice(coming, CHUNK)):
        try:
            yield from zip(
                chunk, score(bundle, [_read(bundle, one) for one in chunk], penalty=penalty), strict=True
            )
        except UserError:  # one of them failed; those before it still get their scores
            for number, pair in enumerate(chunk, start=first):
                try:
                    [one] = score(bundle, [_read(bundle, pair)], penalty=penalty)
                except UserError as error:
                    raise UserError(f"Line {number}: {error}") from error
                yield pair, one
        first += len(chunk)


def _read(bundle: Bundle, pair: Pair) -> Pair:
    return prompt_of(bundle, pair[0]), prompt_of(bundle, pair[1])


def as_line(bundle: Bundle, one: Scored, tokens: bool) -> str:
    """Log-probability, in total and per token, and perplexity; with `tokens` each token and its own."""
    each = one.logp / len(one.token_logps)
    line = f"{one.logp:.6f}\t{each:.6f}\t{one.perplexity:.6g}"
    if tokens:
        named = zip(_names(bundle, one), one.token_logps, strict=True)
        line += "\t" + " ".join(f"{token}:{value:.4f}" for token, value in named)
    return line


def as_json(number: int, pair: Pair, one: Scored) -> str:
    """The score as one JSON object."""
    perplexity = one.perplexity
    plain = {
        "number": number,
        "source": pair[0],
        "target": pair[1],
        "logp": one.logp,
        "per_token": one.logp / len(one.token_logps),
        "perplexity": perplexity if math.isfinite(perplexity) else None,
        "score": one.score,
        "tokens": list(one.tokens),
        "token_logps": list(one.token_logps),
    }
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _names(bundle: Bundle, one: Scored) -> list[str]:
    """Tokens without spaces and newlines inside, and the stop symbol after them."""
    _, writer = tokenizers_of(bundle)
    stop = "" if writer.stop is None else writer.token(writer.stop)
    return ["".join("␣" if letter.isspace() else letter for letter in token) for token in (*one.tokens, stop)]
