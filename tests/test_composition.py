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


def test_a_further_instance_is_refused_by_its_own_name() -> None:
    far = ["algorithm=grpo", "+regularizer@regularizer.far=kl"]
    with pytest.raises(UserError, match=r"^regularizer\.far\.coef=-1"):
        composition(*far, "regularizer.far.coef=-1")
    with pytest.raises(UserError, match=r"write k2 or k3, regularizer\.far\.unbiased=true"):
        composition(*far, "regularizer.far.estimator=k1")
    with pytest.raises(UserError, match=r"^regularizer=\w+ and regularizer\.far \(clip\) both replace"):
        composition("algorithm=grpo", "+regularizer@regularizer.far=clip")


def test_parts_needs_are_known_by_name() -> None:
    needs = composition("algorithm=grpo").needs
    assert needs == {"old_logprobs", "ref_logprobs", "groups", "whole_episodes", "whole_rows", "ratio"}
