"""`clearhead presets`: the named models that can be built."""

from __future__ import annotations

from clearhead.cli.table import show_table


def presets() -> None:
    """List the named models that can be built, with their sizes.

    \b
    Examples:
      clearhead presets
      clearhead plan --preset base
    """
    from clearhead.bundle.folder import layers_in_words  # here, so that --help does not wait for torch
    from clearhead.models import count_parameters, preset
    from clearhead.models import presets as known
    from clearhead.models.config import NO_TRANSFORMERS

    rows = []
    for name in known():
        config = preset(name)
        heads = "–" if config.family in NO_TRANSFORMERS else str(config.attention.heads)
        size = f"{count_parameters(config):,}"
        rows.append([name, config.family, layers_in_words(config), f"{config.width:,}", heads, size])
    show_table(["name", "family", "layers", "width", "heads", "parameters"], rows, numbers=[2, 3, 4, 5])
