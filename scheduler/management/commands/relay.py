from scheduler.management.loops import LoopCommand


class Command(LoopCommand):
    help = "Release what is due and publish it, with confirms."
    names = ("relay",)
