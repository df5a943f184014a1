"""Weights: what is left out is left out of every sum and of every denominator."""

import pytest
import torch

import rlfw
from rlfw import registry

registry.load_components()


@pytest.mark.parametrize(
    "aggregation", [n for n in registry.names("aggregation") if n not in ("constant", "token_sum")]
)
def test_truncated_rows_count_nowhere(aggregation: str):
    """Rows of 2, 2 and 4 steps, the third cut by the limit: loss and gradient are those of the first two alone."""
    credited = {"rewards": [1, 0, 7], "group": [0, 0, 0], "truncated": [False, False, True]}
    mask = torch.arange(4) < torch.tensor([2, 2, 4])[:, None]
    steps = torch.full((3, 4), -1.0).double()
    policies = {"logprobs": steps, "old_logprobs": steps, "ref_logprobs": steps - 0.5}
    common = ["baseline=none", "normalize=none", "ratio=none", "regularizer=kl", f"aggregation={aggregation}"]
    cut = rlfw.probe([*common, "weight=truncated"], mask=mask, **credited, **policies)
    without = rlfw.probe(
        common,
        mask=mask[:2],
        **{name: value[:2] for name, value in credited.items()},
        **{name: value[:2] for name, value in policies.items()},
    )
    torch.testing.assert_close(cut.loss, without.loss)
    torch.testing.assert_close(cut.gradient[:2], without.gradient)
    assert not bool(cut.gradient[2].any())


def test_batch_with_everything_truncated_trains_nothing():
    mask = torch.ones(2, 3).bool()
    steps = torch.full((2, 3), -1.0).double()
    found = rlfw.probe(
        ["algorithm=ppo", "baseline=critic", "regularizer=[clip,kl,entropy]", "weight=truncated"],
        **{"rewards": torch.ones(2, 3), "mask": mask, "group": [0, 1], "truncated": [True, True]},
        **{"logprobs": steps + 0.5, "old_logprobs": steps, "ref_logprobs": steps - 1, "entropy": steps + 2},
        values=torch.ones(2, 4),
    )
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())
    assert found.value_gradient is not None
    assert not bool(found.value_gradient.any())
    assert all(torch.tensor(value).isfinite() for value in found.metrics.values())
