import time

import pytest


@pytest.fixture
def eventually():
    def wait(condition, within_s=30):
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.05)

    return wait
