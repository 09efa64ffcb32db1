"""`torch.distributed` on CPUs over Railnet's engine: shared memory inside a host, TCP or RoCEv2 between hosts.

    import torch.distributed as dist, railnet.torch
    dist.init_process_group("railnet")

From PyTorch 2.15 on the import is not needed: PyTorch finds the backend by its name.
"""

from __future__ import annotations

from railnet.torch.backend import Backend, Group, register
from railnet.torch.failure import CommunicationError
from railnet.torch.recorder import dump_flight_recorder

__all__ = ["Backend", "CommunicationError", "Group", "dump_flight_recorder", "register"]

register()
