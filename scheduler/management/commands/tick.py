from scheduler.management.loops import LoopCommand


class Command(LoopCommand):
    help = "Make due instants durable, ahead of their time."
    names = ("tick",)
