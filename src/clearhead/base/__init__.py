"""The foundation: errors, strict configs, atomic file writes, device, seed, progress.

Every package may import from here; nothing here imports another package. Only
`device` and `seed` import torch, so the command line can use the rest without it.
"""

from clearhead.base.config import Config
from clearhead.base.errors import UserError

__all__ = ["Config", "UserError"]
