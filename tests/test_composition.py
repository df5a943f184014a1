"""What a composition refuses by itself."""

from __future__ import annotations

import pytest

from rlfw.composition import Composition
from rlfw.config import compose
from rlfw.errors import UserError
from rlfw.seeding import Streams


def composition(*words: str) -> Composition:
    return Composition(compose(words), gamma=1.0, max_steps=10, streams=Streams(0))


def test_a_reward_that_replaces_the_others_stands_first() -> None:
    weights = "reward.weighted.weights={a: 1.0}"
    composition("reward=[weighted,kl]", weights)
    with pytest.raises(UserError, match=r"reward=weighted replaces the rewards.*list it first"):
        composition("reward=[kl,weighted]", weights)


def test_parts_needs_are_known_by_name() -> None:
    needs = composition("algorithm=grpo").needs
    assert needs == {"old_logprobs", "ref_logprobs", "groups", "whole_episodes", "whole_rows", "ratio"}
