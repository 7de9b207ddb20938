"""Why GPUs were not to be had: decided by structure, told as what it is. Pure: no network, clock or environment."""
