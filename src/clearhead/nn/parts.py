"""The parts of a layer, by the kind that their config names.

An attention needs `forward(x, memory, *, mask, queries, keys, state, memo, look)`, `new_state()` for its
decoding state, and `new_memory()` if it can attend to a source; a feed-forward needs `forward(x)`. Either has
its `config`, and may name its `residual_weights()`, which some initialisations shrink, and those that hold a
matrix for each of several nets, `stacked_weights()`. It may set `gives_extras = True`: then a feed-forward
also gets the `tokens` it works on, because padding must not enter a loss, and in training either gets
`extras`. An attention that cannot hide the future sets `may_be_causal = False`, and names the setting that
makes it so in `sees_ahead` if there is one.

To add your own kind, write its config (a subclass of the multi-head or the dense one with another `kind`),
its class, and its costs: one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from clearhead.base.config import Config, Kinds
from clearhead.base.errors import UserError, nearest
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.compressed import CompressedAttention, CompressedConfig
from clearhead.nn.attention.compressed_costs import COMPRESSED
from clearhead.nn.attention.latent import LatentAttention, LatentConfig
from clearhead.nn.attention.latent_costs import LATENT
from clearhead.nn.attention.linear import LinearAttention, LinearConfig
from clearhead.nn.attention.linear_costs import LINEAR
from clearhead.nn.attention.linformer import LinformerAttention, LinformerConfig
from clearhead.nn.attention.linformer_costs import LINFORMER
from clearhead.nn.attention.nystrom import NystromAttention, NystromConfig
from clearhead.nn.attention.nystrom_costs import NYSTROM
from clearhead.nn.attention.performer import PerformerAttention, PerformerConfig
from clearhead.nn.attention.reformer import ReformerAttention, ReformerConfig
from clearhead.nn.attention.reformer_costs import REFORMER
from clearhead.nn.attention.sparse import SparseAttention, SparseConfig
from clearhead.nn.attention.sparse_costs import SPARSE
from clearhead.nn.costs import DENSE, MULTIHEAD, NOTHING, Costs
from clearhead.nn.expert_costs import EXPERTS
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.nn.layers import FeedForward, FeedForwardConfig
from clearhead.nn.positions import Position


@dataclass(frozen=True, kw_only=True)
class NoFeedForwardConfig(FeedForwardConfig):
    """Layers without a feed-forward net: attention only, for comparison. The other settings are ignored."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True)
class Kind:
    """One row: the settings of a kind of part, how to build it from them, and its costs."""

    config: type[Config]
    # attention: (config, position); feed-forward: (width, config), or None without one
    build: Callable[..., nn.Module | None]
    costs: Costs


ATTENTIONS: dict[str, Kind] = {
    "multihead": Kind(AttentionConfig, MultiHeadAttention, MULTIHEAD),
    "latent": Kind(LatentConfig, LatentAttention, LATENT),
    "linear": Kind(LinearConfig, LinearAttention, LINEAR),
    "performer": Kind(PerformerConfig, PerformerAttention, LINEAR),
    "linformer": Kind(LinformerConfig, LinformerAttention, LINFORMER),
    "nystrom": Kind(NystromConfig, NystromAttention, NYSTROM),
    "reformer": Kind(ReformerConfig, ReformerAttention, REFORMER),
    "sparse": Kind(SparseConfig, SparseAttention, SPARSE),
    "compressed": Kind(CompressedConfig, CompressedAttention, COMPRESSED),
}
FEEDFORWARDS: dict[str, Kind] = {
    "dense": Kind(FeedForwardConfig, FeedForward, DENSE),
    "experts": Kind(ExpertsConfig, Experts, EXPERTS),
    "none": Kind(NoFeedForwardConfig, lambda width, config: None, NOTHING),
}


def _row(kinds: Mapping[str, Kind], what: str, name: str) -> Kind:
    if name not in kinds:
        raise UserError(f"There is no kind of {what} '{name}': {nearest(name, kinds)}")
    return kinds[name]


def attention_kind(name: str) -> Kind:
    """The row of an attention."""
    return _row(ATTENTIONS, "attention", name)


def feedforward_kind(name: str) -> Kind:
    """The row of a feed-forward."""
    return _row(FEEDFORWARDS, "feed-forward", name)


# Settings whose `kind` determines the other settings.
AnyAttention = Annotated[AttentionConfig, Kinds(lambda name: attention_kind(name).config)]
AnyFeedForward = Annotated[FeedForwardConfig, Kinds(lambda name: feedforward_kind(name).config)]


def build_attention(config: AttentionConfig, position: Position | None = None, causal: bool = False) -> Any:
    """The attention that a config names; cross-attention has no position scheme."""
    part = attention_kind(config.kind).build(config, position)
    if position is None and not hasattr(part, "new_memory"):
        raise UserError(
            f"Attention of the kind '{config.kind}' cannot be used as cross-attention: set "
            "cross_attention to another kind in layer_pattern."
        )
    if causal and not getattr(part, "may_be_causal", True):
        what = getattr(part, "sees_ahead", f"Attention of the kind '{config.kind}'")
        raise UserError(
            f"{what} and a decoder cannot work together: it cannot mask later tokens. Use it in the encoder "
            "only, with a rule of layer_pattern with stack=encoder."
        )
    return part


def build_feedforward(config: FeedForwardConfig, width: int) -> Any:
    """The feed-forward that a config names; None: the layer has none."""
    return feedforward_kind(config.kind).build(width, config)
