"""How attention is computed: kernels with one signature, `kernel(problem) -> (R, H, T, V)`.

| kernel    | what it does                                             | where |
|-----------|----------------------------------------------------------|-------|
| reference | computes the whole weight matrix; the definition, kept for ever | everywhere |
| tiled     | FlashAttention's algorithm in readable PyTorch (`tiled.py`) | everywhere |
| blocks    | only the keys that the mask can show: O(n·w) under a window (`blocks.py`) | everywhere |
| sdpa      | PyTorch's fused kernels, never the n×n matrix             | everywhere |
| short     | packed sequences of at most 128 tokens, each held whole (`short.py`) | GPU, half precision |
| varlen    | PyTorch's variable-length flash kernel for packed tokens  | GPU, half precision |
| flex      | a kernel compiled for this score, bias and mask (`flex.py`) | GPU |
| auto      | a fused one that computes the problem exactly, else tiled | everywhere |

`unsupported(name, problem)` says in a clause why a kernel cannot compute a problem; a kernel chosen by name
then refuses with that clause.

`sdpa` never creates the n×n matrix, whatever the mask or the bias: plain causal and unmasked attention go to
PyTorch's function as they are, anything else in runs of queries small enough that a run's mask and bias stay
small. On a CPU a run under a window or a causal mask is given only the keys it can see: the cost of a window
grows with its width and not with the text, and a causal mask halves that of a bias. Rows that may attend to
nothing are given something to attend to and then set to 0, because fused kernels disagree on what an empty
row means. All equal `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from clearhead.base.errors import UserError, nearest
from clearhead.nn.attention import flex as flex_kernel
from clearhead.nn.attention.blocks import blocks, pays
from clearhead.nn.attention.masks import Causal, Window
from clearhead.nn.attention.packed import flash_unsupported, is_needless, varlen, varlen_unsupported
from clearhead.nn.attention.problem import Inputs, Problem, inputs_of, masked_softmax
from clearhead.nn.attention.tiled import tiled

Kernel = Callable[[Problem], Tensor]
Run = tuple[slice, slice]  # queries, and the keys that the kernel is given for them

# Numbers in the mask or bias of a run: little for the memory of a laptop, or of a GPU, which likes long runs
RUN_ELEMENTS = {"cpu": 2**24, "cuda": 2**28}
SHORTEST_BAND, LONGEST_BAND = 64, 512  # queries of a run under a window: about half the window, between these
CAUSAL_RUN = 128  # under a causal mask alone, if there are two whole runs or more: else one is faster
LONG_ROWS = 256  # from this many queries on, training takes cuDNN's kernel if allowed
FASTEST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def prefers_cudnn(problem: Problem) -> bool:
    """Whether cuDNN's kernel computes a plain mask: on long rows in training, if it is enabled.

    It is twice as fast as the flash kernel but compiles for two seconds for each shape, so training in many
    shapes disables it (`torch.backends.cuda`).
    """
    q = problem.q
    if not _may_be_cudnn(q) or not q.requires_grad or q.shape[2] < LONG_ROWS:
        return False
    return torch.backends.cuda.cudnn_sdp_enabled() and q.shape[-1] <= 128


def _may_be_cudnn(q: Tensor) -> bool:
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and not torch.compiler.is_compiling()


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Disable cuDNN: outside training nearly every call has a new shape, which it would compile for."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def reference(problem: Problem) -> Tensor:
    """`softmax(scores) V`, as written. Every other kernel is tested against this one."""
    scores, allowed = problem.block(problem.q, problem.k, problem.queries, problem.keys)
    weights = masked_softmax(scores, allowed)  # (R,H,T,S)
    weights = F.dropout(weights, problem.dropout, training=problem.dropout > 0)
    return problem.mix(weights, problem.v, problem.queries, problem.keys)


def sdpa(problem: Problem) -> Tensor:
    """`scaled_dot_product_attention`, segment by segment if packed."""
    ever_new = _may_be_cudnn(problem.q) and not problem.q.requires_grad
    with _without_cudnn() if ever_new else nullcontext():
        parts = _segments(problem)
        if parts is None:
            return _sdpa_rows(problem)
        outputs = [_sdpa_rows(part) for part in parts]
        if not outputs:  # segments without tokens
            return problem.q.new_zeros(*problem.q.shape[:3], problem.v.shape[-1])
        return torch.cat([out.transpose(0, 1).flatten(1, 2).unsqueeze(0) for out in outputs], dim=2)


def _segments(problem: Problem) -> list[Problem] | None:
    """Packed segments as problems of their own, adjacent ones of the same lengths as rows of one.

    None if they are computed together: the row is not packed, or a GPU would wait for their lengths or be
    given many small problems.
    """
    if problem.queries.readable_lengths() is None or problem.keys.readable_lengths() is None:
        return None
    ends = zip(problem.queries.bounds(), problem.keys.bounds(), strict=True)
    pairs = [(query, key) for query, key in ends if query[0] < query[1]]
    if not problem.mask.by_position:
        return None if problem.q.is_cuda else [problem.segment(query, key) for query, key in pairs]
    found = []
    for _, group in groupby(pairs, key=lambda pair: [end - begin for begin, end in pair]):
        alike = list(group)
        query, key = zip(*(pair for pair in alike), strict=True)
        spans = [(side[0][0], side[-1][1]) for side in (query, key)]
        found.append(problem.segments(len(alike), *spans))
    return found


def _sdpa_rows(problem: Problem) -> Tensor:
    if problem.k.shape[2] == 0:
        return problem.q.new_zeros(*problem.q.shape[:3], problem.v.shape[-1])
    inputs = inputs_of(problem, groups_inside=problem.q.is_cuda)
    plain = None if problem.position.has_bias else plain_mask(problem)
    # On a CPU no fused kernel drops weights: all that are computed are stored, so runs halve them.
    stored = plain == "causal" and problem.dropout > 0 and band(problem) is not None
    if plain is not None and not stored:
        with sdpa_kernel(FASTEST, set_priority=True) if prefers_cudnn(problem) else nullcontext():
            return inputs.call(slice(None), slice(None), None, is_causal=plain == "causal")
    runs = sdpa_runs(problem)
    if len(runs) == 1:
        return _run(problem, inputs, *runs[0], kept=True)
    outputs = []
    large = mask_size(problem, runs) > _budget(problem)
    for queries, keys in runs:
        if large and torch.is_grad_enabled():
            # The backward pass would store every run's mask, usually n×n together: recompute them instead.
            outputs.append(checkpoint(_run, problem, inputs, queries, keys, use_reentrant=False))
        else:
            outputs.append(_run(problem, inputs, queries, keys, kept=not large))
    return torch.cat(outputs, dim=2)


def sdpa_runs(problem: Problem) -> list[Run]:
    """Which queries go to the kernel together, and with which keys."""
    count, width = problem.q.shape[2], problem.k.shape[2]
    reach = band(problem)
    if reach is None:
        step, some = _run_length(problem, width), max(count, 1)  # one run of no queries, too
        return [(slice(at, min(at + step, count)), slice(0, width)) for at in range(0, some, step)]
    before, after = reach
    wanted = CAUSAL_RUN if before >= width else max(shortest_band(problem), (before + after) // 2)
    step = min(wanted, LONGEST_BAND, count)
    step = min(step, _run_length(problem, min(step + before + after, width)))
    ahead = (problem.queries.start or 0) - (problem.keys.start or 0)  # from first key to first query
    return banded_runs(count, width, step, reach, ahead)


def banded_runs(count: int, width: int, step: int, reach: tuple[int, int], ahead: int = 0) -> list[Run]:
    """`step` queries at a time, each run with the keys that it sees if a query sees `reach` around it."""
    (before, after), runs = reach, []
    for at in range(0, count, step):
        end = min(at + step, count)
        first = min(max(at + ahead - before, 0), width - 1)  # at least one, which the mask then hides
        last = max(min(end + ahead + after, width), first + 1)
        runs.append((slice(at, end), slice(first, last)))
    return runs


def band(problem: Problem) -> tuple[int, int] | None:
    """How far a query sees to either side, if a window or causal mask on a CPU hides many keys."""
    queries, keys = problem.queries, problem.keys
    if problem.q.device.type != "cpu" or queries.segment is not None:
        return None
    if queries.start is None or keys.start is None or problem.q.shape[2] == 0:  # positions are unknown
        return None
    parts = problem.mask.parts
    windows = [part for part in parts if isinstance(part, Window)]
    causal = any(isinstance(part, Causal) for part in parts)
    if not windows:
        everything = max(queries.extent, problem.k.shape[2])  # queries may come long after the keys
        return (everything, 0) if causal and problem.q.shape[2] >= 2 * CAUSAL_RUN else None
    before = min(part.before for part in windows)
    after = 0 if causal else min(part.after for part in windows)
    shortest = min(shortest_band(problem), problem.q.shape[2])
    return (before, after) if shortest + before + after < problem.k.shape[2] else None


def shortest_band(problem: Problem) -> int:
    """The fewest queries of a run under a window: more if few rows and heads must keep many threads busy."""
    rows, heads = problem.q.shape[:2]
    share = max(1, 4 * torch.get_num_threads() // max(rows * heads, 1))
    return min(SHORTEST_BAND * share, LONGEST_BAND)


def _budget(problem: Problem) -> int:
    return RUN_ELEMENTS.get(problem.q.device.type, RUN_ELEMENTS["cpu"])


def mask_size(problem: Problem, runs: Sequence[Run]) -> int:
    """The total size of the masks or biases of all runs."""
    pairs = sum((queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys in runs)
    return _mask_rows(problem) * int(pairs)


def _mask_rows(problem: Problem) -> int:
    """How many entries a mask or bias has per pair of positions: one for each row and head that differ."""
    heads = problem.q.shape[1] if problem.position.has_bias else problem.mask.heads
    # A bias by distance is the same for all rows with the same positions; one that needs the query never is.
    alike = problem.position.elementwise_bias and problem.queries.start is not None
    return heads * (problem.mask.rows if alike else problem.q.shape[0])


def plain_mask(problem: Problem) -> str | None:
    """'all' or 'causal' if the kernel supports the mask itself, else None."""
    queries, keys = problem.queries, problem.keys
    if queries.segment is not None:
        return None
    parts = list(problem.mask.parts)
    if problem.q.is_cuda:
        parts = [part for part in parts if not is_needless(part, problem)]
    if not parts:
        return "all"
    if not all(isinstance(part, Causal) for part in parts):
        return None
    if queries.start is None or keys.start is None:
        return None
    if queries.start >= keys.extent - 1:
        return "all"  # one new token sees everything before it
    return "causal" if queries.start == keys.start else None


def _run_length(problem: Problem, width: int) -> int:
    """How many queries a run with this many keys may have."""
    if not problem.position.has_bias and not problem.mask.depends_on_query:
        return max(1, problem.q.shape[2])
    return max(1, _budget(problem) // max(_mask_rows(problem) * width, 1))


def _run(problem: Problem, inputs: Inputs, rows: slice, keys: slice, kept: bool = False) -> Tensor:
    """One run of queries with its mask and bias, which all layers share if they are alike and `kept`."""
    if kept and problem.position.elementwise_bias and not problem.position.per_layer:
        name = f"sdpa mask from {rows.start}"
        visible, empty = problem.once_a_pass(name, lambda: _mask_and_bias(problem, rows, keys))
    else:
        visible, empty = _mask_and_bias(problem, rows, keys)
    out = inputs.call(rows, keys, visible)
    return out if empty is None else out.masked_fill(empty, 0.0)


def _mask_and_bias(problem: Problem, rows: slice, keys: slice) -> tuple[Tensor | None, Tensor | None]:
    """The kernel's `attn_mask` for some queries and keys, and which queries may attend to nothing."""
    count, width = problem.q.shape[2], problem.k.shape[2]
    queries = problem.queries if rows == slice(0, count) else problem.queries[rows]
    seen = problem.keys if keys == slice(0, width) else problem.keys[keys]
    allowed, empty, bias = problem.allowed(queries, seen), None, None
    if allowed is not None:
        empty = ~allowed.any(-1, keepdim=True)
        allowed = allowed | empty
    if problem.position.has_bias:
        q, k = problem.q[:, :, rows], problem.spread(problem.k[:, :, keys])
        bias = problem.position.bias(q, k, queries, seen, problem.score.scale, slice(None))
    if problem.mask.has_bias:
        numbers = problem.added(queries, seen)
        bias = numbers if bias is None else bias + numbers
    if bias is None:
        return allowed, empty
    bias = bias.to(problem.q.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -torch.inf), empty


