"""Pictures reach an imported ViT as `transformers` prepares them, and an exported one the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.labels import class_probabilities
from clearhead.interop import export_folder, import_folder

transformers = pytest.importorskip("transformers")

SETTINGS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SETTINGS, image_size=12, patch_size=4, num_labels=3)
    transformers.ViTForImageClassification(config).eval().save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def theirs(folder: Path, picture: Path) -> list[float]:
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    prepare = transformers.AutoImageProcessor.from_pretrained(folder)
    with torch.no_grad():
        found = model(**prepare(Image.open(picture), return_tensors="pt")).logits.softmax(-1)[0]
    return [float(one) for one in found]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"resample": 3},
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
        {"do_normalize": False},
        {"do_rescale": False, "image_mean": [120.0, 110.0, 100.0], "image_std": [60.0, 60.0, 50.0]},
    ],
)
def test_an_import_and_an_export_label_pictures_as_there(
    settings: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    square = {"height": 12, "width": 12}
    transformers.ViTImageProcessor(size=square, **settings).save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 120, 3), np.uint8)
    picture = tmp_path / "wide.jpg"  # of which a decoder could read every second pixel only
    Image.fromarray(pixels).save(picture)
    bundle = import_folder(folder)
    assert bundle.metadata["task"] == "image"
    ours = list(class_probabilities(bundle, [str(picture)])[0].values())
    assert ours == pytest.approx(theirs(folder, picture), abs=1e-5)
    export_folder(bundle, tmp_path / "out")
    assert ours == pytest.approx(theirs(tmp_path / "out", picture), abs=1e-5)
    clearhead.save(bundle, tmp_path / "bundle")
    again = class_probabilities(clearhead.load(tmp_path / "bundle"), [str(picture)])
    assert ours == pytest.approx(list(again[0].values()), abs=1e-7)


def test_a_crop_that_is_left_out_is_noted(folder: Path) -> None:
    content = {"do_center_crop": True, "crop_size": 12, "size": {"height": 14, "width": 14}}
    (folder / "preprocessor_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert import_folder(folder).metadata["data"]["not_carried"] == {"do_center_crop": True}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std"),
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"image_mean": "grey"}, "image_mean"),
        ({"rescale_factor": "one"}, "rescale_factor"),
        ({"do_normalize": 1}, "do_normalize"),
        ({"resample": 6}, "resample"),
    ],
)
def test_what_cannot_be_folded_is_refused(settings: dict[str, Any], name: str, folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(UserError, match=rf"preprocessor_config\.json' has {name}="):
        import_folder(folder)
