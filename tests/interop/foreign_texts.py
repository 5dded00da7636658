"""Small models of theirs with real tokenizers, learned from a few lines: one folder for each family.

Weights are random, so that what stands around a text changes what comes out at the first token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from .conftest import BERT, DEEPSEEK, DEEPSEEK_EXPERTS, GPT2, LLAMA, SEQ2SEQ, T5, randomise

CORPUS = [
    "the cat sleeps in the old house, and nobody hears it",
    "two dogs bark at the moon because the moon does not answer",
    "she said that nothing would change; everything did",
    "a small boat crossed the wide river before the rain",
] * 3
TEXTS = ["the cat hears the rain", "nobody answers", "Zebras 's , or not ?", "a boat, a river and two moons"]
SIZE = 120  # tokens of a vocabulary


def byte_level(special: list[str], processor: Any) -> tokenizers.Tokenizer:
    """GPT-2's and BART's kind."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.post_processor = processor(made)
    return made


def word_piece() -> tokenizers.Tokenizer:
    """BERT's kind."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False)
    )
    return made


def unigram(special: list[str]) -> tokenizers.Tokenizer:
    """T5's and Marian's kind."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=SIZE, special_tokens=special, unk_token="<unk>", show_progress=False
        ),
    )
    return made


def merged() -> tokenizers.Tokenizer:
    """Llama's kind."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    special = ["<unk>", "<s>", "</s>"]
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False)
    )
    return made


def template(single: str, pair: str, made: tokenizers.Tokenizer) -> Any:
    names = {piece.split(":")[0] for piece in pair.split() if not piece.startswith("$")}
    ids = [(name, made.token_to_id(name)) for name in sorted(names)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def bart() -> tokenizers.Tokenizer:
    def roberta(made: tokenizers.Tokenizer) -> Any:
        stop, start = ((name, made.token_to_id(name)) for name in ("</s>", "<s>"))
        return processors.RobertaProcessing(stop, start)

    return byte_level(["<s>", "<pad>", "</s>", "<unk>"], roberta)


def gpt2() -> tokenizers.Tokenizer:
    return byte_level(["<|endoftext|>"], lambda made: processors.ByteLevel(trim_offsets=False))


def t5() -> tokenizers.Tokenizer:
    made = unigram(["<pad>", "</s>", "<unk>"])
    made.post_processor = template("$A </s>", "$A </s> $B </s>", made)
    return made


def marian() -> tokenizers.Tokenizer:
    made = unigram(["</s>", "<unk>", "<pad>"])
    made.post_processor = template("$A </s>", "$A </s> $B </s>", made)
    return made


def llama() -> tokenizers.Tokenizer:
    made = merged()
    before = processors.ByteLevel(trim_offsets=False)  # does nothing here, and must not be in the way
    made.post_processor = processors.Sequence([before, template("<s> $A", "<s> $A <s>:1 $B:1", made)])
    return made


def bert() -> tokenizers.Tokenizer:
    made = word_piece()
    made.post_processor = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", made)
    return made


def old_bert() -> tokenizers.Tokenizer:
    made = word_piece()
    ids = {name: (name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")}
    made.post_processor = processors.BertProcessing(ids["[SEP]"], ids["[CLS]"])
    return made


@dataclass(frozen=True)
class Foreign:
    """A family: its class, its settings, its tokenizer, and how the tokenizer's settings name things."""

    name: str
    architecture: str
    settings: dict[str, Any]
    tokenizer: Callable[[], tokenizers.Tokenizer]
    roles: dict[str, str]
    ids: dict[str, str]  # settings that are ids of tokens → the token
    tokenizer_class: str = "PreTrainedTokenizerFast"
    more: dict[str, Any] = field(default_factory=dict)  # of tokenizer_config.json


_BERT_ROLES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
_BERT_IDS = {"pad_token_id": "[PAD]"}
_USUAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_PADDED = {**_USUAL, "pad_token": "<pad>"}
_TARGET = {"pad_token_id": "<pad>", "eos_token_id": "</s>"}

FAMILIES = [
    Foreign(
        "marian",
        "MarianMTModel",
        SEQ2SEQ | {"activation_function": "swish", "forced_eos_token_id": None},
        marian,
        {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        {**_TARGET, "decoder_start_token_id": "<pad>"},
    ),
    Foreign(
        "bart",
        "BartForConditionalGeneration",
        SEQ2SEQ | {"forced_eos_token_id": None},
        bart,
        _PADDED,
        {**_TARGET, "bos_token_id": "<s>", "decoder_start_token_id": "</s>"},
    ),
    Foreign(
        "t5",
        "T5ForConditionalGeneration",
        T5 | {"num_decoder_layers": 2},  # with unlike numbers of layers, some versions fail to generate
        t5,
        {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        {**_TARGET, "decoder_start_token_id": "<pad>"},
        "T5Tokenizer",
        more={"clean_up_tokenization_spaces": True},
    ),
    Foreign(
        "gpt2",
        "GPT2LMHeadModel",
        GPT2 | {"n_positions": 64},
        gpt2,
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"},
    ),
    Foreign(
        "llama", "LlamaForCausalLM", LLAMA, llama, _USUAL, {"bos_token_id": "<s>", "eos_token_id": "</s>"}
    ),
    Foreign(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        DEEPSEEK | DEEPSEEK_EXPERTS,
        llama,
        _USUAL,
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
    ),
    Foreign(
        "bert, classes",
        "BertForSequenceClassification",
        BERT,
        bert,
        _BERT_ROLES,
        _BERT_IDS,
        more={"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    ),
    Foreign(
        "bert, without segments",
        "BertForSequenceClassification",
        BERT,
        bert,
        _BERT_ROLES,
        _BERT_IDS,
        more={"model_input_names": ["input_ids", "attention_mask"]},
    ),
    Foreign(
        "bert, a number",
        "BertForSequenceClassification",
        BERT | {"num_labels": 1},
        bert,
        _BERT_ROLES,
        _BERT_IDS,
        more={"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    ),
    Foreign("bert, tags", "BertForTokenClassification", BERT, old_bert, _BERT_ROLES, _BERT_IDS),
    # the template is in the class alone
    Foreign(
        "bert, by its class",
        "BertForSequenceClassification",
        BERT,
        word_piece,
        _BERT_ROLES,
        _BERT_IDS,
        "BertTokenizer",
    ),
]


def save_foreign(transformers: Any, family: Foreign, folder: Path) -> None:
    """The family's folder as `transformers` leaves it on a disk, its tokenizer beside it."""
    made = family.tokenizer()
    architecture = getattr(transformers, family.architecture)
    ids = {name: made.token_to_id(token) for name, token in family.ids.items()}
    size = {"vocab_size": made.get_vocab_size()}
    model = architecture(architecture.config_class(**{**family.settings, **size, **ids}))
    randomise(model)
    model.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    plain = {"tokenizer_class": family.tokenizer_class, **family.roles, **family.more}
    (folder / "tokenizer_config.json").write_text(json.dumps(plain))
