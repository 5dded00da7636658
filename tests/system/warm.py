"""A process that has imported everything and forks a child for each command line it is given.

Started once by `commands.Warm`, it reads one JSON order a line and answers with one. Its children run
`clearhead.cli.main.main`, as the installed command does, but need not import torch again, so that thirty
kills cost seconds. It computes nothing itself and has no threads, which would not survive the fork.

An order says when its child is to die or to be interrupted:

    seconds     by the clock, sent from outside, wherever the child then is
    operations  at so many files opened, renamed or removed, counted from the start or, with `after`, from the
                first whose path contains that text; sent by the child to itself from the interpreter's audit
                hook, so that also the shortest moments are hit
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import torch._dynamo  # noqa: F401 - what an optimiser imports when it is built

import clearhead.jobs.demo
import clearhead.jobs.evaluate  # noqa: F401
from clearhead.cli.main import main

WATCHED = ("open", "os", "shutil", "ctypes")
# what commands import when they need it: these take a second, which each child would pay
LATER = ("matplotlib.figure", "matplotlib.backends.backend_agg", "typer._adapters")

for _name in LATER:
    with suppress(ImportError):  # another version of Typer has its own names
        importlib.import_module(_name)
gc.collect()
gc.freeze()  # or each child would copy all that was imported, to look for garbage in it


def strike(order: dict[str, Any]) -> None:
    """Send the order's signal to this very process at the operation it names."""
    seen = {"count": 0, "begun": not order.get("after")}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.split(".")[0] not in WATCHED:
            return
        if not seen["begun"]:
            seen["begun"] = any(order["after"] in str(one) for one in arguments)
        if seen["begun"]:
            seen["count"] += 1
            if seen["count"] == order["operations"]:
                os.kill(os.getpid(), order["signal"])

    sys.addaudithook(hook)


def child(order: dict[str, Any]) -> None:
    """Run one command line; never returns."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["folder"])
    if order.get("operations"):
        strike(order)
    code = 1
    try:
        code = main(order["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def obey(order: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    number = os.fork()
    if number == 0:
        child(order)
    if order.get("seconds") is not None:
        time.sleep(order["seconds"])
        os.kill(number, order["signal"])  # not waited for yet, so the number is still the child's
    _, status, used = os.wait4(number, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "took": time.monotonic() - begun,
        "computed": used.ru_utime + used.ru_stime,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if whoever started us ignores it
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)
