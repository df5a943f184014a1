"""What a composition holds that cannot act, one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlfw.interfaces import Surrogate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from omegaconf import DictConfig

    from rlfw.composition import Composition
    from rlfw.interfaces import Controller


def idle(cfg: DictConfig, composition: Composition, controllers: Iterable[Controller]) -> list[str]:
    """What is known before the run."""
    controllers = list(controllers)
    known = [] if cfg.iterations is None else still(cfg, controllers, cfg.iterations)
    return [*_waiting(cfg, composition, controllers), *known]


def _waiting(cfg: DictConfig, composition: Composition, controllers: list[Controller]) -> list[str]:
    """Parts that wait for the policy to leave the old one, where the update is a single optimizer step."""
    if cfg.epochs * cfg.num_minibatches > 1:
        return []
    old = "old_logprobs" in composition.ratio.needs  # else the ratio is to the policy that acted, in another precision
    names = dict(composition.names) | {
        id(part): f"controller={node.part}" for part, node in zip(controllers, cfg.controller.values(), strict=True)
    }
    parts = [part for part in (*composition, *controllers) if part.acts_off_policy]
    found = [names[id(part)] for part in parts if old or not isinstance(part, Surrogate)]
    if not found:
        return []
    return [f"{', '.join(found)} cannot act within a single optimizer step: set epochs or num_minibatches >= 2"]


def still(cfg: DictConfig, controllers: Iterable[Controller], iterations: int) -> list[str]:
    """Controllers that hold the policy to the end of a run of so many ``iterations``."""
    return [
        f"controller={node.part} holds the policy still for {part.holds_policy} iterations and the run has "
        f"{iterations}: it never moves; give the run more, or change controller.{name}"
        for part, (name, node) in zip(controllers, cfg.controller.items(), strict=True)
        if part.holds_policy >= max(iterations, 1)
    ]
