"""Choose the device of tensors; the only module that names CUDA.

Devices of inference are chosen by name, and their memory is measured here. Everything else takes a `torch.device`
without checking its kind; `giaann_dask.cluster` starts clusters of CUDA workers.

PyTorch is imported where something first uses a tensor, as its import takes longer than any other, and need not be
installed for anything else: modules take the name `torch` from here, and None stands for the CPU, where compiled code
works on arrays.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from giaann_dask.errors import OptionError, require_one_of
from giaann_dask.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch as torch
    from numba import cuda

    gpu = cuda
else:
    np, torch = LazyModule("numpy"), LazyModule("torch", "torch")


def __getattr__(name: str) -> object:
    """Return numba's compiler of kernels as ``gpu``; a kernel's module needs it and no stand-in."""
    if name == "gpu":
        # Small batches are no mistake of users, whom numba would warn at each launch.
        import_module("numba").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
        return import_module("numba.cuda")
    raise AttributeError(name)


P = ParamSpec("P")
R = TypeVar("R")

DeviceName = Literal["auto", "cpu", "cuda"]
DEVICE_NAMES: tuple[DeviceName, ...] = get_args(DeviceName)
# Bytes that each of several tensors of one transfer begins at a multiple of.
_ALIGNED = 8


def select_device(name: DeviceName = "auto") -> torch.device | None:
    """Return the device of a name, None for the CPU.

    Parameters
    ----------
    name : {"auto", "cpu", "cuda"}
        ``"auto"`` is CUDA where there is a CUDA device, else the CPU.

    Returns
    -------
    torch.device or None

    Raises
    ------
    OptionError
        If the name is unknown, or CUDA is asked for and there is no CUDA device.

    Examples
    --------
    >>> select_device("cpu") is None
    True
    """
    # With its number, as tensors have it, so that devices can be compared.
    return torch.device("cuda", torch.cuda.current_device()) if finds_cuda(name) else None


def finds_cuda(name: DeviceName) -> bool:
    """Return whether a name stands for CUDA here, without using the device: dask-cuda's workers need it unused.

    Raises
    ------
    OptionError
        As `select_device`.
    """
    require_one_of("device", name, DEVICE_NAMES)
    if name == "cpu":
        return False
    if _has_driver() and torch.cuda.is_available():
        return True
    if name == "cuda":
        raise OptionError(
            "device is 'cuda', but PyTorch finds no GPU here",
            "auto or cpu on this machine",
            "choose device auto, or install PyTorch with CUDA on a machine that has a GPU",
            names=("device",),
        )
    return False


def _has_driver() -> bool:
    """Return whether PyTorch may find a device: without a driver it finds none, and need not be imported."""
    if importlib.util.find_spec("torch") is None:
        return False
    if "torch" in sys.modules:
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        # The driver of AMD, whose devices PyTorch calls CUDA, too.
        return Path("/dev/kfd").exists()
    return True


def without_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors run in PyTorch's inference mode, as ``torch.inference_mode`` does.

    PyTorch is imported when the function is called, not where it is defined.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        with torch.inference_mode():
            return function(*arguments, **named)

    return call


def count_devices() -> int:
    """Return how many CUDA devices this process may use.

    Examples
    --------
    >>> count_devices() >= 0
    True
    """
    return torch.cuda.device_count() if _has_driver() else 0


def device_names() -> tuple[str, ...]:
    """Return the names of the CUDA devices that this process may use, without using them.

    Examples
    --------
    >>> len(device_names()) == count_devices()
    True
    """
    count = count_devices()
    if not count:
        return ()
    try:
        # PyTorch would begin to use the device.
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return tuple(str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(number))) for number in range(count))
    except Exception:
        # Not installed, or a device of AMD.
        return count * ("unknown",)


def upload_arrays(arrays: Sequence[Sequence[npt.NDArray[Any]]], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays to a device in one transfer, joining those of each list.

    Parameters
    ----------
    arrays : sequence of sequence of ndarray
        One-dimensional, each contiguous; those of a list have one type.
    device : torch.device
        Any; what is copied to CUDA is gathered in pinned memory, so that this process does not wait for it.

    Returns
    -------
    list of torch.Tensor
        One for each list, int32 and without elements for an empty one.

    Examples
    --------
    >>> import numpy as np
    >>> upload_arrays([[np.array([1, 2]), np.array([3])], []], torch.device("cpu"))
    [tensor([1, 2, 3]), tensor([], dtype=torch.int32)]
    """
    begins = np.cumsum([0, *(-(-sum(each.nbytes for each in its) // _ALIGNED) * _ALIGNED for its in arrays)]).tolist()
    staged = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    parts = []
    for begin, its in zip(begins, arrays, strict=False):
        kind = its[0].dtype if its else np.dtype(np.int32)
        part = staged.numpy()[begin : begin + sum(each.nbytes for each in its)].view(kind)
        if its:
            np.concatenate(its, out=part)
        parts.append((begin, part.nbytes, torch.from_numpy(part).dtype))
    there = staged.to(device, non_blocking=True)
    return [there[begin : begin + size].view(kind) for begin, size, kind in parts]


def download_arrays(tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
    """Copy tensors of one device to the memory of this process in one transfer.

    Examples
    --------
    >>> download_arrays([torch.tensor([7], dtype=torch.uint8), torch.tensor([1, 2])])
    [array([7], dtype=uint8), array([1, 2])]
    """
    # The widest first, so that all are aligned.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    joined = torch.cat([tensors[place].view(torch.uint8) for place in order])
    # Pinned memory is used again by later transfers; new memory takes longer to touch than the transfer.
    pinned = torch.empty(len(joined), dtype=torch.uint8, pin_memory=True) if joined.is_cuda else None
    whole = (joined.cpu() if pinned is None else pinned.copy_(joined)).numpy()
    found: dict[int, npt.NDArray[Any]] = {}
    begin = 0
    for place in order:
        end = begin + tensors[place].nbytes
        found[place] = whole[begin:end].view(torch.empty(0, dtype=tensors[place].dtype).numpy().dtype)
        begin = end
    return [found[place] for place in range(len(tensors))]


def require_kernels() -> None:
    """Raise an `OptionError` where numba cannot use the CUDA device that PyTorch has found."""
    if not import_module("numba.cuda").is_available():
        raise OptionError(
            "device is 'cuda', but numba finds no GPU here",
            "numba-cuda for the driver's version of CUDA",
            "install the extra cuda, or choose device cpu",
            names=("device",),
        )


def free_device_bytes() -> float:
    """Return how many bytes of the device that kernels use are free; numba's simulator has no end."""
    return float(import_module("numba.cuda").current_context().get_memory_info().free)


def device_bytes() -> int:
    """Return the device memory that this process has taken for tensors, in bytes; 0 where it has used no device.

    With RMM's pool, which does not report to PyTorch, it is what all processes have taken of its devices.

    Examples
    --------
    >>> device_bytes() >= 0
    True
    """
    # The query must neither import PyTorch nor begin to use a device.
    if "torch" not in sys.modules or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    numbers = range(torch.cuda.device_count())
    if torch.cuda.get_allocator_backend() == "pluggable":
        return sum(total - free for free, total in map(torch.cuda.mem_get_info, numbers))
    return sum(map(torch.cuda.memory_reserved, numbers))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread of this process for a while: its many small steps lose by more.

    Dask runs one task for each core already; a thread pool under each of them would contend. Nothing is done where
    torch is not imported.
    """
    if "torch" not in sys.modules:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
