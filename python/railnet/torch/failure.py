"""What goes wrong between ranks, as PyTorch's programs expect it."""

from __future__ import annotations

import torch.distributed as dist

from railnet.torch import recorder


class CommunicationError(dist.DistBackendError):
    """A call failed. The text says who is missing, dead, stopped or calls something else; `ranks` has them by number."""

    #: The ranks of the group whose fault it is, as far as that is known.
    ranks: list[int] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        recorder.failed()