def short(problem: Problem) -> Tensor:
    """Packed sequences of at most 128 tokens, each held whole."""
    from clearhead.nn.attention import short as kernel  # imports Triton, registers operators: only if used

    return kernel.short(problem)


KERNELS: dict[str, Kernel] = {
    "reference": reference,
    "tiled": tiled,
    "blocks": blocks,
    "sdpa": sdpa,
    "short": short,
    "varlen": varlen,
    "flex": flex_kernel.flex,
}


def unsupported(name: str, problem: Problem) -> str | None:
    """Why this kernel cannot compute this problem, as the end of a sentence; None if it can."""
    if name in ("reference", "tiled", "blocks"):
        return None
    if not problem.score.is_product:
        return f"it needs a dot-product score, and '{type(problem.score).__name__.lower()}' is not"
    if problem.position.adds_values:
        return "the position scheme adds to the values by weights that this kernel never materialises"
    if name == "sdpa":
        return "it does not support soft-capping" if problem.softcap is not None else None
    if problem.q.device.type != "cuda":
        return f"it needs a GPU, and the tensors are on '{problem.q.device.type}'"
    if name == "flex":
        return flex_kernel.unsupported(problem)
    if (reason := varlen_unsupported(problem)) is not None or name == "varlen":
        return reason
    from clearhead.nn.attention import short as kernel

    return kernel.unsupported(problem)


