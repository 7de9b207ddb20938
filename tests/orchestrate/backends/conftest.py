"""Real processes for tests of the process table."""

import os
import subprocess
import sys

import pytest

from orchestrate.backends.members import TOKEN_VARIABLE


class Nursery:
    """Starts processes and ends whatever is left of them."""

    def __init__(self):
        self.children = []

    def start(self, code="import time; time.sleep(120)", *, token=None, **more):
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        if token is not None:
            environment[TOKEN_VARIABLE] = token
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True, **more
        )
        self.children.append(child)
        return child

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()
            child.stdout.close()


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    made.close()
