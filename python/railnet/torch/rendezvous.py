"""How the ranks of a group meet: through PyTorch's store, which every launcher of PyTorch brings."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from railnet import _railnet
from railnet.torch.failure import CommunicationError


def rendezvous(store: Any, rank: int, size: int, timeout: timedelta) -> _railnet.Communicator:
    """Rank 0 chooses a port and a secret and tells the others; then they meet there."""
    # A store may outlive a group: torchrun's serves whatever a process makes one after the other.
    generation = store.add(f"railnet/{rank}/groups", 1)
    prefix = f"railnet/{generation}/"
    store.set(f"{prefix}host/{rank}", _host())
    if rank == 0:
        hosts = _await(store, prefix, size, timeout)
        port, secret = _railnet.meeting()
        place: dict[str, Any] = {"hosts": _addresses(hosts), "port": port, "secret": secret}
        store.set(f"{prefix}place", json.dumps(place))
    else:
        place = json.loads(_get(store, f"{prefix}place", prefix, size, timeout))
    return _railnet.Communicator.meet(
        rank,
        size,
        hosts=place["hosts"],
        port=place["port"],
        job=f"torch {place['secret'][:8]}",
        secret=place["secret"],
        timeout=timeout,
        error=CommunicationError,
    )


def alone() -> _railnet.Communicator:
    """The communicator of a single rank, without a rendezvous."""
    limit = timedelta(minutes=5)
    return _railnet.Communicator.meet(
        0, 1, hosts=["127.0.0.1"], port=1, job="alone", secret="alone", timeout=limit, error=CommunicationError
    )


def _host() -> str:
    """Which start of which machine this is, and which network inside it: containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _await(store: Any, prefix: str, size: int, timeout: timedelta) -> list[str]:
    keys = [f"{prefix}host/{rank}" for rank in range(size)]
    try:
        store.wait(keys, timeout)
    except Exception as error:
        raise _missing(store, prefix, size, timeout, error) from error
    return [store.get(key).decode() for key in keys]


def _get(store: Any, key: str, prefix: str, size: int, timeout: timedelta) -> str:
    try:
        store.wait([key], timeout)
    except Exception as error:
        raise _missing(store, prefix, size, timeout, error) from error
    return str(store.get(key).decode())


def _missing(store: Any, prefix: str, size: int, timeout: timedelta, cause: Exception) -> CommunicationError:
    """Who has not come."""
    try:
        ranks = [rank for rank in range(size) if not _has(store, f"{prefix}host/{rank}")]
    except Exception:
        return CommunicationError(f"railnet: the store is gone, so the {size} ranks cannot meet: {cause}")
    if not ranks:
        return CommunicationError(f"railnet: rank 0 came and did not say where to meet within {timeout}: {cause}")
    shown = ", ".join(map(str, ranks[:12])) + (f", … ({len(ranks)} in all)" if len(ranks) > 12 else "")
    who = f"rank {shown} has" if len(ranks) == 1 else f"ranks {shown} have"
    error = CommunicationError(
        f"railnet: {who} not made the group within {timeout}; its other ranks wait. Every rank of a group has to call "
        "init_process_group or new_group; timeout= sets the limit"
    )
    error.ranks = ranks
    return error


def _has(store: Any, key: str) -> bool:
    if hasattr(store, "check"):
        return bool(store.check([key]))
    # Older versions keep `check` to themselves: there a wait without a key is an error at its timeout.
    try:
        store.wait([key], timedelta(milliseconds=10))
    except Exception:
        return False
    return True


def _addresses(hosts: list[str]) -> list[str]:
    """Where the other ranks find this one, which is rank 0."""
    if len(set(hosts)) == 1:
        return ["127.0.0.1"]
    master = os.environ.get("MASTER_ADDR", "")
    found = [master] if master and _is_own(master) else []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # No packet goes out: the kernel only chooses the address that it would send from.
            probe.connect(("192.0.2.1", 9))
            found.append(probe.getsockname()[0])
    except OSError:
        pass
    return [*found, socket.gethostname()]


def _is_own(host: str) -> bool:
    """Whether a name or an address is of this host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return not str(address[0]).startswith("127.")
