"""The page that a worker shares with its children: what one process writes, the other reads."""

import os

import pytest

from scheduler.worker.board import Board


def test_a_child_sees_what_its_parent_says_after_the_fork() -> None:
    board = Board(places=4)
    place = board.take(fence=7)
    told, may_look = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = board.find(place.index, 7)
        before = seen.lost.is_set() or seen.cancelled.is_set() or board.draining.is_set()
        os.write(told[1], b"!")
        os.read(may_look[0], 1)
        after = seen.lost.is_set() and seen.cancelled.is_set() and board.draining.is_set()
        os._exit(
            0 if not before and after and (board.believed_until(), board.sure_until()) == (12.5, 11) else 1
        )
    os.read(told[0], 1)
    place.cancelled.set()
    place.lost.set()
    board.draining.set()
    board.believe(12.5, 11)
    os.write(may_look[1], b"!")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for end in (*told, *may_look):
        os.close(end)


def test_a_child_that_lingers_is_not_misled_by_the_next_run_in_its_place() -> None:
    board = Board(places=1)
    old = board.take(fence=7)
    board.give_back(old)
    new = board.take(fence=8)
    lingering = board.find(old.index, 7)
    new.cancelled.set()
    assert lingering.lost.is_set()
    assert not lingering.cancelled.is_set()
    lingering.lost.set()  # its heartbeat was refused
    assert not new.lost.is_set()
    assert new.cancelled.is_set()


def test_places_come_round_and_do_not_come_from_nowhere() -> None:
    board = Board(places=2)
    first, second = board.take(fence=1), board.take(fence=2)
    assert first.index != second.index
    with pytest.raises(IndexError):
        board.take(fence=3)
    board.give_back(first)
    assert board.take(fence=3).index == first.index
