"""The root of the configuration."""
