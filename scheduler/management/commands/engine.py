from scheduler.management.loops import LoopCommand


class Command(LoopCommand):
    help = "Tick, relay and sweep in one process, for small installations."
    names = ("tick", "relay", "sweep")
