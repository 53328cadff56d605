"""Simulate a GPU on a machine without one: tensors with real values in the memory of the CPU.

Every operation is also done without values on tensors of PyTorch's `FakeTensorMode` on ``cuda:0``, which raises where
operands are on different devices. Values are needed beside it, because what device code does next depends on them.
Tensors say that they are on the device ``meta``: a build for the CPU can index tensors there, and none on ``cuda``.
Transfers and synchronisations are counted. Does not cover: the kernels of a GPU, which `tests/test_gpu.py` runs on one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from giaann_dask import device

# Passed to the code under test.
DEVICE = torch.device("meta")
_CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_ATEN = torch.ops.aten
_VALUE = (_ATEN._local_scalar_dense.default, _ATEN.equal.default, _ATEN.is_nonzero.default)
# Whose results have as many elements as their operands' values say, so that the host waits unless it has said how many.
_SIZED_BY_VALUES = (
    _ATEN.nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.repeat_interleave.Tensor,
    _ATEN._unique2.default,
    _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default,
    _ATEN.bincount.default,
)

_BY_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class DeviceTensor(torch.Tensor):
    """Tensor that says it is on a device, and has its values in the memory of the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> DeviceTensor:
        """Return a tensor on the simulated device with the same values, which it shares."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=DEVICE
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a tensor of the simulated device after the end of the simulation")

    def tolist(self) -> Any:
        """Return the values as a list, downloaded as PyTorch does it."""
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"DeviceTensor({self.values!r})"


class SimulatedDevice(TorchDispatchMode):
    """Context in which tensors can be on `DEVICE`.

    Attributes
    ----------
    counts : Counter
        ``uploads`` and ``downloads``, the bytes of each (``uploaded``, ``downloaded``), ``synchronisations`` (the host
        waits for a value or a size) and ``operations`` on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._fake = FakeTensorMode()
        self._around = ExitStack()
        self._devices: dict[Any, torch.device] = {}

    def __enter__(self) -> SimulatedDevice:
        # In inference mode, PyTorch dispatches whole compositions of operations.
        for module in (torch, device.torch):
            self._around.enter_context(mock.patch.object(module, "inference_mode", torch.no_grad))
        self._around.enter_context(self._fake)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._around.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        held = [each for each in given if isinstance(each, DeviceTensor)]
        asked = kwargs.get("device")
        if not held and (asked is None or torch.device(asked).type == "cpu"):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        # The device of a result depends on these alone.
        kind = (func, str(asked), tuple((isinstance(each, DeviceTensor), each.dim() == 0) for each in given))
        if kind not in self._devices:
            self._devices[kind] = self._device_of_result(func, args, kwargs, bool(held))
        device = self._devices[kind]
        real = tree_map(lambda each: each.values if isinstance(each, DeviceTensor) else each, (args, kwargs))
        if asked is not None:
            real[1]["device"] = _CPU
        with unset_fake_temporarily():
            found = func(*real[0], **real[1])
        self._count(func, args, kwargs, device, found)
        owners = {id(each.values): each for each in held}

        def wrapped(each: Any) -> Any:
            if not isinstance(each, torch.Tensor) or device == _CPU:
                return each
            owner = owners.get(id(each))
            return DeviceTensor(each) if owner is None else owner

        return tree_map(wrapped, found)

    def _device_of_result(self, func: Any, args: Any, kwargs: Any, held: bool) -> torch.device:
        """Return where PyTorch puts the result; raises what a GPU would where operands are on different devices."""
        if func in (*_VALUE, _ATEN._to_copy.default):
            return torch.device(kwargs.get("device") or (DEVICE if held else _CPU))

        def fake(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            device, values = (_CUDA, each.values) if isinstance(each, DeviceTensor) else (_CPU, each)
            meta = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device="meta")
            return FakeTensor(self._fake, meta, device)

        fakes = tree_map(fake, (args, kwargs))
        if "device" in kwargs:
            fakes[1]["device"] = _CUDA if torch.device(kwargs["device"]) == DEVICE else _CPU
        try:
            result = func(*fakes[0], **fakes[1])
        except RuntimeError as error:
            # Builds for the CPU have no guard of CUDA, which indexing by a mask asks for.
            if not isinstance(error, _BY_VALUES) and "not linked with" not in str(error):
                raise
            devices = {each.device for each in tree_flatten(fakes)[0] if isinstance(each, torch.Tensor) and each.dim()}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
            return _CPU if devices == {_CPU} else DEVICE
        found = {each.device for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)}
        assert len(found) <= 1, f"{func} gives tensors on {found}"
        return _CPU if found == {_CPU} else DEVICE

    def _count(self, func: Any, args: Any, kwargs: Any, device: torch.device, found: Any) -> None:
        counts = self.counts
        if func is _ATEN._to_copy.default and device != args[0].device:
            way = ("download", "downloaded") if device == _CPU else ("upload", "uploaded")
            counts[f"{way[0]}s"] += 1
            counts[way[1]] += found.nbytes
            counts["synchronisations"] += device == _CPU
            return
        counts["operations"] += 1
        boolean = func in (_ATEN.index.Tensor, _ATEN.index_put_.default) and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        sized = func in _SIZED_BY_VALUES and kwargs.get("output_size") is None
        counts["synchronisations"] += func in _VALUE or sized or boolean
