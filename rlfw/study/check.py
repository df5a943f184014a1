"""Whether a composition could train, asked of the trainer itself: it is made as for a run, and closed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlfw import checks, effects
from rlfw.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from rlfw.interfaces import Policy


class Check:
    """Checks the arms of one study. A policy is made once for all arms that have the same: it may be large."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}

    def __call__(self, cfg: DictConfig, words: Sequence[str]) -> None:
        """UserError for whatever a run would refuse before its first step."""
        checks.root(cfg)
        effects.check(cfg, words)
        _Rehearsal(cfg, self.policies).close()


class _Rehearsal(Trainer):
    """A trainer that is made and never trains."""

    def __init__(self, cfg: DictConfig, policies: dict[str, Policy]) -> None:
        self.policies = policies
        super().__init__(cfg)

    def _build(self, axis: str, **wires: Any) -> Any:
        if axis != "policy":
            return super()._build(axis, **wires)
        key = json.dumps([OmegaConf.to_container(self.cfg[group], resolve=True) for group in ("env", "policy")])
        if key not in self.policies:
            self.policies[key] = super()._build(axis, **wires)
        return self.policies[key]
