"""The root of the error tree, and the one error that core itself raises; scheduler/errors.py draws it."""


class FencepostError(Exception):
    """Everything Fencepost raises on purpose."""


class TriggerError(FencepostError, ValueError):
    """A trigger that cannot be.

    `field` is a dotted path into the request (`trigger.cron.timezone`), `code` is stable,
    `detail` says what would be right.
    """

    def __init__(self, field: str, code: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.code = code
        self.detail = detail
