"""Ablation studies: a file declares arms, envs and seeds, a runner trains what is missing, records say how it went."""
