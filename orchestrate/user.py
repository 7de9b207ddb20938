"""Who is calling, also where the user id has no passwd entry, as in a container that runs as any id."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path

__all__ = ["default_owner", "home_folder", "user_name"]


def user_name() -> str:
    """The login name that the environment or the passwd entry has, else `uid-<n>`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid-{os.getuid()}"


def default_owner() -> str:
    """Who owns what is launched from here, and verifies here: `user@host`."""
    return f"{user_name()}@{platform.node()}"


def home_folder() -> Path | None:
    """The user's home folder; None where neither `HOME` nor a passwd entry names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None
