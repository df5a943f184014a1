"""my_part keeps its axis's promises, and takes a step that can be foretold."""

from pathlib import Path

import torch
from rlfw import build, config
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("optimizer/my_part", [PLUGIN])


def test_my_part_steps_against_the_gradient() -> None:
    """Whatever the gradient's size, an Adam's first step is about the learning rate."""
    config.prepare_for([PLUGIN])
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = build("optimizer", {"part": "my_part", "beta1": 0.0}).build([{"params": [weight], "lr": 0.1}])
    weight.grad = torch.tensor([3.0, -50.0])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.1, 0.1]))
