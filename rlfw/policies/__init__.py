"""Networks that act and score."""
