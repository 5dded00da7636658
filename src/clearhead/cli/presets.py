"""`clearhead presets`: the named models that can be built."""

from __future__ import annotations

from clearhead.cli.options import AsJson
from clearhead.cli.table import show_json, show_table


def presets(as_json: AsJson = False) -> None:
    """List the named models that can be built, with their sizes.

    \b
    Examples:
      clearhead presets
      clearhead presets --json
      clearhead plan --preset base
    """
    from clearhead.bundle.folder import layers_in_words  # here, so that --help does not wait for torch
    from clearhead.models import count_parameters, preset
    from clearhead.models import presets as known
    from clearhead.models.config import NO_TRANSFORMERS

    configs = {name: preset(name) for name in known()}
    sizes = {name: count_parameters(config) for name, config in configs.items()}
    if as_json:
        show_json(
            [
                {"name": name, "parameters": sizes[name], **config.to_dict()}
                for name, config in configs.items()
            ]
        )
        return
    rows = []
    for name, config in configs.items():
        heads = "–" if config.family in NO_TRANSFORMERS else str(config.attention.heads)
        size = f"{sizes[name]:,}"
        rows.append([name, config.family, layers_in_words(config), f"{config.width:,}", heads, size])
    show_table(["name", "family", "layers", "width", "heads", "parameters"], rows, numbers=[2, 3, 4, 5])