def choose(problem: Problem) -> str:
    """The kernel that `auto` chooses: a fused one if exact, tiled otherwise."""
    if unsupported("varlen", problem) is None:
        return "varlen" if unsupported("short", problem) else "short"
    if problem.mask.sparse and pays(problem) and not (problem.q.is_cuda and flash_unsupported(problem)):
        return "blocks"
    if unsupported("flex", problem) is None and worthwhile(problem):
        return "flex"
    if unsupported("sdpa", problem) is None:
        return "sdpa"
    return "tiled"


def worthwhile(problem: Problem) -> bool:
    """Whether flex pays off: a long problem that the plain fused kernel does not compute at full speed."""
    special = problem.softcap is not None or problem.position.has_bias or plain_mask(problem) is None
    return special and problem.q.shape[2] * problem.k.shape[2] >= flex_kernel.LONG


def served_by(problem: Problem, kernel: str | Kernel = "auto") -> str:
    """Which kernel computes a problem on a GPU, by the name it has in a run's log."""
    if callable(kernel):
        return getattr(kernel, "__name__", "own")
    name = choose(problem) if kernel == "auto" else kernel
    if name == "varlen":
        return "varlen flash"
    if name != "sdpa":
        return name
    half = problem.q.dtype in (torch.float16, torch.bfloat16)
    plain = not problem.position.has_bias and plain_mask(problem) is not None
    if half and plain:
        return "cuDNN flash" if prefers_cudnn(problem) else "flash"
    return "memory-efficient"


def attend(problem: Problem, kernel: str | Kernel = "auto") -> Tensor:
    """Compute a problem with a kernel given by name, or with your own function."""
    if callable(kernel):
        return kernel(problem)
    if kernel == "auto":
        return KERNELS[choose(problem)](problem)
    if kernel not in KERNELS:
        raise UserError(f"There is no attention kernel '{kernel}': {nearest(kernel, ['auto', *KERNELS])}")
    if reason := unsupported(kernel, problem):
        raise UserError(f"The kernel '{kernel}' cannot compute this attention: {reason}. Use kernel='auto'.")
    return KERNELS[kernel](problem)
