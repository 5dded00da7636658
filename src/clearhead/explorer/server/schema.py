"""What the page may ask, field by field: types are strict, numbers bounded, unknown fields refused.

The views check what depends on the model (whether such a layer exists, how many tokens a text has).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from clearhead.explorer.running import MOST_BEAM

MOST_LETTERS = 20_000
MOST_TOKENS = 512


Text = Annotated[str, Field(max_length=MOST_LETTERS)]  # of a larger picture: its name
Name = Annotated[str, Field(max_length=200)]
Index = Annotated[int, Field(ge=0, le=100_000)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
Kind = Literal["encoder.self", "decoder.self", "decoder.cross"]


class Ask(BaseModel):
    """The fields of every request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Name | None = Field(None, description="The name of a model; without it, the first.")


class Pair(Ask):
    """A text, and the target to assume; without one, the model's own output."""

    text: Text
    target: Text | None = None


class Run(Ask):
    """A text to write for, and how."""

    text: Text
    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=10_000_000, description="0: all tokens.")] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency: Penalty = 0.0
    presence: Penalty = 0.0
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    max_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    beam: Annotated[int, Field(ge=2, le=MOST_BEAM)] = 4
    shown: Annotated[int, Field(ge=1, le=100)] = 10


class Verdict(Ask):
    """A text to be labelled."""

    text: Text


class Tensor(Pair):
    """One tensor by name; if it has heads, one of them."""

    name: Name
    head: Index | None = None


class Head(Pair):
    """One head of one layer."""

    kind: Kind
    layer: Index
    head: Index


class Summary(Pair):
    """Many heads as one map."""

    kind: Kind
    how: Literal["mean", "rollout", "alignment"]
    layer: Index | None = None


class Classes(Ask):
    """Attention by the class of the attended tokens; without a text, over the model's example sentences."""

    text: Text | None = None
    target: Text | None = None


class Evidence(Head):
    """What one row of one head's map explains."""

    row: Index


class Positions(Ask):
    """Schemes of positions by name; none: the model's own."""

    schemes: Annotated[list[Name], Field(max_length=4)] = []
    length: Annotated[int, Field(ge=2, le=MOST_TOKENS)] = 64
    width: Annotated[int, Field(ge=2, le=1024)] | None = None


class Contexts(Ask):
    """One word in several sentences."""

    word: Name
    sentences: Annotated[list[Text], Field(min_length=2, max_length=12)]


class Problem(BaseModel):
    """Why a request was not answered, in a sentence."""

    error: str
