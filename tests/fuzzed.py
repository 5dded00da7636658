"""The files that the toolkit reads, each as a good one and its reader, for `fuzzing.py`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from clearhead.base.atomic import sha256_of
from clearhead.base.checksums import digest
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, describe, is_bundle, load_bundle, save
from clearhead.data.encoding import Tokenizers
from clearhead.data.encodings import Pairs
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.decoding.labels import classify
from clearhead.decoding.options import Options
from clearhead.decoding.run import translate
from clearhead.explorer.curves import of_folder
from clearhead.interop import export_folder, import_folder, is_foreign
from clearhead.jobs.prepare import open_all
from clearhead.jobs.recipe import read_recipe
from clearhead.jobs.resumable_output import PartFile, check_output
from clearhead.models import build
from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.config import TrainConfig
from clearhead.training.log import LOG, RunLog, read_log
from clearhead.training.run_data import write_ready
from clearhead.training.run_folder import RunFolder
from clearhead.training.snapshot import RunState
from clearhead.training.weights import read_tensors, write_tensors

from .fuzzing import Case

WORDS = Tokenizer.words("the cat sees a dog and it eats")
SMALL = {"vocabulary": WORDS.vocabulary_size, "width": 8, "layers": 1, "attention": {"heads": 2}}


def a_model(**changes: Any) -> torch.nn.Module:
    plain = {**SMALL, "feedforward": {"width": 8}, **changes}
    return build(ModelConfig.from_dict(plain))


# -- bundles --------------------------------------------------------------------


def a_translator(folder: Path) -> None:
    notes = {
        "task": "translate",
        "source_limit": 20,
        "reach": [[4, 6], [9, 8]],
        "documents": False,
        "special": {"pad": 0, "start": 1, "stop": 2},
        "generation": {"eos_token_id": 2, "num_beams": 1, "max_length": 8},
        "framing": Pairs().framings(Tokenizers.of(WORDS)).to_dict(),
    }
    save(Bundle(a_model(family="encoder-decoder"), WORDS, notes), folder / "bundle")


def a_classifier(folder: Path) -> None:
    model = a_model(family="encoder", head={"kind": "classify", "classes": 2})
    save(Bundle(model, WORDS, {"task": "classify", "labels": ["a", "b"]}), folder / "bundle")


def signed_bundle(folder: Path) -> None:
    """Checksums as an attacker would write them, as far as the metadata can be read at all."""
    path = folder / "bundle" / "metadata.json"
    try:
        plain = json.loads(path.read_bytes())
        plain.pop("checksum", None)
        plain["sha256"] = {name: sha256_of(folder / "bundle" / name) for name in plain["sha256"]}
        path.write_text(json.dumps(plain, ensure_ascii=False))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass


def read_translator(folder: Path) -> object:
    is_bundle(folder / "bundle")
    bundle = load_bundle(folder / "bundle")
    return translate(bundle, ["the cat sees"], Options(max_length=3)), bundle.summary()


def read_classifier(folder: Path) -> object:
    return classify(load_bundle(folder / "bundle"), ["the cat"])


def described(folder: Path) -> object:
    return describe(folder / "bundle").to_dict()


# -- runs -----------------------------------------------------------------------


def a_run(folder: Path) -> None:
    place = RunFolder(folder / "run")
    place.training.mkdir(parents=True)
    config = TrainConfig.from_dict({"steps": 3, "model": {"layers": 1}})
    place.write_record(config, {"settings": {}, "notes": {"corpus": {"rows": {}}, "labels": []}})
    data = place.data
    data.mkdir()
    WORDS.save(data / "tokenizer.json")
    for name in ("train-0", "validation"):
        with StoreWriter(data / name, "translate", {"source": 20, "target": 20}) as writer:
            writer.add(source=Ragged.of([[4, 5, 2], [6, 2]]), target=Ragged.of([[7], [8, 9]]))
    for name in ("validation.jsonl", "test.jsonl"):
        (data / name).write_text('["the cat", "a dog"]\n["ü", ""]\n')
    names = ["tokenizer.json", "validation.jsonl", "test.jsonl", "train-0/manifest.json"]
    write_ready(data, {"survey": {}, "tokenised": {}, "labels": ["a"], "documents": False}, names)
    with RunLog(place.training) as log:
        for step in range(3):
            log.write("train", step, {"loss": 1.5, "rate": 0.1, "flops": 1e9})
            log.write("validation", step, {"loss": 1.5, "best": True})
            log.time("train", step, {"tokens_per_second": 10.0})
    checkpoints = Checkpoints(place.training / "checkpoints")
    checkpoints.save(2, {"model/a": torch.ones(2)}, {**RunState(step=2).to_dict(), "log": 10})
    write_tensors(place.training / "weights.safetensors", {"a": torch.ones(3), "b": torch.zeros(2, 2)})


def signed_record(folder: Path) -> None:
    _sign_table(folder / "run" / "training" / "run.json")


def signed_data(folder: Path) -> None:
    """The checksums of the data, from the stores upwards."""
    data = folder / "run" / "training" / "data"
    try:
        whole = json.loads((data / "train-0" / "manifest.json").read_bytes())
        whole["sha256"] = digest(whole["manifest"])
        (data / "train-0" / "manifest.json").write_text(json.dumps(whole))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    try:
        plain = json.loads((data / "ready.json").read_bytes())
        plain["files"] = {name: sha256_of(data / name) for name in plain["files"]}
        (data / "ready.json").write_text(json.dumps(plain))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    _sign_table(data / "ready.json")


def _sign_table(path: Path) -> None:
    try:
        plain = json.loads(path.read_bytes())
        plain.pop("checksum", None)
        path.write_text(json.dumps({**plain, "checksum": digest(plain)}, ensure_ascii=False))
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass


def signed_checkpoint(folder: Path) -> None:
    place = folder / "run" / "training" / "checkpoints" / "step-00000002"
    sums = [f"{sha256_of(place / name)}  {name}\n" for name in ("state.safetensors", "state.json")]
    (place / "SHA256SUMS").write_text("".join(sums))


def read_run(folder: Path) -> object:
    return RunFolder(folder / "run").read_record()


def read_data(folder: Path) -> object:
    prepared = open_all(RunFolder(folder / "run").data, 1)
    return [read_store(store) for store in (*prepared.train, prepared.validation)]


def read_store(store: Store) -> object:
    rows = np.arange(len(store))
    return [(store.lengths(name), store.gather(rows, name).rows()) for name in store.columns]


def read_checkpoint(folder: Path) -> object:
    checkpoints = Checkpoints(folder / "run" / "training" / "checkpoints")
    checkpoints.facts()
    found, said = checkpoints.newest()
    for sentence in said:
        assert sentence.endswith(".")
    return found


def read_logs(folder: Path) -> object:
    found = of_folder(folder / "run", {})
    json.dumps(found, allow_nan=False)
    return read_log(folder / "run" / "training"), read_log(folder / "run" / "training", lenient=True)


# -- recipes, parts, models from elsewhere ----------------------------------------


def a_recipe(folder: Path) -> None:
    plain = {
        "task": "translate",
        "steps": 100,
        "data": {"train": [{"file": "a.tsv", "weight": 1.0}], "split": {"validation": 0.1}},
        "model": {"width": 16, "layers": 2, "attention": {"heads": 2}, "dropout": 0.1},
        "schedule": {"rate": 1e-3, "warmup": 10},
        "compute": {"device": "cpu"},
    }
    (folder / "recipe.json").write_text(json.dumps(plain))
    (folder / "recipe.toml").write_text(
        'steps = 100\ntask = "translate"\n[model]\nwidth = 16\nnorm.place = "pre"\n'
        '[model.attention]\nheads = 2\n[[data.train]]\nfile = "a.tsv"\nweight = 1.0\n'
    )


def read_recipes(name: str) -> Any:
    def read(folder: Path) -> object:
        table = read_recipe(folder / name)
        TrainConfig.check_names(table)
        return TrainConfig.from_dict(table)

    return read


def a_part(folder: Path) -> None:
    sink = PartFile(folder / "out", {"--beam": 3, "bundle": "x"}, restart=False, force=False)
    for number in range(3):
        sink.add(f"line {number}\n", hashlib.sha256(b"x").hexdigest())
    sink.stop()


def read_part(folder: Path) -> object:
    check_output(folder / "out", None, force=False, restart=False)
    sink = PartFile(folder / "out", {"--beam": 3, "bundle": "x"}, restart=False, force=False)
    done = sink.done
    sink.stop()
    return done


def signed_part(folder: Path) -> None:
    _sign_table(folder / "out.part.json")


def a_foreign_model(folder: Path) -> None:
    generation = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "num_beams": 2, "max_length": 8}
    bundle = Bundle(a_model(family="encoder-decoder"), WORDS, {"generation": generation})
    export_folder(bundle, folder / "model")


def a_foreign_classifier(folder: Path) -> None:
    plain = {
        "family": "encoder",
        "head": {"kind": "classify", "classes": 2, "pooler": True},
        "position": {"name": "learned", "max_length": 16},
        "embedding": {"scale": False, "norm": True, "token_types": 2},
        "feedforward": {"width": 8, "activation": "gelu"},
    }
    export_folder(Bundle(a_model(**plain), WORDS, {"labels": ["a", "b"]}), folder / "model")


def a_foreign_llama(folder: Path) -> None:
    plain = {
        "family": "decoder",
        "norm": {"place": "pre", "kind": "rms"},
        "position": {"name": "rotary"},
        "feedforward": {"width": 8, "gated": True, "activation": "silu", "bias": False},
        "attention": {"heads": 2, "kv_heads": 1, "bias": False},
        "embedding": {"scale": False, "tie_output": False},
    }
    export_folder(Bundle(a_model(**plain), WORDS), folder / "model")
    model = folder / "model"
    names = {"weight_map": dict.fromkeys(_names_in(model / "model.safetensors"), "one.safetensors")}
    (model / "model.safetensors").rename(model / "one.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps(names))


def _names_in(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def imported(folder: Path) -> object:
    if not is_foreign(folder / "model"):
        raise UserError("This is no model.")
    bundle = import_folder(folder / "model")
    save(bundle, folder / "ours")
    return load_bundle(folder / "ours").summary()


def translated(folder: Path) -> object:
    bundle = import_folder(folder / "model")
    return translate(bundle, ["the cat"], Options(max_length=2))


def read_weights(folder: Path) -> object:
    return read_tensors(folder / "run" / "training" / "weights.safetensors")


TRAINING = "run/training"
CASES = [
    Case("metadata", "bundle/metadata.json", a_translator, read_translator, signed_bundle),
    Case("metadata of a classifier", "bundle/metadata.json", a_classifier, read_classifier, signed_bundle),
    Case("metadata, inspected", "bundle/metadata.json", a_classifier, described),
    Case("config", "bundle/config.json", a_translator, read_translator, signed_bundle),
    Case("config of a classifier", "bundle/config.json", a_classifier, read_classifier, signed_bundle),
    Case("tokenizer", "bundle/tokenizer.json", a_classifier, read_classifier, signed_bundle),
    Case("weights", "bundle/model.safetensors", a_classifier, read_classifier, signed_bundle, text=False),
    Case(
        "run", f"{TRAINING}/run.json", a_run, lambda one: RunFolder(one / "run").read_record(), signed_record
    ),
    Case("ready", f"{TRAINING}/data/ready.json", a_run, read_data, signed_data),
    Case("manifest", f"{TRAINING}/data/train-0/manifest.json", a_run, read_data, signed_data),
    Case("held out", f"{TRAINING}/data/test.jsonl", a_run, read_data, signed_data, lines=True),
    Case("log", f"{TRAINING}/{LOG}", a_run, read_logs, lines=True),
    Case("timing", f"{TRAINING}/timing.jsonl", a_run, read_logs, lines=True),
    Case(
        "checkpoint",
        f"{TRAINING}/checkpoints/step-00000002/state.json",
        a_run,
        read_checkpoint,
        signed_checkpoint,
    ),
    Case("weights of a run", f"{TRAINING}/weights.safetensors", a_run, read_weights, text=False),
    Case("recipe", "recipe.json", a_recipe, read_recipes("recipe.json")),
    Case("recipe in TOML", "recipe.toml", a_recipe, read_recipes("recipe.toml"), text=False),
    Case("part", "out.part.json", a_part, read_part, signed_part),
    Case("foreign config", "model/config.json", a_foreign_model, imported),
    Case("foreign config of a classifier", "model/config.json", a_foreign_classifier, imported),
    Case("foreign config of Llama", "model/config.json", a_foreign_llama, imported),
    Case("foreign generation settings", "model/generation_config.json", a_foreign_model, translated),
    Case("foreign tokenizer", "model/tokenizer.json", a_foreign_model, translated),
    Case("foreign tokenizer settings", "model/tokenizer_config.json", a_foreign_model, translated),
    Case("foreign index", "model/model.safetensors.index.json", a_foreign_llama, imported),
]
