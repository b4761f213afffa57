"""The product's settings with the values that it requires filled in; for tools that only read them."""

import os

os.environ.setdefault("SECRET_KEY", "tests")
os.environ.setdefault("ALLOWED_HOSTS", "localhost,127.0.0.1")

from scheduler.project.settings import *  # noqa: F403
