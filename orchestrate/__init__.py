"""Qualify distributed GPU training code on 4x H200, and prove what happened."""

__all__ = ["__version__"]

__version__ = "0.1.0"
