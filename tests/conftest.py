"""One thread a test process and no network; every test seeds what it draws from."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from rlfw import registry

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    registry.load_components()
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(parts) for axis, parts in registry._PARTS.items()})
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
