"""Which device does the work, and in which precision; one clear line when it cannot."""

from __future__ import annotations

import warnings

import torch

from .config import BatchConfig
from .errors import DeviceError


def pick_device(name: str) -> torch.device:
    """The device called `name`; auto is the first GPU that works, else the CPU."""
    if name == "auto":
        name = "cuda" if _cuda_problem() is None else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device '{name}'; choose from: auto, cpu, cuda, cuda:0, cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device '{name}' is not supported; choose from: auto, cpu, cuda, cuda:0, cuda:1 ...")
    if device.type == "cuda":
        problem = _cuda_problem()
        if problem:
            raise DeviceError(f"device '{name}' cannot be used: {problem}; use --device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise DeviceError(f"device '{name}' does not exist: this machine has {torch.cuda.device_count()} GPU(s)")
    return device


def _cuda_problem() -> str | None:
    """Why no GPU can be used here, or None."""
    if not torch.version.cuda:
        return "this PyTorch was built without CUDA"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    told = [str(warning.message).split("(Triggered")[0].strip() for warning in caught]
    return told[0].splitlines()[0] if told else "no GPU or no driver was found"


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """bf16 where asked for, or where the GPU computes in it natively."""
    if name == "bf16":
        return torch.bfloat16
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if name == "auto" and native else torch.float32


def out_of_memory(device: torch.device, batch: BatchConfig, store: str) -> DeviceError:
    """What to do about it: half the batch, and decoded images kept elsewhere if they may lie on the device."""
    smaller = f"batch.images={batch.images // 2}" if batch.images > 2 else f"batch.classes={max(2, batch.classes // 2)}"
    stored = store in ("auto", "device")
    elsewhere = ", or keep decoded images off the device: --set image.store=memory" if stored else ""
    return DeviceError(
        f"out of memory on {device} with batches of {batch.classes} x {batch.images} images; "
        f"try --set {smaller}{elsewhere}"
    )
