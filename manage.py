#!/usr/bin/env python
"""Fencepost's commands: `manage.py help` lists them, `manage.py up` starts everything."""

import os
import sys

from django.core.management import execute_from_command_line

from scheduler.project import environment


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler.project.settings")
    if sys.argv[1:2] == ["up"]:
        environment.provide_for_up(os.environ)
    try:
        environment.load(os.environ)
    except environment.ConfigurationError as error:
        sys.exit(str(error))  # the sentence, not the stack that Django's loading of settings would print
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
