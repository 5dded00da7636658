"""What a model can be trained for: each task is a file here, and a row in the table `TASKS`.

A task combines what the packages below offer: how its rows are read and encoded (`data`), what is learned
from a batch and how large a model it needs (`training`), and how answers are judged (`evaluation`). `jobs`
uses the task it is given; no code checks a task's name.
"""

from __future__ import annotations

from clearhead.tasks.table import TASKS, task_named, task_of
from clearhead.tasks.task import Family, Task

__all__ = ["TASKS", "Family", "Task", "task_named", "task_of"]
