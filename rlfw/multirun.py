"""Hydra's own multirun: one run a combination, each in a folder of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from rlfw import config
from rlfw.errors import RunError, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def multirun(words: list[str]) -> int:
    """``rlfw train`` with Hydra's flags (-m, --cfg job, --info, ...).

    A job that fails says so in one line, and the others run; the exit code is that of the first that failed.
    """
    words = config.prepare_for(words)
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path="pkg://rlfw.conf", config_name="config")
    def job(cfg: DictConfig) -> str | None:
        from rlfw.api import interrupted, run

        overrides = list(HydraConfig.get().overrides.task)
        try:
            path = run(config.settle(cfg, overrides), overrides)
            if interrupted(path):
                raise KeyboardInterrupt
            return str(path)
        except (UserError, RunError) as error:
            print(f"rlfw: {' '.join(overrides)}: {error}", file=sys.stderr)
            codes.append(2 if isinstance(error, UserError) else 1)
            return None

    # Hydra reads the command line itself; with full errors it raises what it would else print.
    before, sys.argv = sys.argv, ["rlfw train", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        job()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(config.explain(error, [word for word in words if "=" in word])) from error
    finally:
        sys.argv = before
    return codes[0] if codes else 0
