"""The planner's bytes beside real ones: Adam's tensors, saved activations, decoding states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import clearhead
from clearhead.models import PRESETS, ModelConfig
from clearhead.nn.costs import Storage
from clearhead.planner.families import kept
from clearhead.planner.totals import count_memory

from .small import CASES, batch_for, everything, model_of

BOUND = 0.15  # the documentation promises 25 %


def bytes_of(tensors: object) -> int:
    assert isinstance(tensors, list)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def saved_bytes(model: torch.nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """What autograd keeps of a forward pass with its loss: each storage once, parameters not at all."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, Tensor] = {}  # holds the tensors, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            found.setdefault(address, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(*inputs)
        if output.logits is None:
            everything(output)
        else:
            scores = output.logits.flatten(0, -2)
            F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.parametrize("case", CASES)
def test_activations(case: str) -> None:
    model = model_of(case)
    inputs, batch = batch_for(model.config, 8, 20, 16)
    planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
    assert planned == pytest.approx(saved_bytes(model, inputs), rel=BOUND)


@pytest.mark.parametrize(
    "case", ["encoder-decoder: plain", "decoder: bilinear", "decoder: attention dropout"]
)
def test_the_reference_kernel_keeps_the_matrix(case: str) -> None:
    model = model_of(case, kernel="reference")
    inputs, batch = batch_for(model.config, 4, 70, 60)
    planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
    assert planned == pytest.approx(saved_bytes(model, inputs), rel=BOUND)


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_weights_gradients_and_adam(dtype: str) -> None:
    model = model_of("encoder-decoder: plain")
    inputs, batch = batch_for(model.config, 2, 5, 5)
    if dtype == "bf16":
        model = model.bfloat16()
    everything(model(*inputs)).backward()
    weights = list(model.parameters())
    masters = weights if dtype == "float32" else [weight.detach().float() for weight in weights]
    for master, weight in zip(masters, weights, strict=True):
        master.grad = weight.grad.to(master.dtype)
    adam = torch.optim.Adam(masters)
    adam.step()
    moments = [value for state in adam.state.values() for value in state.values()]
    memory = count_memory(model, model.config, batch, dtype, on_cpu=True)
    assert memory.weights == bytes_of(weights)
    assert memory.gradients == bytes_of([weight.grad for weight in weights])
    assert memory.optimiser == bytes_of(moments) + (bytes_of(masters) if dtype == "bf16" else 0)


def planned_state(config: ModelConfig) -> tuple[int, int, int]:
    memory = clearhead.plan(config, dtype="float32").memory
    return memory.state_per_token, memory.cross_per_token, memory.memory_per_token


@pytest.mark.parametrize("dial", ["plain", "grouped-query", "multi-query, free sizes", "position rotary"])
@pytest.mark.parametrize("tokens", [1, 64, 100])
@torch.no_grad()
def test_decoding_states(dial: str, tokens: int) -> None:
    """After some tokens a state holds what the plan says, in buffers that grow by whole blocks of 64."""
    model, rows, source = model_of(f"encoder-decoder: {dial}").eval(), 3, 7
    state = model.begin(torch.randint(100, (rows, source)))
    model(None, torch.randint(100, (rows, tokens)), state=state)
    each, cross, memory = planned_state(model.config)
    own = [tensor for layer in state.own for tensor in (layer.k, layer.v)]
    slots = -(-tokens // 64) * 64
    assert bytes_of(own) == rows * slots * each
    looked = [tensor for layer in state.cross for tensor in (layer.k, layer.v)]
    assert bytes_of(looked) == rows * source * cross
    assert bytes_of([state.memory]) == rows * source * memory


@torch.no_grad()
def test_decoder_only_state() -> None:
    model = model_of("like Llama 3").eval()
    state = model.begin()
    model(torch.randint(100, (2, 64)), state=state)
    assert bytes_of([tensor for layer in state.own for tensor in (layer.k, layer.v)]) == (
        2 * 64 * planned_state(model.config)[0]
    )
    assert planned_state(model.config)[1:] == (0, 0)


@pytest.mark.parametrize("dial", ["rotary", "compressed queries", "no rotary part"])
@torch.no_grad()
def test_latents(dial: str) -> None:
    """The plan's bytes are the state's; a latent may be an eighth of the same heads' keys and values."""
    model = model_of(f"decoder: latent, {dial}").eval()
    state = model.begin()
    model(torch.randint(100, (2, 64)), state=state)
    assert state.bytes == 2 * 64 * planned_state(model.config)[0]
    wide = clearhead.plan("gpt2").memory.state_per_token
    config = clearhead.ModelConfig.from_dict(
        {**PRESETS["gpt2"], "attention": {"kind": "latent", "heads": 12}}
    )
    narrow = config.replace(attention__latent_dim=160, attention__rotary_dim=32, position__name="rotary")
    assert clearhead.plan(narrow).memory.state_per_token == wide // 8


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_recurrent_state(cell: str) -> None:
    model = model_of(f"recurrent {cell}, additive, both ways, 2 layers").eval()
    state = model.begin(torch.randint(100, (3, 7)))
    model(None, torch.randint(100, (3, 5)), state=state)
    each, cross, memory = planned_state(model.config)
    assert bytes_of([state.past[:, 0]]) == 3 * each
    assert bytes_of([state.memory]) == 3 * 7 * memory
    assert cross == 0


def test_full_context() -> None:
    gpt = clearhead.plan("gpt2").memory
    assert gpt.context == 1024
    assert gpt.state == 1024 * 12 * 2 * 768 * 2
    llama = clearhead.plan("llama3-8b", batch_tokens=8192, target_length=8192).memory
    assert llama.state == 8192 * 32 * 2 * 8 * 128 * 2  # 1 GiB, the figure usually given
    assert clearhead.plan("bert-base").memory.state_per_token == 0


def test_long_biases_are_made_again() -> None:
    """Past the size at which biases are handled in runs, activations grow with the length, not its square."""
    short, long = (
        clearhead.plan("tiny", batch_tokens=n, source_length=n, target_length=n, dtype="float32").memory.kept
        for n in (4096, 8192)
    )
    assert long == 2 * short  # a fused kernel keeps no matrix at all
    config = clearhead.ModelConfig.from_dict({"family": "decoder", "position": {"name": "shaw"}})
    short, long = (clearhead.plan(config, n, target_length=n).memory.kept for n in (8192, 16384))
    assert long == pytest.approx(2 * short, rel=0.01)
