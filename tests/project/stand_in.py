"""A stand-in for a product process: says that it is ready, then behaves as its arguments ask.

stand_in.py [--drain SECONDS] [--deaf] [--exit CODE]
"""

import argparse
import signal
import sys
import time

import scheduler.project  # noqa: F401  what every product process imports first

parser = argparse.ArgumentParser()
parser.add_argument("--drain", type=float, default=0.0)
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--exit", type=int)
arguments = parser.parse_args()


def end(number: int, frame: object) -> None:
    print("asked to end", time.monotonic(), flush=True)
    if arguments.deaf:
        return
    time.sleep(arguments.drain)
    print("ended", time.monotonic(), flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
if arguments.exit is not None:
    sys.exit(arguments.exit)
while True:
    signal.pause()
