"""Hydra's own multirun: one run a combination, each in a folder of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig

from rlfw import config
from rlfw.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def multirun(words: list[str]) -> int:
    """``rlfw train`` with Hydra's flags (-m, --cfg job, --info, ...)."""
    typed = config.typed_overrides([word for word in words if not word.startswith("-")])
    config.prepare(next((value for key, value in typed if key == "plugins"), []))

    @hydra.main(version_base="1.3", config_path="pkg://rlfw.conf", config_name="config")
    def task(cfg: DictConfig) -> str:
        from rlfw.api import run

        overrides = list(HydraConfig.get().overrides.task)
        return str(run(config.settle(cfg, overrides), overrides))

    before = sys.argv
    sys.argv = ["rlfw train", *words]
    try:
        task()
    except UserError:
        raise
    finally:
        sys.argv = before
    return 0
