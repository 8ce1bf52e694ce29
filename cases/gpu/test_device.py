"""NVML's view of this host's GPUs against CUDA's."""

import os

import torch

from loadproof.harness.device import describe_gpu, list_gpus, visible_devices


def test_visible_devices_are_those_of_cuda_in_its_order() -> None:
    visible = visible_devices(
        os.environ.get("CUDA_VISIBLE_DEVICES"), list_gpus(), os.environ.get("CUDA_DEVICE_ORDER")
    )
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    assert [gpu.uuid.partition("-")[2] for gpu in visible] == [str(device.uuid) for device in properties]
    for gpu, device in zip(visible, properties, strict=True):
        assert gpu.compute_capability == (device.major, device.minor)
        # CUDA keeps a little for itself.
        assert 0.9 <= device.total_memory / gpu.memory_bytes <= 1
    described = describe_gpu()
    assert described is not None
    assert described["name"] == properties[0].name
    assert described["uuid"] == visible[0].uuid
    print(described)
