"""Kubernetes quantities, and what a pod asks for."""

import re
from fractions import Fraction

UNITS = {
    "": 1, "m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20,
    "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
GPU = "nvidia.com/gpu"


def quantity(value):
    """`4`, `500m`, `16Gi` as a number."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(value))
    return Fraction(match[1]) * UNITS[match[2]]


def text(value):
    return str(int(value)) if value == int(value) else f"{int(value * 1000)}m"


def asked(spec):
    """What a pod's containers request together; a limit without a request is one."""
    total = {}
    for container in spec.get("containers", []):
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0) + quantity(value)
    return total
