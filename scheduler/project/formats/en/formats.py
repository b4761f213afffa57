"""How the admin console writes times: to the second, sortable by eye, and with their zone."""

DATE_FORMAT = "Y-m-d"
DATETIME_FORMAT = r"Y-m-d H:i:s \U\T\C"
