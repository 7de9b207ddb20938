"""Puts the pretended provider where the Kubernetes backend is looked for, in every process of a run."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "orchestrate.backends.kubernetes":
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name("pretend_provider.py"))


sys.meta_path.insert(0, Finder())
