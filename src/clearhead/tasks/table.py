"""The table of tasks."""

from __future__ import annotations

from clearhead.base.errors import UserError, nearest
from clearhead.bundle.folder import Bundle
from clearhead.tasks.classify import CLASSIFY
from clearhead.tasks.denoise import DENOISE
from clearhead.tasks.generate import GENERATE
from clearhead.tasks.image import IMAGE
from clearhead.tasks.mask import MASK
from clearhead.tasks.music import MUSIC
from clearhead.tasks.regress import REGRESS
from clearhead.tasks.summarise import SUMMARISE
from clearhead.tasks.tag import TAG
from clearhead.tasks.task import Task
from clearhead.tasks.text import TEXT
from clearhead.tasks.translate import TRANSLATE

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(TRANSLATE, SUMMARISE, GENERATE, CLASSIFY, REGRESS, TAG, TEXT, MASK, DENOISE),
        *(MUSIC, IMAGE),
    )
}


def task_named(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}': {nearest(name, TASKS)}")
    return TASKS[name]


def task_of(bundle: Bundle, name: str | None = None) -> Task:
    """The task that a bundle was trained for, or another by its name."""
    found = bundle.metadata.get("task") if name is None else name
    if not isinstance(found, str):
        raise UserError(
            "This bundle does not say which task it was trained for: name the task (on the command line, "
            "with --task)."
        )
    return task_named(found)
