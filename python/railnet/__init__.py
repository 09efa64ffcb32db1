"""Railnet: the AI training network in software.

Ask the simulator, or run `torch.distributed` over its engine (`import railnet.torch`).
"""

from railnet._railnet import VERSION as __version__

__all__ = ["__version__"]
