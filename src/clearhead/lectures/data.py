"""The worked examples of the lectures as data: inputs, printed numbers, and what is wrong with them.

Deck codes: T9 attention tutorial, L13 Transformer architecture, L9 Transformers
continued, L7 models: Transformer, L3 Transformers for business analytics. The
printed numbers stand here as the slides print them, mistakes included, and as
strings where a number would lose a printed zero ("0.50"); nothing is computed in
this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Source:
    """One example as a slide gives it."""

    deck: str
    title: str
    about: str
    inputs: Mapping[str, Any]
    printed: Mapping[str, Any] = field(default_factory=dict)
    erratum: str | None = None  # what the slide has wrong, and what is right


SOURCES: dict[str, Source] = {
    "tutorial-self-attention": Source(
        deck="T9 Q1",
        title="Self-attention on three tokens, by hand",
        about="Tokens are the columns of X; each column of S holds one token's weights, and H = V S.",
        inputs={
            "X": [[1, 0, 1], [0, 1, 1]],
            "W_Q": [[1, 0], [1, 1]],
            "W_K": [[1, 0], [0, 1]],
            "W_V": [[1, 1], [0, 1]],
        },
        printed={
            "Q": [[1, 0, 1], [1, 1, 2]],
            "K": [[1, 0, 1], [0, 1, 1]],
            "V": [[1, 1, 2], [0, 1, 1]],
            "S": [[0.248, 0, 0.14], [0.248, 0.5, 0.284], [0.503, 0.5, 0.576]],
            "H": [[1.502, 1.5, 1.576], [0.751, 1, 0.86]],
        },
        erratum="Token 2 scores 0 with token 1, and exp(0) is 1, not 0: its weights are 0.198, 0.401, 0.401 "
        "and its output is 1.401, 0.802.",
    ),
    "projection-parameters": Source(
        deck="T9 Q1d",
        title="How many parameters project",
        about="W_Q, W_K and W_V take an input of 512 features to queries, keys and values of 64.",
        inputs={"d_in": 512, "d_k": 64},
        printed={"parameters": 98304},
    ),
    "projections": Source(
        deck="L13",
        title="Queries, keys and values of five tokens",
        about="The same tokens, seen through three matrices.",
        inputs={
            "X": [[1.0, 0.5, 0.2], [0.3, 1.2, 0.8], [0.7, 0.4, 1.1], [1.5, 0.9, 0.3], [0.6, 1.3, 0.7]],
            "W_Q": [[1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]],
            "W_K": [[0.8, 0.2, 0.3], [0.3, 0.9, 0.1], [0.2, 0.1, 0.8]],
            "W_V": [[1.0, 0.3, 0.2], [0.2, 1.0, 0.4], [0.1, 0.3, 1.0]],
        },
        printed={
            "Q": [
                [1.1, 0.6, 0.7],
                [1.14, 0.95, 0.95],
                [1.25, 0.9, 1.45],
                [1.95, 0.9, 1.05],
                [1.31, 1.3, 1.0],
            ],
            "K": [
                [1.01, 0.47, 0.46],
                [0.64, 1.29, 0.26],
                [0.98, 0.63, 1.09],
                [1.53, 1.14, 0.69],
                [1.01, 1.29, 0.74],
            ],
            "V": [
                [1.12, 0.56, 0.54],
                [0.62, 1.41, 1.12],
                [0.89, 0.74, 1.4],
                [1.71, 1.02, 0.9],
                [0.89, 1.49, 1.22],
            ],
        },
        erratum="Most printed entries are not what the printed matrices give: the first query is "
        "1.25, 0.6, 0.7 and not 1.1, 0.6, 0.7.",
    ),
    "self-attention-steps": Source(
        deck="L13",
        title="Self-attention step by step",
        about="W_Q, W_K and W_V are the identity, so each token is its own query, key and value; d_k = 3.",
        inputs={
            "X": [[1.0, 0.5, 0.2], [0.8, 1.2, 0.3], [0.6, 0.9, 1.1], [1.1, 0.4, 0.7], [0.9, 0.7, 0.8]],
        },
        printed={
            "scores": [
                [1.29, 1.46, 1.48, 1.35, 1.41],
                [1.46, 2.17, 1.89, 1.61, 1.69],
                [1.48, 1.89, 2.38, 1.69, 1.91],
                [1.35, 1.61, 1.69, 1.66, 1.63],
                [1.41, 1.69, 1.91, 1.63, 1.94],
            ],
            "scaled": [
                [0.74, 0.84, 0.85, 0.78, 0.81],
                [0.84, 1.25, 1.09, 0.93, 0.98],
                [0.85, 1.09, 1.37, 0.98, 1.1],
                [0.78, 0.93, 0.98, 0.96, 0.94],
                [0.81, 0.98, 1.1, 0.94, 1.12],
            ],
            "weights": [
                [0.182, 0.204, 0.207, 0.192, 0.198],
                [0.17, 0.279, 0.222, 0.173, 0.186],
                [0.162, 0.206, 0.272, 0.184, 0.208],
                [0.188, 0.213, 0.224, 0.219, 0.215],
                [0.178, 0.212, 0.239, 0.204, 0.244],
            ],
            "output": [
                [0.87, 0.74, 0.59],
                [0.83, 0.88, 0.58],
                [0.83, 0.78, 0.68],
                [0.88, 0.73, 0.63],
                [0.84, 0.78, 0.7],
            ],
        },
        erratum="Several scores are not the dot products of the printed vectors (tokens 1 and 3 give 1.27, "
        "not 1.48); the printed rows of weights add up to 0.983, 1.030, 1.032, 1.059 and 1.077 and not to "
        "1; token 1 attends most to token 2 (0.210), not to 3, and least to token 3 (0.1882), not to "
        "itself (0.1903).",
    ),
    "attention-matrix-operations": Source(
        deck="L13",
        title="Attention as three matrix operations",
        about="Q, K and V are given: products, a softmax of the products over √3, and the mix of the values.",
        inputs={
            "Q": [[0.6, 0.4, 0.5], [0.3, 0.7, 0.2], [0.5, 0.3, 0.6], [0.4, 0.8, 0.3], [0.7, 0.2, 0.4]],
            "K": [[0.4, 0.6, 0.3], [0.5, 0.4, 0.7], [0.3, 0.5, 0.4], [0.6, 0.3, 0.5], [0.2, 0.7, 0.6]],
            "V": [[0.7, 0.3, 0.5], [0.4, 0.6, 0.2], [0.6, 0.4, 0.7], [0.5, 0.7, 0.3], [0.3, 0.5, 0.8]],
        },
        printed={
            "scores": [
                [0.67, 0.71, 0.58, 0.69, 0.64],
                [0.52, 0.49, 0.44, 0.51, 0.53],
                [0.61, 0.67, 0.54, 0.63, 0.56],
                [0.68, 0.73, 0.59, 0.69, 0.7],
                [0.5, 0.58, 0.48, 0.55, 0.48],
            ],
            "weights": [
                [0.189, 0.204, 0.176, 0.201, 0.19],
                [0.203, 0.199, 0.192, 0.201, 0.205],
                [0.194, 0.205, 0.188, 0.199, 0.194],
                [0.197, 0.208, 0.185, 0.197, 0.203],
                [0.196, 0.208, 0.189, 0.201, 0.196],
            ],
            "output": [["0.50", "0.50", "0.50"]] * 5,
        },
        erratum="Most scores are not the products of the printed rows, and four of the five printed rows of "
        "weights do not add up to 1 (0.960, 1.000, 0.980, 0.990, 0.990). The output is printed to two "
        "decimals, 0.50 everywhere, and six of its fifteen entries differ: 0.49 in column 3 of rows 1, 3 "
        "and 5 and in column 1 of row 3, 0.51 in column 2 of rows 3 and 5. It does not follow from the "
        "printed weights either: times V, they miss 0.50 in ten entries.",
    ),
    "sinusoidal-positions": Source(
        deck="L13",
        title="Sinusoidal positions, added to the embeddings",
        about="Eight tokens of four features: two waves, the second a hundred times slower than the first.",
        inputs={
            "X": [
                [0.5, -0.3, 0.8, -0.2],
                [-0.1, 0.7, 0.2, 0.4],
                [0.9, -0.5, -0.3, 0.6],
                [0.3, 0.4, -0.7, 0.1],
                [-0.6, 0.2, 0.5, -0.4],
                [0.7, -0.8, 0.1, 0.3],
                [-0.2, 0.6, -0.4, 0.8],
                [0.4, -0.1, 0.9, -0.5],
            ],
        },
        printed={
            "PE": [
                [0, 1, 0, 1],
                [0.84, 0.54, 0.01, 1],
                [0.91, -0.42, 0.02, 1],
                [0.14, -0.99, 0.03, 1],
                [-0.76, -0.66, 0.04, 1],
                [-0.96, 0.28, 0.05, 1],
                [-0.28, 0.96, 0.06, 1],
                [0.66, 0.75, 0.07, 0.99],
            ],
            "sum": [
                [0.5, 0.7, 0.8, 0.8],
                [0.74, 1.24, 0.21, 1.4],
                [1.81, -0.92, -0.28, 1.6],
                [0.44, -0.59, -0.67, 1.1],
                [-1.36, -0.46, 0.54, 0.6],
                [-0.26, -0.52, 0.15, 1.3],
                [-0.48, 1.56, -0.34, 1.8],
                [1.06, 0.65, 0.97, 0.49],
            ],
        },
        erratum="Rounding only: cos 4 is −0.654 and not −0.66, and the last cosine, 0.998, was cut to 0.99.",
    ),
    "masked-attention-quiz": Source(
        deck="L9",
        title="A quiz on the causal mask",
        about="The scaled scores are given: how much does the second token look at itself?",
        inputs={"scores": [[1, 0, -1, -1], [1, 1, -1, 0], [0, 1, 1, -1], [-1, -1, 2, 1]]},
        printed={"alpha_2_2": 0.5},
    ),
    "masked-self-attention": Source(
        deck="L3",
        title="“I am a student” behind a look-ahead mask",
        about="What lies ahead gets −∞ before the softmax, and so weight 0.",
        inputs={
            "words": ["I", "am", "a", "student"],
            "scores": [
                [0.7, 0.1, 0.1, 0.1],
                [0.1, 0.6, 0.2, 0.1],
                [0.1, 0.3, 0.6, 0.1],
                [0.1, 0.3, 0.3, 0.3],
            ],
        },
        printed={
            "weights": [[1, 0, 0, 0], [0.37, 0.62, 0, 0], [0.26, 0.3, 0.43, 0], [0.21, 0.26, 0.26, 0.26]]
        },
        erratum="The rounding is mixed: 0.3775 is cut to 0.37, while 0.2584 and 0.4260 are rounded to 0.26 "
        "and 0.43, and 0.3156 stands as 0.3, which is right to one decimal and neither 0.31 (cut) nor 0.32 "
        "(rounded) to two. The printed rows add up to 1, 0.99, 0.99 and 0.99.",
    ),
    "contextual-apple": Source(
        deck="L3",
        title="“Apple” near “fruit” and near “brand”",
        about="Words mix in proportion to their similarity: apple's is 1 with itself, 0.25 with fruit, 0.11 "
        "with brand and 0 with the other words.",
        inputs={
            # the vectors of the other words are not given
            "words": {
                "fruit": ["my", "favourite", "fruit", "is", "apple"],
                "brand": ["my", "favourite", "brand", "is", "apple"],
            },
            "similarity": {"fruit": [0, 0, 0.25, 0, 1], "brand": [0, 0, 0.11, 0, 1]},
            "apple": [5, 7],
            "fruit": [0, 8],
            "brand": [6, 0],
        },
        printed={"apple_fruit": [4.0, 7.2], "apple_brand": [5.1, 6.3]},
        erratum="The numbers are right, the word for them is not: the slide says softmax and divides by the "
        "row's sum; a softmax of that row gives apple 0.388 and fruit 0.183.",
    ),
    "dot-product-growth": Source(
        deck="L7",
        title="Why scores are divided by √d",
        about="The more features two vectors have, the larger their dot product grows.",
        inputs={"pairs": [([1, 2], [2, 3]), ([1, 2, 1], [2, 3, 4]), ([1, 2, 1, 1], [2, 3, 4, 8])]},
        printed={"dots": [8, 12, 20]},
    ),
    "keras-layer": Source(
        deck="L3",
        title="The general-purpose layer, as Keras has it",
        about="Width 16, 3 heads, key_dim 2: the head size need not be the width divided by the heads.",
        inputs={"width": 16, "heads": 3, "key_dim": 2, "tokens": 6},
        printed={
            "shapes": [(16, 3, 2), (3, 2), (16, 3, 2), (3, 2), (16, 3, 2), (3, 2), (3, 2, 16), (16,)],
        },
    ),
    "rotary-distance": Source(
        deck="L7",
        title="“Chocolate is delicious” scores the same wherever it stands",
        about="Rotary positions turn queries and keys by their position, so a score depends on distance "
        "alone. The word vectors are made up.",
        inputs={
            "words": ["chocolate", "is", "delicious"],
            "X": [[1.0, 0.5, 0.0, 1.0], [0.0, 1.0, 0.5, 0.5], [1.0, 0.0, 1.0, 0.5]],
            "starts": (0, 7),
        },
    ),
}
