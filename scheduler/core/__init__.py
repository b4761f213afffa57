"""The pure core: triggers, zones and policies. No framework, no clock, no randomness of its own."""

import zoneinfo

# zoneinfo prefers the host's files, which are often years old. Every process, however it was started,
# reads the rules of the pinned tzdata wheel instead.
zoneinfo.reset_tzpath(to=())
