"""The daemon's tensors as an engine holds them: views of its arena, nothing copied."""

from collections import defaultdict
from collections.abc import Sequence

import torch

from ..formats import ProcessedLayer
from ..model_spec import PlainTensor
from ..spec import LayerSpec
from ..tensor_bytes import dtype_name, dtype_of
from .arena import Attachment
from .manifest import Manifest, bad_manifest

Views = dict[str, dict[str, torch.Tensor]]
"""By layer, and by the tensor's name in it."""


def views(manifest: Manifest, attachment: Attachment) -> Views:
    """Every tensor of the manifest, over the daemon's memory; nothing is copied."""
    whole = attachment.read(0, manifest.probe_offset)
    typed = {dtype: whole.view(dtype_of(dtype)) for dtype in {entry.dtype for entry in manifest.entries}}
    held: Views = defaultdict(dict)
    for entry in manifest.entries:
        start = entry.offset // typed[entry.dtype].element_size()
        held[entry.layer][entry.tensor] = typed[entry.dtype].as_strided(entry.shape, entry.stride, start)
    return held


def restore(manifest: Manifest, held: Views, layer: LayerSpec) -> ProcessedLayer:
    """The processed layer of these views, with its layout.

    Raises:
        BadManifest: the daemon does not hold this layer.
    """
    layout = manifest.layouts.get(layer.name)
    if layout is None:
        processed = ", ".join(sorted(manifest.layouts))
        raise bad_manifest(layer.name, f"a layer that the daemon holds ({processed})", "absent")
    return ProcessedLayer(spec=layer, layout=layout, tensors=held[layer.name])


def restore_plain(manifest: Manifest, held: Views, wanted: Sequence[PlainTensor]) -> dict[str, torch.Tensor]:
    """By name, the tensors that are served as they are, of these views.

    Raises:
        BadManifest: the daemon does not hold one, or holds it in another dtype or shape.
    """
    served = {
        f"{module}.{name}": tensor
        for module, tensors in held.items()
        if module not in manifest.layouts
        for name, tensor in tensors.items()
    }
    for plain in wanted:
        tensor = served.get(plain.name)
        found = None if tensor is None else (dtype_name(tensor.dtype), tuple(tensor.shape))
        if found != (plain.dtype, plain.shape):
            raise bad_manifest(plain.name, f"{plain.dtype} {list(plain.shape)}", found or "absent")
    return {plain.name: served[plain.name] for plain in wanted}
