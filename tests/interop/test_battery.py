"""Every family against its own toolkit: hidden states, attention, scores, loss, gradients, and the way back.

Shapes: B rows, T tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from clearhead import Look
from clearhead.bundle import Bundle
from clearhead.interop import export_folder, import_folder, is_foreign
from clearhead.interop.huggingface import FAMILIES, exported_tensors, family_for
from clearhead.models import build

from .conftest import SPECS, Spec, save_random

TOLERANCE = 1e-4
LENGTHS = [9, 5, 1]
SOURCE_LENGTHS = [7, 4, 11]
NOT_COUNTED = -100  # labels that a loss passes over, here and there


def ids(count: int, lengths: list[int], vocabulary: int, pad: int) -> Tensor:
    """Rows of random tokens, none of them the padding, filled up on the right with it."""
    random = torch.Generator().manual_seed(len(lengths) + count)
    tokens = torch.randint(3, vocabulary - 1, (len(lengths), count), generator=random)
    return torch.where(real(count, lengths), tokens, pad)


def real(count: int, lengths: list[int]) -> Tensor:
    return torch.arange(count) < torch.tensor(lengths).unsqueeze(1)


class Fed:
    """One batch through both models."""

    def __init__(self, case: Any) -> None:
        self.kind = case.spec.kind
        self.theirs, self.ours = case.theirs, case.bundle.model
        self.config = case.bundle.config
        self.pad = case.spec.settings.get("pad_token_id", 0)
        self.look = Look(["*.weights", "*.output", "*.embedding"])
        self.theirs.zero_grad()
        self.ours.zero_grad()
        getattr(self, f"_{self.kind}")()

    def _seq2seq(self) -> None:
        vocabulary = self.config.vocabulary
        source = ids(
            11, SOURCE_LENGTHS, min(vocabulary, self.config.source_vocabulary or vocabulary), self.pad
        )
        target, labels = ids(9, LENGTHS, vocabulary, self.pad), self._labels(vocabulary)
        self.masks = {"encoder": real(11, SOURCE_LENGTHS), "decoder": real(9, LENGTHS)}
        self.there = self.theirs(
            input_ids=source,
            attention_mask=self.masks["encoder"].long(),
            decoder_input_ids=target,
            decoder_attention_mask=self.masks["decoder"].long(),
            labels=labels,
            output_hidden_states=True,
            output_attentions=True,
        )
        lengths = {"source_lengths": SOURCE_LENGTHS, "target_lengths": LENGTHS}
        self.here = self.ours(source, target, **lengths, look=self.look)
        self.loss = F.cross_entropy(self.here.logits.flatten(0, 1), labels.flatten())
        self.hidden = {
            "encoder": self.there.encoder_hidden_states,
            "decoder": self.there.decoder_hidden_states,
        }
        self.attention = {
            ("encoder", "self"): self.there.encoder_attentions,
            ("decoder", "self"): self.there.decoder_attentions,
            ("decoder", "cross"): self.there.cross_attentions,
        }

    def _decoder(self) -> None:
        tokens = ids(9, LENGTHS, self.config.vocabulary, self.pad)
        self.masks = {"decoder": real(9, LENGTHS)}
        labels = tokens.masked_fill(~self.masks["decoder"], NOT_COUNTED)
        self.there = self.theirs(
            input_ids=tokens,
            attention_mask=self.masks["decoder"].long(),
            labels=labels,
            output_hidden_states=True,
            output_attentions=True,
        )
        self.here = self.ours(tokens, lengths=LENGTHS, look=self.look)
        self.loss = F.cross_entropy(self.here.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        self.hidden = {"decoder": self.there.hidden_states}
        self.attention = {("decoder", "self"): self.there.attentions}

    def _encoder(self) -> None:
        tokens = ids(9, LENGTHS, self.config.vocabulary, self.pad)
        types = torch.arange(9).ge(3).long().expand(3, -1)
        self.masks = {"encoder": real(9, LENGTHS)}
        labels = self._labels(self.config.head.classes if self.config.head.kind != "mlm" else 61)
        if self.config.head.kind == "classify":
            labels = torch.tensor([2, 0, 1])
        if self.config.head.kind == "number":
            labels = torch.tensor([0.5, -1.0, 3.0])
        given = {"labels": labels} if self.config.head.kind != "none" else {}
        self.there = self.theirs(
            input_ids=tokens,
            attention_mask=self.masks["encoder"].long(),
            token_type_ids=types,
            output_hidden_states=True,
            output_attentions=True,
            **given,
        )
        self.here = self.ours(tokens, lengths=LENGTHS, token_types=types, look=self.look)
        if given:
            scores = self.here.logits
            regression = self.config.head.kind == "number"
            self.loss = (
                F.mse_loss(scores.squeeze(-1), labels)
                if regression
                else F.cross_entropy(scores.flatten(0, -2), labels.flatten())
            )
        self.hidden = {"encoder": self.there.hidden_states}
        self.attention = {("encoder", "self"): self.there.attentions}

    def _vision(self) -> None:
        image = self.config.image
        pixels = torch.randn(
            3, image.channels, image.size, image.size, generator=torch.Generator().manual_seed(2)
        )
        labels = torch.tensor([2, 0, 1])
        given = {"labels": labels} if self.config.head.kind != "none" else {}
        self.masks = {"encoder": torch.ones(3, image.tokens, dtype=torch.bool)}
        self.there = self.theirs(pixels, output_hidden_states=True, output_attentions=True, **given)
        self.here = self.ours(pixels, look=self.look)
        if given:
            self.loss = F.cross_entropy(self.here.logits, labels)
        self.hidden = {"encoder": self.there.hidden_states}
        self.attention = {("encoder", "self"): self.there.attentions}

    def _labels(self, classes: int) -> Tensor:
        chosen = torch.randint(classes, (3, 9), generator=torch.Generator().manual_seed(7))
        return chosen.masked_fill(~real(9, LENGTHS), NOT_COUNTED)

    def losses(self) -> tuple[Tensor, Tensor]:
        """Ours and theirs; for a model without a head, any number that depends on all it returns."""
        if self.config.head.kind != "none" or self.kind in ("seq2seq", "decoder"):
            return self.loss, self.there.loss
        weight = torch.randn(self.here.hidden.shape, generator=torch.Generator().manual_seed(3))
        weight = weight * self.masks["encoder"].unsqueeze(-1)

        def total(hidden: Tensor, pooled: Tensor) -> Tensor:
            return (hidden * weight).sum() + pooled.square().sum()

        ours = total(self.here.hidden, self.here.pooled)
        return ours, total(self.there.last_hidden_state, self.there.pooler_output)


def close(ours: Tensor, theirs: Tensor, what: str, at_least: float = 0.0) -> None:
    """The largest difference, against the largest number there (or `at_least`)."""
    assert ours.shape == theirs.shape, what
    scale = max(float(theirs.detach().abs().max()), at_least)
    difference = float((ours - theirs).detach().abs().max())
    assert difference <= TOLERANCE * scale, f"{what}: {difference} of {scale}"


def test_hidden_states(case: Any) -> None:
    fed = Fed(case)
    for stack, states in fed.hidden.items():
        mask = fed.masks[stack]
        layers = len(states) - 1
        names = ["embedding", *(f"{i}.output" for i in range(layers))]
        if fed.kind != "vision":
            names[-1] = "output"  # theirs shows the last layer after the last norm, except for images
        for name, state in zip(names, states, strict=True):
            close(fed.look[f"{stack}.{name}"][mask], state[mask], f"{stack}.{name}")


def test_attention_weights(case: Any) -> None:
    fed = Fed(case)
    for (stack, kind), layers in fed.attention.items():
        mask = fed.masks[stack]
        for i, weights in enumerate(layers):
            name = f"{stack}.{i}.{kind}.weights"
            ours = fed.look[name].transpose(1, 2)[mask]  # (real queries, H, S)
            close(ours, weights.transpose(1, 2)[mask], name)


def test_results(case: Any) -> None:
    fed = Fed(case)
    mask = fed.masks.get("decoder", fed.masks.get("encoder"))
    if fed.here.logits is not None:
        per_token = fed.here.logits.dim() == 3
        ours, theirs = fed.here.logits, fed.there.logits
        close(ours[mask] if per_token else ours, theirs[mask] if per_token else theirs, "logits")
    else:
        close(fed.here.hidden[mask], fed.there.last_hidden_state[mask], "hidden")
        close(fed.here.pooled, fed.there.pooler_output, "pooled")


def test_loss_and_gradients(case: Any, tmp_path: Path) -> None:
    fed = Fed(case)
    ours, theirs = fed.losses()
    close(ours, theirs, "loss")
    ours.backward()
    theirs.backward()
    family = family_for(fed.config, case.bundle.metadata)
    named = case.bundle.model.state_dict(keep_vars=True).items()
    here = exported_tensors(
        family, fed.config, {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named}
    )
    there = gradients_by_name_on_disk(fed.theirs, tmp_path)
    # stored beside the parameters and not among them there, so they have no gradient
    for name in [one for one in there if one.endswith(("final_logits_bias", "e_score_correction_bias"))]:
        del here[name], there[name]
    if case.spec.name == "t5 gated, tied":
        here.pop("lm_head.weight")  # written as a copy of the shared embedding
    assert set(here) == set(there)
    largest = max(float(gradient.abs().max()) for gradient in there.values())
    for name, gradient in there.items():
        # A key's bias has gradient 0 but for rounding: compare with what is large elsewhere.
        close(here[name], gradient, f"gradient of {name}", at_least=largest / 100)
    assert sum(float(gradient.abs().sum()) > 0 for gradient in there.values()) > len(there) * 0.9


def gradients_by_name_on_disk(model: Any, folder: Path) -> dict[str, Tensor]:
    """A model whose parameters are its gradients, saved: their names in files differ from those in code."""
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()
    }
    shell = deepcopy(model)
    with torch.no_grad():
        for name, parameter in shell.named_parameters():
            parameter.copy_(gradients[name])
    shell.save_pretrained(folder / "gradients")
    return load_file(folder / "gradients" / "model.safetensors")


def test_export_is_read_by_its_own_toolkit(case: Any, transformers: Any, tmp_path: Path) -> None:
    export_folder(case.bundle, tmp_path / "out")
    architecture = getattr(transformers, case.spec.architecture)
    again, report = architecture.from_pretrained(
        tmp_path / "out", attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert again.config.architectures == [case.spec.architecture]
    before, after = case.theirs.state_dict(), again.eval().state_dict()
    for name, tensor in before.items():
        if "embed_positions" in name and case.spec.name.startswith("bart"):
            tensor, after[name] = tensor[2:], after[name][2:]  # the first two rows are never read
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=0, msg=name)
    case_again = type(case)(case.spec, tmp_path / "out", again, case.bundle)
    test_results(case_again)


def test_there_and_back(case: Any, tmp_path: Path) -> None:
    export_folder(case.bundle, tmp_path / "out")
    assert is_foreign(tmp_path / "out")
    again = import_folder(tmp_path / "out")
    before, after = state(case.bundle), state(again)
    if case.spec.name == "t5 gated, tied":
        torch.testing.assert_close(after.pop("output.weight"), before["source_embedding.table.weight"])
        before.pop("output.weight")
    assert set(after) == set(before)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
    assert again.metadata["special"] == case.bundle.metadata["special"]
    assert again.metadata["source"] == case.bundle.metadata["source"]
    if case.spec.name != "t5 gated, tied":
        assert again.config == case.bundle.config


def state(bundle: Bundle) -> dict[str, Tensor]:
    return dict(bundle.model.state_dict())


def test_every_family_has_a_row(request: pytest.FixtureRequest) -> None:
    from_specs = {item.name for item in request.session.items if "test_results[" in item.name}
    if from_specs:
        for family in {*FAMILIES} - {"longformer"}:  # which has tests of its own
            assert any(f"[{family}" in name for name in from_specs), family


@pytest.mark.parametrize("labels", [3, 1])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_heads_on_decoders(name: str, labels: int, transformers: Any, tmp_path: Path) -> None:
    """The class off the last token, which GPT-2 reads alone and BART behind an encoder, as there."""
    spec = next(spec for spec in SPECS if spec.name == name)
    kind = {"gpt2": "GPT2ForSequenceClassification", "bart": "BartForSequenceClassification"}[name]
    labelling = Spec(name, spec.kind, kind, spec.settings | {"num_labels": labels, "pad_token_id": 1})
    save_random(transformers, labelling, tmp_path / "labels")
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "labels").eval()
    whole = getattr(transformers, spec.architecture)(theirs.config)
    body = whole.base_model_prefix
    getattr(whole, body).load_state_dict(getattr(theirs, "model" if name == "bart" else body).state_dict())
    whole.save_pretrained(tmp_path / "whole")
    written = import_folder(tmp_path / "whole").model
    head = {"kind": "classify" if labels > 1 else "number", "classes": labels, "pooling": "last"}
    head |= {"pooler": name == "bart"}
    ours = build(written.config, **{f"head__{key}": value for key, value in head.items()}).eval()
    with torch.no_grad():
        missing = ours.load_state_dict(written.state_dict(), strict=False).missing_keys
        assert all(one.startswith("head.") for one in missing)
        if name == "gpt2":
            ours.head.classifier.weight.copy_(theirs.score.weight)
            ours.head.classifier.bias.zero_()
        else:
            ours.head.pooler.load_state_dict(theirs.classification_head.dense.state_dict())
            ours.head.classifier.load_state_dict(theirs.classification_head.out_proj.state_dict())
    if name == "gpt2":
        tokens = ids(9, LENGTHS, ours.config.vocabulary, 1)
        there = theirs(input_ids=tokens, attention_mask=real(9, LENGTHS).long()).logits
        close(ours(tokens, lengths=LENGTHS).logits, there, "padded")
        flat = torch.cat([row[:size] for row, size in zip(tokens, LENGTHS, strict=True)])
        close(ours(flat, lengths=LENGTHS).logits, there, "packed")
        return
    stop, start = theirs.config.eos_token_id, theirs.config.decoder_start_token_id
    for row in ([5, 6, stop], [7, 8, 9, 4, stop]):  # BART wants one stop token, at the end
        there = theirs(input_ids=torch.tensor([row])).logits
        close(ours(torch.tensor([row]), torch.tensor([[start, *row[:-1]]])).logits, there, "shifted right")
