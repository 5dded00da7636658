"""Looking inside: named taps on the tensors of a forward pass.

A `Look` is passed to `forward`; every part asks it whether a name is wanted and
if so records the tensor. Names are paths such as `encoder.0.self.weights` or
`decoder.3.output`; patterns use `*`. Attention weights are recomputed exactly
for the layers and heads asked for, while the fast kernel still computes the
output: looking never changes what the model returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from clearhead.base.errors import UserError, nearest


class Look:
    """What to look at, and after the pass what was seen.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny")
    >>> look = clearhead.Look({"decoder.1.cross.weights": [0, 3]})
    >>> _ = model(torch.tensor([[4, 5, 6]]), torch.tensor([[1, 7]]), look=look)
    >>> look["decoder.1.cross.weights"].shape  # batch, the two heads, target, source
    torch.Size([1, 2, 2, 3])
    """

    def __init__(self, wanted: str | Iterable[str] | Mapping[str, Sequence[int] | None]) -> None:
        if isinstance(wanted, str):
            wanted = [wanted]
        self._wanted = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
        self.seen: dict[str, Tensor] = {}
        self._offered: set[str] = set()
        self._prefix = ""

    def at(self, *path: str | int) -> Look:
        """The same look from inside a part: names given there get `path` in front."""
        inner = Look.__new__(Look)
        inner._wanted, inner.seen, inner._offered = self._wanted, self.seen, self._offered
        inner._prefix = self._prefix + "".join(f"{step}." for step in path)
        return inner

    def wants(self, name: str) -> bool:
        """Whether some pattern asks for this name; expensive tensors are only computed if so."""
        self._offered.add(self._prefix + name)
        return any(fnmatchcase(self._prefix + name, pattern) for pattern in self._wanted)

    def asks(self, name: str) -> bool:
        """The same for a tensor that needs a pattern ending in its own name; a bare `*` is not enough."""
        named = [pattern for pattern in self._wanted if pattern.rpartition(".")[2] == name]
        return any(fnmatchcase(self._prefix + name, pattern) for pattern in named) and self.wants(name)

    def heads(self, name: str) -> Sequence[int] | None:
        """The heads asked for under this name; None means all."""
        full = self._prefix + name
        chosen: set[int] = set()
        for pattern, heads in self._wanted.items():
            if fnmatchcase(full, pattern):
                if heads is None:
                    return None
                chosen.update(heads)
        return sorted(chosen)

    def give(self, name: str, tensor: Tensor) -> None:
        """Offer a tensor that exists anyway; kept only if asked for."""
        if self.wants(name):
            self.seen[self._prefix + name] = tensor

    def __getitem__(self, name: str) -> Tensor:
        if name in self.seen:
            return self.seen[name]
        if name in self._offered:
            raise UserError(f"'{name}' was not asked for: name it when you make the Look.")
        hint = nearest(name, self._offered) if self._offered else "run the model with look=… first."
        raise UserError(f"Nothing named '{name}' was seen: {hint}")

    @property
    def names(self) -> list[str]:
        """Every name the last pass offered, asked for or not, in alphabetical order."""
        return sorted(self._offered)
