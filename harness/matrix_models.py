"""The cases of whole models. Imports no torch."""

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from .backends import SEED, Backends
from .checkpoint.config import read_quantization
from .model_spec import ExportedModel, GivenModel, ModelCaseSpec, ModelSource, ModelSpec, SyntheticModel
from .spec import Scheme


def real_models(on: Backends) -> list[ModelCaseSpec]:
    """SmolLM2 whole, under both schemes: on a GPU each kernel over each transport, on a CPU crosswise."""
    return _models(on, [("smollm2-135m", ExportedModel())])


SYNTHETIC_MODELS = (
    ("tiny-llama", SyntheticModel(architecture="llama", seed=SEED)),
    ("tiny-qwen2-tied", SyntheticModel(architecture="qwen2", seed=SEED, tied=True)),
    ("tiny-qwen3-tied", SyntheticModel(architecture="qwen3", seed=SEED, tied=True)),
)
"""All with narrow kv and an intermediate width that needs padding."""


def synthetic_models(on: Backends) -> list[ModelCaseSpec]:
    """Every architecture, small, tied and not."""
    return _models(on, SYNTHETIC_MODELS)


def given_model(on: Backends, path: Path) -> list[ModelCaseSpec]:
    """A checkpoint of the user's, with each kernel over each transport; raises ConfigError."""
    scheme = str(read_quantization(path).quant_algo).upper()
    model = ModelSpec(name=_id_of(path.name), scheme=scheme, source=GivenModel(path))
    return [_model_case(on, model, kernel, way) for kernel in on.attaching for way in on.transports]


def _models(on: Backends, sources: Sequence[tuple[str, ModelSource]]) -> list[ModelCaseSpec]:
    cases = []
    for name, source in sources:
        for scheme, own in zip(Scheme, cycle(on.transports), strict=False):
            model = ModelSpec(name=name, scheme=scheme.value, source=source)
            ways = on.transports if on.device == "cuda" else (own,)
            cases += [_model_case(on, model, kernel, way) for kernel in on.attaching for way in ways]
    return cases


def _model_case(on: Backends, model: ModelSpec, kernel: str, transport: str) -> ModelCaseSpec:
    return ModelCaseSpec(model=model, kernel=kernel, transport=transport, device=on.device)


def _id_of(name: str) -> str:
    """A folder's name as ids are written."""
    return "-".join(re.findall("[a-z0-9]+", name.lower())) or "model"
