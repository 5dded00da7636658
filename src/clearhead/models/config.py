"""The settings of a model: its family, its size, and its options.

One config describes every family; the settings of each part are in its own config
(`attention`, `feedforward`, …), next to its code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from clearhead.base.config import Bounds, Config, Count, CountOrZero, Share
from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig
from clearhead.nn.initialise import InitialisationName
from clearhead.nn.layers import EmbeddingConfig, FeedForwardConfig, NormConfig
from clearhead.nn.parts import AnyAttention, AnyFeedForward
from clearhead.nn.positions import PositionConfig

# at most 2,000, twice the deepest published: a typo should not start a build that never ends
Layers = Annotated[int, Bounds(1, 2000)]

# Parts that can be removed: the families that have them, and their names.
_HAVE = {
    "residual": ("encoder-decoder", "encoder", "decoder", "vision"),
    "cross_attention": ("encoder-decoder",),
    "causal_mask": ("encoder-decoder", "decoder"),
}
_NAMES = {
    "residual": "residual connections",
    "cross_attention": "cross-attention",
    "causal_mask": "causal mask",
    "norm": "norms",
}

Family = Literal["encoder-decoder", "encoder", "decoder", "vision", "recurrent", "convolutional"]
NO_TRANSFORMERS = ("recurrent", "convolutional")  # ignore attention, feedforward and norm settings


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """The head on top of an encoder, or of a decoder instead of its vocabulary.

    - `none`: hidden states and, with a pooler, one vector for the text; a decoder writes;
    - `classify`: scores over classes for the whole text;
    - `number`: one number for the whole text (regression);
    - `tag`: scores over classes for each token;
    - `mlm`: scores over the vocabulary for each token (masked language modelling).
    """

    _noun: ClassVar[str] = "head"

    kind: Literal["none", "classify", "number", "tag", "mlm"] = "none"
    classes: Count = 2
    columns: tuple[Count, ...] = ()  # tag: with several tags per word, the number of classes of each
    # the text's vector: its first token, the mean, or its last token (in a decoder it has read all)
    pooling: Literal["first", "mean", "last"] = "first"
    pooler: bool = False  # BERT's dense layer with tanh on the pooled vector
    transform: bool = True  # mlm: BERT's dense layer, activation and norm before the vocabulary
    dropout: Share = 0.1  # before the classifier

    @property
    def of_text(self) -> bool:
        """Whether the head gives one result for a whole text."""
        return self.kind in ("classify", "number")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns and (self.kind != "tag" or sum(self.columns) != self.classes):
            raise UserError(
                f"head.columns={list(self.columns)} must be numbers of tags that add up to head.classes="
                f"{self.classes}, with head.kind=tag."
            )

    def refuse_unfit(self, family: str) -> None:
        """Raise an error for a head that makes no sense on this family."""
        if self.kind == "none" or family in ("encoder", "vision"):
            return
        if family in NO_TRANSFORMERS or not self.of_text:
            raise UserError(
                f"head.kind={self.kind} cannot be used with the family '{family}': use "
                + ("an encoder." if self.of_text else "an encoder, whose tokens see the text on both sides.")
            )
        if self.pooling == "first":
            raise UserError(
                f"head.pooling=first cannot be used with the family '{family}', whose first token has not "
                "read the rest of the text: set head.pooling=last."
            )


@dataclass(frozen=True, kw_only=True)
class ImageConfig(Config):
    """The front end of a vision model: an image cut into square patches, each one a token."""

    _noun: ClassVar[str] = "image"

    size: Count = 224
    patch: Count = 16
    channels: Count = 3
    class_token: bool = True  # a learned first token that represents the image

    @property
    def tokens(self) -> int:
        """Patches, and the class token."""
        return (self.size // self.patch) ** 2 + int(self.class_token)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Config):
    """The recurrent encoder-decoder that the Transformer replaced, with attention or without."""

    _noun: ClassVar[str] = "recurrent"

    cell: Literal["rnn", "gru", "lstm"] = "gru"  # rnn: s ← tanh(W x + U s), without gates
    # none: the decoder sees only the encoder's last state
    attention: Literal["additive", "bilinear", "dot", "none"] = "additive"
    bidirectional: bool = True  # the encoder reads in both directions


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(Config):
    """The convolutional encoder-decoder (Gehring et al. 2017): how many tokens one convolution reads."""

    _noun: ClassVar[str] = "convolution"

    kernel: Count = 3  # in the encoder; an odd number, so that it reads as far ahead as back
    decoder_kernel: Count | None = None  # in the decoder, which only reads back; None: as the encoder

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise UserError(
                f"convolution.kernel={self.kernel} is even and would shift the source by half a token: "
                f"set it to {self.kernel - 1} or {self.kernel + 1}."
            )

    @property
    def of_decoder(self) -> int:
        """The number of tokens that a convolution of the decoder reads."""
        return self.kernel if self.decoder_kernel is None else self.decoder_kernel


@dataclass(frozen=True, kw_only=True)
class LayerRule(Config):
    """Parts that some layers have instead of the model's: `attention`, `cross_attention`, `feedforward`,
    with the settings of the tables above; None leaves a part unchanged.

    It is about layers `first`, `first + every`, … up to `last`, counted from 0 in each stack. So
    `{first: 3, feedforward: {…}}` changes all but the first three, and `{first: 1, every: 2, attention: {…}}`
    every second one.
    """

    _noun: ClassVar[str] = "layer pattern"

    stack: Literal["both", "encoder", "decoder"] = "both"
    first: CountOrZero = 0  # the first layer that the rule applies to, counted from 0 in each stack
    every: Count = 1  # 1: every layer from there, 2: every second one
    last: CountOrZero | None = None  # the last layer that it may apply to; None: to the end
    attention: AnyAttention | None = None
    cross_attention: AnyAttention | None = None  # None: as `attention`, unless another rule gives it
    feedforward: AnyFeedForward | None = None

    def means(self, stack: str, layer: int) -> bool:
        """Whether the rule applies to this layer."""
        inside = self.first <= layer and (self.last is None or layer <= self.last)
        return self.stack in ("both", stack) and inside and (layer - self.first) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The config of a model: `clearhead.build` builds it, and a bundle stores it as JSON.

    >>> import clearhead
    >>> config = clearhead.ModelConfig(vocabulary=1000, width=64, layers=2, attention={"heads": 4})
    Traceback (most recent call last):
    ...
    clearhead.base.errors.UserError: 'attention' must be an AttentionConfig; for plain data use from_dict.
    >>> config = clearhead.ModelConfig.from_dict({"vocabulary": 1000, "width": 64, "attention": {"heads": 4}})
    >>> config.replace(attention__heads=2).attention.heads
    2
    """

    _noun: ClassVar[str] = "model"

    family: Family = "encoder-decoder"
    vocabulary: Count = 32_000  # vocabulary of the target, or the only one; ignored by vision models
    source_vocabulary: Count | None = None  # a separate vocabulary for the source; None: one for both
    width: Count = 512
    layers: Layers = 6  # layers of the encoder, or of the only stack
    decoder_layers: Layers | None = None  # None: as the encoder
    dropout: Share = 0.1  # on what each sub-layer adds
    attention: AnyAttention = field(default_factory=AttentionConfig)
    feedforward: AnyFeedForward = field(default_factory=FeedForwardConfig)
    residual: bool = True  # false: a sub-layer's output replaces its input instead of being added to it
    cross_attention: bool = True  # false: the decoder of an encoder-decoder never sees the source
    # false: target tokens also see those after them, and so in training the one that they must predict
    causal_mask: bool = True
    layer_pattern: tuple[LayerRule, ...] = ()  # parts that differ by layer; the last rule for a layer holds
    position: PositionConfig = field(default_factory=PositionConfig)
    norm: NormConfig = field(default_factory=NormConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    image: ImageConfig = field(default_factory=ImageConfig)
    recurrent: RecurrentConfig = field(default_factory=RecurrentConfig)
    convolution: ConvolutionConfig = field(default_factory=ConvolutionConfig)
    initialisation: InitialisationName = "xavier"

    def __post_init__(self) -> None:
        for name, one in type(self).__dataclass_fields__.items():
            kind = one.default_factory  # the class of a part's settings
            if isinstance(kind, type) and not isinstance(getattr(self, name), kind):
                raise UserError(f"'{name}' must be an {kind.__name__}; for plain data use from_dict.")
        super().__post_init__()
        if self.family == "vision" and self.image.size % self.image.patch:
            raise UserError(
                f"An image of {self.image.size} pixels does not divide into patches of {self.image.patch}."
            )
        self.head.refuse_unfit(self.family)
        if self.family == "convolutional" and self.position.name not in ("none", "sinusoidal", "learned"):
            raise UserError(
                f"The position scheme '{self.position.name}' acts inside self-attention, and a convolutional "
                f"model has none: set position.name=sinusoidal, learned or none."
            )
        self._refuse_idle()
        for attention in self.attentions:
            self._check_attention(attention)
        for number, rule in enumerate(self.layer_pattern):
            if not self._has_layers_for(rule):
                raise UserError(
                    f"layer_pattern[{number}] matches no layer of this model: layers are counted from 0, and "
                    f"it begins with layer {rule.first}. Correct or remove it."
                )

    @property
    def attentions(self) -> list[AttentionConfig]:
        """The settings of every attention that a layer may have."""
        rules = [one for rule in self.layer_pattern for one in (rule.attention, rule.cross_attention)]
        return [self.attention, *(one for one in rules if one is not None)]

    @cached_property
    def source_limit(self) -> int | None:
        """The longest source in tokens, or the longest text of a model that reads only one; None: any length.

        Learned positions limit it, and attention with a `max_length`.
        """
        return self._limit("decoder" if self.family == "decoder" else "encoder")

    @cached_property
    def target_limit(self) -> int | None:
        """The longest target in tokens, or the longest text of a model that reads only one."""
        return self._limit("encoder" if self.family in ("encoder", "vision") else "decoder")

    @cached_property
    def text_limit(self) -> int | None:
        """The longest text in tokens on either side."""
        known = [one for one in (self.source_limit, self.target_limit) if one is not None]
        return min(known, default=None)

    def _limit(self, stack: str) -> int | None:
        if self.family == "recurrent":
            return None
        found = [self.position.max_length] if self.position.name == "learned" else []
        depth = (
            self.depth_of_decoder if (stack, self.family) == ("decoder", "encoder-decoder") else self.layers
        )
        for layer in range(0 if self.family in NO_TRANSFORMERS else depth):
            attention = self.parts_of(stack, layer)[0]
            found += [attention.max_length] if hasattr(attention, "max_length") else []
        return min(found, default=None)

    def _refuse_idle(self) -> None:
        """Refuse to remove parts from a family that does not have them."""
        for name, families in _HAVE.items():
            if not getattr(self, name) and self.family not in families:
                known = " or ".join(f"'{family}'" for family in families)
                raise UserError(
                    f"{name}=false is for the family {known}, not for '{self.family}': leave it out."
                )

    def _check_attention(self, attention: AttentionConfig) -> None:
        if attention.width not in (None, self.width):
            raise UserError(
                f"attention.width={attention.width} contradicts the model's width={self.width}: leave it out."
            )
        if attention.memory_width not in (None, self.width):
            raise UserError(
                f"attention.memory_width={attention.memory_width} contradicts the model's "
                f"width={self.width}, which every layer reads: leave it out."
            )
        if self.family not in NO_TRANSFORMERS:
            attention.replace(width=self.width)  # refuses a width the heads do not divide

    def _has_layers_for(self, rule: LayerRule) -> bool:
        depths = {"encoder": self.layers, "decoder": self.depth_of_decoder}
        if self.family in ("encoder", "vision"):
            del depths["decoder"]
        elif self.family == "decoder":
            depths = {"decoder": self.layers}
        elif self.family in NO_TRANSFORMERS:
            depths = {}
        return any(rule.means(stack, layer) for stack, depth in depths.items() for layer in range(depth))

    def parts_of(self, stack: str, layer: int) -> tuple[AttentionConfig, AttentionConfig, FeedForwardConfig]:
        """Self-attention, cross-attention and feed-forward of layer 0, 1, … of an "encoder" or "decoder"."""
        attention, feedforward = self.attention, self.feedforward
        cross: AttentionConfig | None = None  # what a rule says; else it follows self-attention
        for rule in self.layer_pattern:
            if rule.means(stack, layer):
                attention = rule.attention or attention
                cross = rule.cross_attention or cross
                feedforward = rule.feedforward or feedforward
        wide = [one.replace(width=self.width) for one in (attention, cross or attention)]
        return wide[0], wide[1], feedforward

    @property
    def unusual_parts(self) -> str | None:
        """What a model has besides multi-head attention and dense feed-forwards, all alike, and one label.

        For callers that read only these two settings and would be wrong about such a model.
        """
        for kind in (self.attention.kind, self.feedforward.kind):
            if kind not in ("multihead", "dense"):
                return f"parts of the kind '{kind}'"
        if self.head.columns:
            return "several tags per word"
        if self.taken_out:
            return f"no {self.taken_out[0]}"
        return "a layer pattern" if self.layer_pattern else None

    @property
    def taken_out(self) -> list[str]:
        """The parts of a Transformer that this one does without, by name."""
        out = [name for name in _HAVE if getattr(self, name) is False]
        return [_NAMES[name] for name in (*out, *(["norm"] if self.norm.kind == "none" else []))]

    @property
    def depth_of_decoder(self) -> int:
        """Layers of the decoder of an encoder-decoder."""
        return self.layers if self.decoder_layers is None else self.decoder_layers
