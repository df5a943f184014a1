"""The mathematics: pure functions, tensors in, tensors out.

    B rows   T steps   mask [B, T] bool   group [B] int64, any labels

Log-probs, log-ratios and KL are in nats. Every function keeps the dtype it is given.
"""

from .aggregation import prompt_mean, sequence_mean, sequence_sum, token_mean, token_sum
from .groups import group_center, group_index, group_margin, group_mean, group_std, group_sum, group_zscore
from .objectives import (
    KL_ESTIMATORS,
    KL_LOSS_ESTIMATORS,
    MAX_LOG_RATIO,
    cispo_surrogate,
    clip_surrogate,
    dro_surrogate,
    dual_clip_surrogate,
    exp_ratio,
    gamma_kernel,
    gmpo_surrogate,
    kl_estimate,
    probability_shift,
    sapo_surrogate,
    topr_surrogate,
    two_sided_surrogate,
    value_loss,
)
from .returns import BLOCK, adaptive_lambda, discounted_sum, gae, returns_to_go
from .rows import masked, on_last_step, row_mean, row_sum, spread
from .scales import center, merge_moments, safe_divide, std, std_of_centered, whiten
from .weights import LEVELS, covariance, effective_share, importance_weight, top_fraction

__all__ = [
    "BLOCK",
    "KL_ESTIMATORS",
    "KL_LOSS_ESTIMATORS",
    "LEVELS",
    "MAX_LOG_RATIO",
    "adaptive_lambda",
    "center",
    "cispo_surrogate",
    "clip_surrogate",
    "covariance",
    "discounted_sum",
    "dro_surrogate",
    "dual_clip_surrogate",
    "effective_share",
    "exp_ratio",
    "gae",
    "gamma_kernel",
    "gmpo_surrogate",
    "group_center",
    "group_index",
    "group_margin",
    "group_mean",
    "group_std",
    "group_sum",
    "group_zscore",
    "importance_weight",
    "kl_estimate",
    "masked",
    "merge_moments",
    "on_last_step",
    "probability_shift",
    "prompt_mean",
    "returns_to_go",
    "row_mean",
    "row_sum",
    "safe_divide",
    "sapo_surrogate",
    "sequence_mean",
    "sequence_sum",
    "spread",
    "std",
    "std_of_centered",
    "token_mean",
    "token_sum",
    "top_fraction",
    "topr_surrogate",
    "two_sided_surrogate",
    "value_loss",
    "whiten",
]
