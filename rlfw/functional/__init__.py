"""The mathematics: pure functions, tensors in, tensors out.

    B rows   T steps   mask [B, T] bool   group [B] int64, any labels

Log-probs, log-ratios and KL are in nats. Every function keeps the dtype it is given.
"""

from .aggregation import prompt_mean, sequence_mean, sequence_sum, token_mean, token_sum
from .groups import group_center, group_index, group_std, group_sum
from .objectives import KL_ESTIMATORS, MAX_LOG_RATIO, clip_surrogate, exp_ratio, kl_estimate, value_loss
from .returns import BLOCK, discounted_sum, gae, returns_to_go
from .rows import masked, row_mean, row_sum, spread
from .scales import center, safe_divide, std, std_of_centered, whiten

__all__ = [
    "BLOCK",
    "KL_ESTIMATORS",
    "MAX_LOG_RATIO",
    "center",
    "clip_surrogate",
    "discounted_sum",
    "exp_ratio",
    "gae",
    "group_center",
    "group_index",
    "group_std",
    "group_sum",
    "kl_estimate",
    "masked",
    "prompt_mean",
    "returns_to_go",
    "row_mean",
    "row_sum",
    "safe_divide",
    "sequence_mean",
    "sequence_sum",
    "spread",
    "std",
    "std_of_centered",
    "token_mean",
    "token_sum",
    "value_loss",
    "whiten",
]
