"""What every part has, and the words for what it may ask of the trainer.

A part is a class registered under a name on an axis. It declares in ``needs`` what it reads beyond the rollout;
the trainer computes exactly that, and refuses a composition that cannot give it:

    values          the critic's V; only a LearnedBaseline brings a critic
    old_logprobs    log-probs at the start of the update
    ref_logprobs    log-probs under the frozen reference policy
    entropy         the policy's entropy
    greedy_returns  the return of one greedy episode from each group's start, played beside the sampled ones
    groups          rows in groups of at least two that share a start
    whole_episodes  every row is a whole episode
    whole_rows      rows stay whole in the minibatches (no layout of single steps)
    whole_batch     the optimizer's batch is not split into micro-batches
    ratio           a ratio between the current and the old policy (ratio=none has none)
    step_ratio      a ratio that belongs to each step alone (ratio=sequence and product spread the row's)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current

NEEDS = frozenset(
    {
        "values",
        "old_logprobs",
        "ref_logprobs",
        "entropy",
        "greedy_returns",
        "groups",
        "whole_episodes",
        "whole_rows",
        "whole_batch",
        "ratio",
        "step_ratio",
    }
)


class Part:
    """What every part has. Its keyword-only parameters are its configuration, stored under the same names."""

    needs: frozenset[str] = frozenset()
    formula: str = (
        ""  # what it computes, in the symbols of rlfw/notation.py; {key} stands for a key of its configuration
    )

    acts_off_policy: bool = False  # True: it does nothing while the policy still equals the old one

    # key or wired parameter -> the key and its value with which alone it is read: {"max_rounds": ("mode", "resample")}
    only_with: ClassVar[Mapping[str, tuple[str, Any]]] = {}

    # keys whose value may name a Python module, as in module:Env-v0: such a value is taken from the command line alone
    imports: ClassVar[tuple[str, ...]] = ()

    # keys whose value names files or folders that are read: a run is told from another by what stands in them
    files: ClassVar[tuple[str, ...]] = ()

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """Per-step metrics [B, T] of a whole update (all minibatches of all epochs), averaged over the mask."""
        return {}

    def report(self) -> Mapping[str, float]:
        """Numbers of the iteration that ends: what this part counted, or the knobs that it turned."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold, JSON or tensors; empty for a part without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of state_dict."""
