from scheduler.management.loops import LoopCommand


class Command(LoopCommand):
    help = "Recover what was lost: dead workers' runs, lost messages, passed time limits."
    names = ("sweep",)
