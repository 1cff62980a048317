"""What a GPU that is not there, is too small or has an old driver says: one line, with what to do. No GPU is needed."""

import warnings

import pytest
import torch
from conftest import tiny_config, tiny_images

from intrabatch.devices import pick_device
from intrabatch.errors import DeviceError
from intrabatch.train import Training, train

OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


def no_gpu():
    warnings.warn(f"{OLD} (Triggered internally at CUDAFunctions.cpp:108.)", stacklevel=1)
    return False


def test_an_old_driver_is_told_in_its_own_words(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", no_gpu)
    with pytest.raises(DeviceError) as told:
        pick_device("cuda")
    assert str(told.value) == f"device 'cuda' cannot be used: {OLD}; use --device cpu"
    assert pick_device("auto").type == "cpu"


def test_a_gpu_beyond_the_last(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(pick_device("cuda:1")) == "cuda:1"
    with pytest.raises(DeviceError, match=r"device 'cuda:2' does not exist: this machine has 2 GPU\(s\)"):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    ("store", "advice"),
    [
        ("auto", "try --set batch.images=4, or keep decoded images off the device: --set image.store=memory"),
        ("memory", "try --set batch.images=4"),
    ],
)
def test_out_of_memory_names_a_batch_that_may_fit_and_another_store(tmp_path, monkeypatch, store, advice):
    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Training, "_train_epoch", full)
    config = tiny_config("batch.classes=3", "batch.images=8", f"image.store={store}")
    with pytest.raises(DeviceError) as told:
        train(config, tiny_images(), tmp_path / "run")
    assert str(told.value) == f"out of memory on cpu with batches of 3 x 8 images; {advice}"
