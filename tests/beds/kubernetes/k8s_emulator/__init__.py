"""A Kubernetes API server with its controllers in one process, for tests: `python -m k8s_emulator`.

It keeps objects, resource versions and watches as the real one does, schedules pods on nodes that exist on paper, and
really runs their containers, each in a mount and process namespace of its own. What it answers has the shapes and the
order that a real cluster of version 1.36 answered.
"""
