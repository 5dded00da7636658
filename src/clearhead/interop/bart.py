"""BART: Marian's layers with learned positions and a norm on the embeddings.

What is special: the tables of positions begin with two rows that nothing reads;
encoder and decoder have positions and an embedding norm of their own.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family
from clearhead.interop.mapping import Names, Row, linear, without_first_rows
from clearhead.interop.marian import layer_rows, output_rows, read_stacks, shared_copies, write_stacks
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_UNUSED_POSITIONS = 2


def rows(config: ModelConfig) -> list[Row]:
    """BART's table."""
    result = [Row("model.shared.weight", "source_embedding.table.weight")]
    for theirs, ours in (("model.encoder", "source_embedding"), ("model.decoder", "target_embedding")):
        positions = without_first_rows(_UNUSED_POSITIONS)
        result.append(Row(f"{theirs}.embed_positions.weight", f"{ours}.position.table", positions))
        result += linear(f"{theirs}.layernorm_embedding", f"{ours}.norm")
    return [
        *result,
        *layer_rows("model.encoder", "encoder", cross=False),
        *layer_rows("model.decoder", "decoder", cross=True),
        *output_rows(config),
    ]


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"static_position_embeddings": False, "normalize_embedding": True})
    plain = read_stacks(settings, {"name": "learned"})
    plain["vocabulary"] = settings.whole("vocab_size")
    plain["embedding"] |= {"norm": True, "output_bias": "final_logits_bias" in names}
    return ModelConfig.from_dict(plain)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    return write_stacks(config) | {"vocab_size": config.vocabulary}


FAMILY = Family(
    model_type="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    prefix="model.",
    read=read,
    write=write,
    architecture=lambda config: "BartForConditionalGeneration",
    rows=rows,
    copies=shared_copies,
    ignored=("model.encoder.version", "model.decoder.version"),
    training_only=("encoder_layerdrop", "decoder_layerdrop"),
)
