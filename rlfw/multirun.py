"""Hydra's own multirun: one run a combination, each in a folder of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from rlfw import config
from rlfw.errors import UserError, tell

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig


def _check_flags(words: list[str]) -> None:
    """Hydra ends the process over a flag that it does not know."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; rlfw train --help shows what it takes")

    setattr(parser, "error", refuse)  # noqa: B010
    if parser.parse_args(words).experimental_rerun is not None:
        raise UserError("--experimental-rerun reads a pickle, which could run anything: write the overrides themselves")


def multirun(words: list[str], *, debug: bool = False) -> int:
    """``rlfw train`` with Hydra's flags (-m, --cfg job, --info, ...).

    A job that fails says so in one line, and the others run; the exit code is that of the first that failed.
    """
    _check_flags(words)
    words = config.prepare_for(words)
    codes: list[int] = []
    sweeps: set[Path] = set()  # the folder of the sweep, once a job has run there

    @hydra.main(version_base="1.3", config_path="pkg://rlfw.conf", config_name="config")
    def job(cfg: DictConfig) -> str | None:
        from rlfw.api import interrupted, run

        hydra_cfg = HydraConfig.get()
        overrides = list(hydra_cfg.overrides.task)
        try:
            cfg = config.settle(cfg, overrides)
            swept = cfg.out is None and hydra_cfg.mode == RunMode.MULTIRUN
            if swept:
                cfg.out = hydra_cfg.runtime.output_dir
            path = run(cfg, overrides)
            if swept:
                sweeps.add(path.parent)
            if interrupted(path) is not None:
                raise KeyboardInterrupt
            return str(path)
        except Exception as error:
            codes.append(tell(error, debug=debug, job=" ".join(overrides)))
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
    for sweep in sweeps:
        print(f"{sweep}: look at it with rlfw report {sweep}")
    return codes[0] if codes else 0
