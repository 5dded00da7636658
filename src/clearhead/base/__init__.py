"""The ground floor: errors, strict configs, files written whole, device, seed, progress.

Every room may import from here; nothing here imports another room. Only
`device` and `seed` import torch, so the rest serves the command line too.
"""

from clearhead.base.config import Config
from clearhead.base.errors import UserError

__all__ = ["Config", "UserError"]
