"""Where threads or memory run out, the native engine goes on with fewer, or says so and stays what it was.

The test is a process in which the system's own functions fail when told to. Before, such a process died with
a signal, or its rows and Python's count of them no longer agreed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.decoding.native import why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="stands in for functions of glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here"),
]

STAND_IN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

int threads_left = 1 << 30;
static _Atomic long pieces_left = -1;  // of memory; below 0: as many as are wanted
void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);

static int none_left(void) {
  long left = pieces_left;
  while (left >= 0 && !__atomic_compare_exchange_n(&pieces_left, &left, left ? left - 1 : 0, 0, 5, 5)) {}
  return left == 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *about, void *(*start)(void *), void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_create");
  if (threads_left == 0) return EAGAIN;
  --threads_left;
  return real(thread, about, start, argument);
}

void *malloc(size_t size) { return none_left() ? 0 : __libc_malloc(size); }
void *aligned_alloc(size_t step, size_t size) { return none_left() ? 0 : __libc_memalign(step, size); }

// A call with so many pieces of memory, and none after them.
int call_with(long pieces, int (*function)(long, long, long, long, long, long, long), const long *a) {
  pieces_left = pieces;
  int found = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
  pieces_left = -1;
  return found;
}
"""

PROLOGUE = """
import ctypes, os, sys
import torch
import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.native import NativeRows, pack
from clearhead.decoding.backend import Symbols

torch.set_num_threads(1)
stand_in = ctypes.CDLL(sys.argv[1])
threads_left = ctypes.c_int.in_dll(stand_in, "threads_left")
symbols = Symbols(1, 2, (0, 1))
torch.manual_seed(3)
sources = [[3 + (7 * i + t) % 90 for t in range(1 + i % 9)] for i in range(20)]


model = clearhead.build("tiny", family=sys.argv[2], vocabulary=1500).eval()
nobody = torch.zeros(0, dtype=torch.int64)


def walk(rows, steps=4):
    scores = rows.admit(sources)
    found = [scores.logp()]
    for _ in range(steps):
        parent = torch.arange(len(sources)) // 3 * 3  # some go on in several ways, some not at all
        scores = rows.step(parent, scores.top(40)[1][parent, 0])
        found.append(scores.logp())
    return torch.stack(found)


wanted = walk(NativeRows(model, symbols, threads=1))
"""

FEWER_THREADS = """
for left in 0, 1, 2:
    threads_left.value = left
    assert torch.equal(walk(NativeRows(model, symbols, threads=4)), wanted)
    assert threads_left.value == 0
torch.get_num_threads = lambda: 4  # so many are wanted for packing, but not by PyTorch itself
assert pack(model, "int8").bytes > 0
threads_left.value = 1 << 30
rows = NativeRows(model, symbols, threads=3)
first = rows.admit(sources).logp()
child = os.fork()
if not child:
    threads_left.value = 1
    rows.step(nobody, nobody)
    good = torch.equal(walk(rows), wanted) and threads_left.value == 0
    os._exit(0 if good else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("done")
"""

NO_MEMORY = """
class Scarce:
    # A function of the library that has `pieces` pieces of memory.
    def __init__(self, function):
        self.function, self.pieces = function, None

    def __call__(self, *given):
        if self.pieces is None:
            return self.function(*given)
        numbers = [one if isinstance(one, int) else ctypes.addressof(one._obj) for one in given]
        numbers += [0] * (7 - len(numbers))
        pieces, self.pieces = self.pieces, None
        return stand_in.call_with(
            ctypes.c_long(pieces), ctypes.cast(self.function, ctypes.c_void_p), (ctypes.c_long * 7)(*numbers)
        )


class Library:
    def __init__(self, real):
        self.real = real
        for name in "admit", "step", "top", "logp", "take", "join":
            setattr(self, name, Scarce(getattr(real, name)))

    def __getattr__(self, name):
        return getattr(self.real, name)


def attempts(rows, scarce, call):
    # What a call gives when it has enough memory at last; until then nothing changes.
    before, failures = (rows.count, rows.memory()[0]), 0
    while True:
        scarce.pieces = failures
        try:
            return call(), failures
        except UserError as error:
            assert "not enough memory" in str(error)
            assert (rows.count, rows.memory()[0]) == before
            failures += 1


rows = NativeRows(model, symbols, threads=3)
rows._library = rows._engine.library = library = Library(rows._library)
scores, failures = attempts(rows, library.admit, lambda: rows.admit(sources))
assert failures >= 10, failures
found = [scores.logp()]
for number in range(4):
    parent = torch.arange(len(sources)) // 3 * 3
    (_, ids), failed = attempts(rows, library.top, lambda: scores.top(40))
    assert failed, "every row needs a list"
    again, failed = attempts(rows, library.step, lambda: rows.step(parent, ids[parent, 0]))
    assert failed > 2 or number, failed
    assert rows.count == len(sources)
    taken, failed = attempts(rows, library.take, lambda: rows.take(0, len(sources)))
    assert failed, "the list of rows that leave"
    attempts(rows, library.join, lambda: rows.join(taken))
    scores = again
    found.append(attempts(rows, library.logp, scores.logp)[0])
assert torch.equal(torch.stack(found), wanted)
rows.step(nobody, nobody)
assert (rows.count, rows.memory()[0]) == (0, 0)
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose functions come before the system's."""
    folder = tmp_path_factory.mktemp("stand_in")
    (folder / "stand_in.c").write_text(STAND_IN)
    made = folder / "stand_in.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", made, folder / "stand_in.c", "-ldl"], check=True)
    return made


@pytest.mark.parametrize("family", ["encoder-decoder", pytest.param("decoder", marks=pytest.mark.slow)])
def test_threads_and_memory_that_run_out(stand_in: Path, family: str) -> None:
    script = PROLOGUE + NO_MEMORY + FEWER_THREADS
    run = subprocess.run(
        ["env", f"LD_PRELOAD={stand_in}", sys.executable, "-c", script, stand_in, family],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
