"""rlfw: policy-gradient algorithms as compositions of interchangeable parts, run by one trainer."""
