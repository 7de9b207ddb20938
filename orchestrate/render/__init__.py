"""Cell set plus template to a SkyPilot task or a Kubernetes Job: pure functions."""
