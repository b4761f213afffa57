"""kombu's transport over a folder, made safe for a reader that looks while a message is being written.

kombu opens the file under the name that readers look for and fills it afterwards. A worker that comes in
between takes an empty message, and ends on it as on an unrecoverable error, with all that it runs.
"""

import os
import time
from pathlib import Path
from queue import Empty
from typing import Any, Final
from uuid import uuid4

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps

SCHEME: Final = "filesystem"


class Channel(filesystem.Channel):
    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # its bases differ
        """A message is there whole or not at all. The name is kombu's: readers take them in its order."""
        name = f"{round(time.monotonic() * 1000)}_{uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        unfinished = folder / f".{name}"
        unfinished.write_bytes(str_to_bytes(dumps(payload)))
        os.replace(unfinished, folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        try:
            return super()._get(queue)
        except ValueError:  # what a machine that died has left of a message; its run is sent again
            raise Empty from None


class Transport(filesystem.Transport):
    Channel = Channel


def register() -> None:
    """Let URLs of the scheme mean this transport, for everything in this process."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
