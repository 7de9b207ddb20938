"""The GPU gate of a GitHub workflow: which change is tested, whether it needs GPUs, and when the check is green."""
