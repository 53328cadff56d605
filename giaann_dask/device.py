"""Choose the device of tensors; the only module that names CUDA.

Devices of inference are chosen by name, and their memory is measured here. Everything else takes a `torch.device`
without checking its kind; `giaann_dask.cluster` starts clusters of CUDA workers.

Importing this module does not import PyTorch, whose import takes longer than any other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, get_args

from giaann_dask.errors import OptionError, parameter

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda"]
DEVICE_NAMES: tuple[DeviceName, ...] = get_args(DeviceName)


def select_device(name: DeviceName = "auto") -> torch.device:
    """Return the device of a name.

    Parameters
    ----------
    name : {"auto", "cpu", "cuda"}
        ``"auto"`` is CUDA where there is a CUDA device, else the CPU.

    Returns
    -------
    torch.device

    Raises
    ------
    OptionError
        If the name is unknown, or CUDA is asked for and there is no CUDA device.

    Examples
    --------
    >>> select_device("cpu")
    device(type='cpu')
    """
    if name not in DEVICE_NAMES:
        raise OptionError(f"{parameter('device')} is {name!r}", "auto, cpu or cuda", "choose one of them")
    import torch

    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if name == "cuda":
        raise OptionError(
            f"{parameter('device')} is 'cuda', but PyTorch finds no CUDA device here",
            "auto or cpu on this machine",
            f"choose {parameter('device')} auto, or install PyTorch with CUDA on a machine that has a GPU",
        )
    return torch.device("cpu")


def tensor_device(device: torch.device | None) -> torch.device | None:
    """Return a device where steps of inference are done as tensors, None for the CPU, where compiled code does them."""
    return device if device is not None and device.type != "cpu" else None


def device_bytes() -> int:
    """Return the device memory that this process has taken for tensors, in bytes; 0 where it has used no device.

    Examples
    --------
    >>> device_bytes() >= 0
    True
    """
    torch = sys.modules.get("torch")
    # The query must neither import PyTorch nor begin to use a device.
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_reserved(number) for number in range(torch.cuda.device_count()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread of this process for a while: its many small steps lose by more.

    Dask runs one task for each core already; a thread pool under each of them would contend.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
