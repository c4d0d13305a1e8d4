"""The budget, and whose turn it is."""

import asyncio

from hypothesis import given
from hypothesis import strategies as some

from dutyfree.warm.room import FairQueue, Room, Waiter


def order_of(*requests):
    """Push (owner, priority) pairs; the order in which they are served."""

    async def main():
        queue = FairQueue()
        for number, (owner, priority) in enumerate(requests):
            queue.push(Waiter(number, owner=owner, priority=priority, weight_bytes=1))
        served = []
        while (waiter := queue.first()) is not None:
            assert queue.remove(waiter)
            served.append(waiter.want)
        assert len(queue) == 0
        return served

    return asyncio.run(main())


def test_who_came_first_is_served_first():
    assert order_of(("a", 0), ("a", 0), ("a", 0)) == [0, 1, 2]


def test_owners_take_turns():
    assert order_of(("a", 0), ("a", 0), ("a", 0), ("b", 0), ("c", 0)) == [0, 3, 4, 1, 2]


def test_a_higher_priority_goes_before_all():
    assert order_of(("a", 0), ("b", 0), ("a", 5), ("b", -1)) == [2, 0, 1, 3]


@given(some.lists(some.tuples(some.sampled_from("abc"), some.integers(-2, 2)), max_size=30))
def test_everybody_is_served_once_and_priorities_are_kept(requests):
    served = order_of(*requests)
    assert sorted(served) == list(range(len(requests)))
    priorities = [requests[number][1] for number in served]
    assert priorities == sorted(priorities, reverse=True)


def test_one_who_left_is_not_served():
    async def main():
        queue = FairQueue()
        first, second = (Waiter(n, owner="a", priority=0, weight_bytes=1) for n in range(2))
        queue.push(first)
        queue.push(second)
        assert queue.remove(first)
        assert not queue.remove(first)
        assert queue.first() is second

    asyncio.run(main())


def test_room_is_bounded_by_count_and_by_memory():
    room = Room(sandboxes=2, memory_bytes=10)
    assert room.take(6)
    assert not room.take(6)
    assert room.take(4)
    assert not room.take(0)
    room.give(6)
    assert room.take(1)
    assert room.never_fits(11)
    assert not room.never_fits(10)
