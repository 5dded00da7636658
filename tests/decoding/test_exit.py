"""A process may end while texts are being written: by a generator that nobody finished, by a daemon thread.

Before, memory was freed under them, and the process died with a signal after its work was done.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from clearhead.base.exiting import _Gate

LEAVING = """
import sys, threading
import clearhead, torch
from clearhead.bundle import Bundle
from clearhead.decoding.options import Options
from clearhead.decoding.run import stream_with
from clearhead.decoding.writer import Writer

way, beam = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
tokenizer = clearhead.Tokenizer.words("the cat sleeps and the dog eats all day long")
writer = Writer(Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer), way=way)
asked = Options(beam=beam, min_length=150, max_length=200)
texts = ["the cat sleeps", "the dog eats", "and the cat"] * 20
unfinished = writer.write(texts, asked)
next(unfinished)
streamed = stream_with(writer, "the cat", Options(min_length=50, max_length=60))
next(streamed)
busy = threading.Event()

def decode():
    while True:  # short ones: what is freed at their end is compiled code too
        for _ in writer.write(texts[:2], Options(beam=beam, max_length=2)):
            busy.set()

threading.Thread(target=decode, daemon=True).start()
busy.wait()
print("left")
"""


@pytest.mark.parametrize("way, beam", [("native", 1), ("torch", 2)])
def test_leaving_in_the_midst_of_texts_ends_the_process_cleanly(way: str, beam: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LEAVING, way, str(beam)], capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "left\n", "")


def test_the_exit_waits_for_work_under_way_and_holds_up_what_comes_later() -> None:
    gate = _Gate()
    inside, leave, again = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with gate, gate:  # what is inside may enter again
            inside.set()
            leave.wait(10)
        with gate:
            again.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    inside.wait(10)
    closing = threading.Thread(target=gate.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()  # waits
    leave.set()
    closing.join(10)
    assert not closing.is_alive()
    assert not again.is_set()  # the thread is held outside for good, and was waited for until it was
    assert gate._held == {thread.ident}
    assert thread.is_alive()
