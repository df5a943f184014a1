"""Numbers of rows on their steps."""

import torch

from rlfw import functional as F


def test_the_last_step_of_each_row():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 1], [0, 0, 0]]).bool()
    found = F.on_last_step(torch.tensor([1.0, 2, 3, 4]), mask)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 1], [2, 0, 0], [0, 0, 3], [0, 0, 0]]))
