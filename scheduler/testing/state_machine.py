"""docs/state-machine.md, drawn from the table of transitions. `manage.py state_machine` writes it."""

from collections.abc import Iterable, Iterator

from scheduler.core.states import TERMINAL, TRANSITIONS, WAKERS, State, Transition

_HEAD = """# The state machine of a run

Generated from `scheduler/core/states.py` by `manage.py state_machine`; a test compares the two. The database
refuses every other move: a trigger on `occurrence` knows the same table.
"""


def document() -> str:
    """The whole page, as Markdown with a Mermaid drawing."""
    parts = [
        _HEAD,
        "## States\n",
        *_states(),
        "\n## Transitions\n",
        *_transitions(),
        "\n## Drawn\n",
        *_drawing(),
    ]
    return "\n".join(parts) + "\n"


def _states() -> Iterator[str]:
    yield from ("| state | ends the run | who moves it on |", "|---|---|---|")
    for state in State:
        waker = WAKERS.get(state, "redrive" if _sources_of("redrive") & {state} else "")
        yield f"| `{state}` | {'yes' if state in TERMINAL else ''} | {waker} |"


def _transitions() -> Iterator[str]:
    yield from ("| event | from | to | guard |", "|---|---|---|---|")
    for event in dict.fromkeys(move.event for move in TRANSITIONS):
        moves = [move for move in TRANSITIONS if move.event == event]
        sources = _listed(_name(move.source) for move in moves)
        targets = _listed(_name(move.target) for move in moves)
        yield f"| {event} | {sources} | {targets} | {moves[0].guard} |"


def _drawing() -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2")
    for source, target in dict.fromkeys((move.source, move.target) for move in TRANSITIONS):
        events = ", ".join(move.event for move in TRANSITIONS if _joins(move, source, target))
        yield f"    {source or '[*]'} --> {target}: {events}"
    yield from (f"    {state} --> [*]" for state in State if state in TERMINAL)
    yield "```"


def _joins(move: Transition, source: State | None, target: State) -> bool:
    return (move.source, move.target) == (source, target)


def _sources_of(event: str) -> set[State | None]:
    return {move.source for move in TRANSITIONS if move.event == event}


def _name(state: State | None) -> str:
    return "(new)" if state is None else f"`{state}`"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
