"""Whole models: one four-way run each, then one test for each named check."""

import pytest

from loadproof.cases.every_check import EveryCheck


@pytest.mark.loadproof_cases("real-models")
class TestRealModels(EveryCheck):
    """SmolLM2-135M-Instruct under both schemes, or the model that --loadproof-model names."""


@pytest.mark.loadproof_cases("synthetic-models")
class TestSyntheticModels(EveryCheck):
    """Every architecture with small random weights: narrow kv, padded widths, tied and untied embeddings."""
