"""What `railnet dryrun` puts into the processes of a training script: a pretended GPU, a process group that moves nothing, a recorder.

Nothing here imports the rest of the package: the command copies this folder to where Python finds it, so that no installation of
Railnet's Python package is needed. `start` is called when the script has imported `torch`.
"""

from __future__ import annotations

import os
import sys

#: The oldest PyTorch whose internals these modules know.
MINIMUM = (2, 10)


def start() -> None:
    """Pretends a GPU and records, from now to the end of the process."""
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < MINIMUM or not hasattr(torch._C, "_acc"):
        sys.stderr.write(
            f"railnet: PyTorch {torch.__version__} is too old for a dry run: {MINIMUM[0]}.{MINIMUM[1]} or later is needed\n"
        )
        sys.stderr.flush()
        os._exit(3)

    # It looks all functions of PyTorch up: before some of them are others.
    import torch._dynamo

    from . import autocast, gpu, group, mode, recorder

    record = recorder.Recorder.from_environment()
    gpu.pretend(record)
    autocast.install()
    mode.install(record)
    group.install(record)
    recorder.follow_steps(record)
