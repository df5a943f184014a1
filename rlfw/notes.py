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
    return [
        f"{', '.join(found)} cannot act: with epochs=1 and num_minibatches=1 the only optimizer step is taken where "
        "the policy still equals the old one; set epochs or num_minibatches >= 2"
    ]
