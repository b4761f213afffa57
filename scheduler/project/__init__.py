"""The composition root. Every process of an installation imports it first."""

import atexit
import gc

from scheduler.project.supervisor import watch_parent

watch_parent()

# The interpreter's last collection walks everything that Django has loaded: 0.4 s of each process's
# time to stop, for memory that the kernel takes back anyway.
atexit.register(gc.freeze)
