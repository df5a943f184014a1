"""What a run reports, on rollouts written by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlfw.metrics import first_step_metrics, rollout_metrics
from rlfw.rollout import Batch, Current, Episodes, Rollout


def rollout(right: list[list[float]], dropped: int = 0) -> Rollout:
    """Groups of rows of one step each, by their rewards."""
    rewards = torch.tensor([reward for group in right for reward in group])[:, None]
    B = len(rewards)
    flags = torch.zeros(B, dtype=torch.bool)
    return Rollout(
        context=None,
        actions=torch.zeros(B, 1),
        logprobs=torch.zeros(B, 1),
        rewards=rewards,
        mask=torch.ones(B, 1, dtype=torch.bool),
        terminated=~flags,
        truncated=flags,
        group=torch.tensor([g for g, group in enumerate(right) for _ in group]),
        episode=torch.arange(B),
        episodes=Episodes(rewards[:, 0], torch.ones(B)),
        num_generated=B + dropped,
    )


def passes(found: Rollout) -> dict[str, float]:
    return {name: value for name, value in rollout_metrics(found).items() if name.startswith("group/pass@")}


def test_pass_at_k() -> None:
    """1 - C(n - c, k) / C(n, k): 3 of 8 right, 1 of 16 right, and the mean of 1 and 0 right of 2."""
    three_of_eight = {"group/pass@1": 3 / 8, "group/pass@2": 1 - 10 / 28, "group/pass@4": 0.928571, "group/pass@8": 1}
    assert passes(rollout([[1.0] * 3 + [0.0] * 5])) == pytest.approx(three_of_eight, abs=1e-6)
    assert passes(rollout([[0.0] * 15 + [1.0]]))["group/pass@8"] == pytest.approx(0.5)
    assert passes(rollout([[1.0, 0.0], [0.0, 0.0]])) == pytest.approx({"group/pass@1": 0.25, "group/pass@2": 0.5})


def test_pass_at_k_goes_as_far_as_the_smallest_group() -> None:
    assert list(passes(rollout([[1.0] * 5, [0.0] * 3]))) == ["group/pass@1", "group/pass@2"]


@pytest.mark.parametrize("found", [rollout([[1.0, 0.5]]), rollout([[1.0, 0.0]], dropped=1), rollout([[1.0], [0.0]])])
def test_no_pass_at_k_without_right_and_wrong_or_where_rows_are_missing(found: Rollout) -> None:
    assert passes(found) == {}


def test_the_first_step_of_an_update_by_hand() -> None:
    """Ratios 1.1 and 0.8 to the old policy are off by 0.15 in the mean; the one that acted gave 1/2, twice the old's
    1/4, to the second step. The third step is off the mask."""
    old, new = torch.tensor([[0.5, 0.25, 0.1]]).log(), torch.tensor([[0.55, 0.2, 0.9]]).log()
    acted, mask = torch.tensor([[0.5, 0.5, 0.3]]).log(), torch.tensor([[True, True, False]])
    batch = Batch.of(rollout([[1.0]])).with_(logprobs=acted, mask=mask, old_logprobs=old)
    found = first_step_metrics(Current(new), batch)
    assert found["val/ratio_first_gap"] == pytest.approx(0.15)
    assert found["sampling/logp_difference_mean"] == pytest.approx(math.log(2) / 2)
    assert found["sampling/logp_difference_max"] == pytest.approx(math.log(2))
