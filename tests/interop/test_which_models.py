"""What docs/interop.md says about which models can be exported to Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clearhead import presets
from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings
from clearhead.bundle import Bundle
from clearhead.interop import export_folder
from clearhead.interop.huggingface import family_for
from clearhead.jobs.recipe import compose, nested
from clearhead.models.build import build, preset
from clearhead.models.config import ModelConfig
from clearhead.tasks import TASKS
from clearhead.training.sizes import Asked
from clearhead.training.sizing import choose

from ..training.test_sizing import LAPTOP, facts_of

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
NAMES = {
    "Marian": "marian",
    "GPT-2": "gpt2",
    "Llama": "llama",
    "Mixtral": "mixtral",
    "DeepSeek-V3": "deepseek_v3",
    "BERT": "bert",
    "ViT": "vit",
}


def promised() -> Iterator[tuple[str, list[str], str]]:
    """A task, the settings that the page names for it, and the family that its model becomes."""
    table = PAGE.read_text(encoding="utf-8").partition("| task | settings")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        tasks, settings, family = (cell.strip() for cell in row.strip("|").split("|"))
        common, *more = settings.split(";")
        for task in re.findall(r"`(\w+)`", tasks):
            asked = re.findall(r"`(model\.[^`]+)`", common)
            for part in more:
                if f"`{task}`" in part.partition(" also ")[0]:
                    asked += re.findall(r"`(model\.[^`]+)`", part)
            yield task, asked, NAMES[family]


def trained(task: str, settings: list[str]) -> ModelConfig:
    """The model that `clearhead train` builds."""
    said = {"task": task, **nested(parse_settings(settings))}
    choices = choose(facts_of(task, 1_000_000), LAPTOP, Asked.of(said))
    return compose(choices, said, {"vocabulary": 8000, "source_vocabulary": None}).model


@pytest.mark.parametrize("task, settings, family", list(promised()))
def test_the_settings_on_the_page_give_a_model_that_can_be_exported(
    task: str, settings: list[str], family: str, tmp_path: Path
) -> None:
    export_folder(Bundle(build(trained(task, settings))), tmp_path / "out", to="huggingface")
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["model_type"] == family


def test_the_page_has_a_row_for_each_task_but_music() -> None:
    assert {task for task, _, _ in promised()} == set(TASKS) - {"music"}


@pytest.mark.parametrize("task", TASKS)
def test_what_train_chooses_cannot_be_exported(task: str) -> None:
    with pytest.raises(UserError, match="cannot be exported"):
        family_for(trained(task, []), {})


def test_presets_can_be_exported_but_for_those_that_the_page_names() -> None:
    (row,) = re.findall(r"\| built from a preset \| yes, except (.+) \|", PAGE.read_text(encoding="utf-8"))
    refused = set()
    for name in presets():
        try:
            family_for(preset(name), {})
        except UserError:
            refused.add(name)
    assert refused == set(re.findall(r"`([^`]+)`", row))
