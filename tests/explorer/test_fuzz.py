"""Thousands of requests made up from the server's own description: each gets an answer or a sentence.

Schemathesis makes requests that fit the description of the API and requests that do not; a third kind fits
and is also about things that exist, so that it gets as far as the views. The server is a real one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from clearhead.explorer.server.app import make_app
from clearhead.explorer.session import Session

from .conftest import make_bundle
from .serving import served

CHECKS: list[Any] = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
TEXTS = ["the cat sleeps .", "who sees the old green house ?", "zebra", "", " \n", "é€\u0301 𝔸", "cat " * 30]
KINDS = ["encoder.self", "decoder.self", "decoder.cross"]
STACKS = ["encoder", "decoder"]
SCHEMES = ["sinusoidal", "rotary", "alibi", "learned", "t5", "none", "?"]
PARTS = ["self.weights", "self.q", "cross.scores", "feedforward.hidden", "output", "self.added"]

# what exists, or nearly so, for fields of these names
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(TEXTS),
    "target": st.sampled_from([None, "le chat dort .", "", "zebra"]),
    "model": st.sampled_from([None, "tiny", "early", "writer", "judge", "old"]),
    "kind": st.sampled_from(KINDS),
    "layer": st.integers(0, 3),
    "head": st.integers(0, 5),
    "row": st.integers(0, 9),
    "name": st.sampled_from(
        [f"{stack}.{layer}.{part}" for stack in STACKS for layer in "012" for part in PARTS]
    ),
    "word": st.sampled_from(["cat", "zebra", "", "the cat"]),
    "sentences": st.lists(st.sampled_from(TEXTS), min_size=2, max_size=5),
    "schemes": st.lists(st.sampled_from(SCHEMES), max_size=3),
    "max_length": st.sampled_from([None, 1, 2, 7]),
    "length": st.integers(2, 40),
}


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    kinds = {"tiny": ("encoder-decoder", "post"), "early": ("separate", "pre"), "writer": ("decoder", "pre")}
    kinds |= {"judge": ("encoder", "post"), "old": ("recurrent", "post")}
    sessions = {name: Session(make_bundle(*what), name) for name, what in kinds.items()}
    with served(make_app(sessions, Path("absent"))) as address:
        yield address


def sensible(case: Any, data: st.DataObject) -> None:
    """Put things that exist into a request that fits its description."""
    for part in (case.body, case.query):
        if isinstance(part, dict):
            for name in list(part):
                if name in SENSIBLE:
                    part[name] = data.draw(SENSIBLE[name], label=name)


class Fuzzer:
    """Asks every question in every mode, and counts how often each status was the answer."""

    def __init__(self, home: str) -> None:
        self.schema = schemathesis.openapi.from_url(f"{home}/api/openapi.json")
        self.line = requests.Session()
        self.statuses: Counter[int] = Counter()

    def run(self, examples: int, derandomize: bool) -> Counter[int]:
        for operation in (found.ok() for found in self.schema.get_all_operations()):
            says = bool(operation.body or list(operation.iter_parameters()))
            self.ask(operation, GenerationMode.POSITIVE, False, examples, derandomize)
            if says:  # a question without anything to say cannot be asked wrongly
                self.ask(operation, GenerationMode.POSITIVE, True, examples, derandomize)
                self.ask(operation, GenerationMode.NEGATIVE, False, examples, derandomize)
        return self.statuses

    def ask(
        self, operation: Any, mode: GenerationMode, about_something: bool, count: int, same: bool
    ) -> None:
        @settings(
            max_examples=count,
            deadline=None,
            derandomize=same,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def once(case: Any, data: st.DataObject) -> None:
            if about_something:
                sensible(case, data)
            answer = case.call(session=self.line, timeout=30)
            self.statuses[answer.status_code] += 1
            too_large = answer.status_code == 413  # is a refusal, too, though the last check does not know it
            case.validate_response(answer, checks=CHECKS[:-1] if too_large else CHECKS)
            if answer.status_code != 200:
                told = answer.json()
                assert list(told) == ["error"], told
                assert told["error"].endswith((".", "?")), told

        once()


def assert_still_there(home: str) -> None:
    begun = time.perf_counter()
    answer = httpx.post(f"{home}/api/run", json={"text": TEXTS[0]}, timeout=10)
    assert answer.status_code == 200
    assert time.perf_counter() - begun < 5


def test_some_hundred_requests(home: str) -> None:
    statuses = Fuzzer(home).run(examples=9, derandomize=True)
    assert sum(statuses.values()) >= 300
    assert statuses[200] >= 40  # some get as far as an answer,
    assert statuses[400] >= 20  # some to a sentence of a view,
    assert statuses[422] >= 40  # and some no further than the description
    assert_still_there(home)


@pytest.mark.slow
def test_ten_thousand_requests(home: str) -> None:
    statuses = Fuzzer(home).run(examples=290, derandomize=False)
    print(dict(sorted(statuses.items())))
    assert sum(statuses.values()) >= 10_000
    assert_still_there(home)
