"""Identifiers: the bits of a UUIDv7, order by time, and node ids that tell their run and place."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow import ids

# A busy machine is no fault of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

MAKERS = [ids.new_run_id, ids.new_id]
ordinals = st.integers(min_value=0, max_value=ids.MAX_ORDINAL)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still at a given millisecond until it is set again."""

    class Clock:
        ms = time.time_ns() // 1_000_000 + 3_600_000  # ahead of whatever this process made before

        def time_ns(self) -> int:
            return self.ms * 1_000_000

    stopped = Clock()
    monkeypatch.setattr(ids, "time", stopped)
    yield stopped
    ids._runs.forget()
    ids._others.forget()


def milliseconds(value: UUID) -> int:
    return value.int >> 80


@pytest.mark.parametrize("make", MAKERS)
def test_ids_carry_the_version_the_variant_and_the_current_millisecond(make):
    before = time.time_ns() // 1_000_000
    made = [make() for _ in range(500)]
    after = time.time_ns() // 1_000_000
    assert all(value.version == 7 and value.variant == "specified in RFC 4122" for value in made)
    assert before <= milliseconds(made[0]) <= milliseconds(made[-1]) <= after + 1


@pytest.mark.parametrize("make", MAKERS)
def test_ids_of_one_process_grow_even_within_one_millisecond(make, clock):
    made = [make() for _ in range(2_000)]
    assert made == sorted(set(made))
    assert {milliseconds(value) for value in made} == {clock.ms}


@pytest.mark.parametrize("make", MAKERS)
def test_ids_of_a_later_millisecond_are_greater(make, clock):
    first = make()
    clock.ms += 1
    assert make() > first


@pytest.mark.parametrize("make", MAKERS)
def test_ids_still_grow_when_the_clock_steps_back_a_little(make, clock):
    first = make()
    clock.ms -= 5_000
    assert make() > first


@pytest.mark.parametrize("make", MAKERS)
def test_a_clock_that_was_set_back_for_good_is_believed(make, clock):
    make()
    clock.ms -= 60_000
    assert milliseconds(make()) == clock.ms


def test_a_used_up_millisecond_borrows_from_the_next(clock):
    sequence = ids._Sequence(54)
    first = UUID(int=sequence.next())
    sequence._random = (1 << 54) - 1
    second = UUID(int=sequence.next())
    assert second > first
    assert milliseconds(second) == clock.ms + 1
    assert second.int & ids.MAX_ORDINAL == 0


def test_threads_never_get_the_same_id():
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [ids.new_run_id() for _ in range(500)], range(8)))
    assert len({value for batch in made for value in batch}) == 4_000


FORK = """
import os
from workflow import ids

class Stopped:
    time_ns = staticmethod(lambda: 1_900_000_000_000_000_000)

ids.time = Stopped
before = ids.new_run_id().int
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"%d" % ids.new_run_id().int)
    os._exit(0)
os.wait()
print(before, int(os.read(reader, 64)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_go_on_with_the_sequence_of_its_parent():
    done = subprocess.run([sys.executable, "-c", FORK], check=True, capture_output=True, text=True)
    before, child = map(int, done.stdout.split())
    assert before >> 80 == child >> 80 == 1_900_000_000_000
    # A stride is at most 2**32 steps of 2**20; a start of its own is that near once in a million times.
    assert abs(child - before) > 1 << 53


FORK_WITH_TOKENS = """
import os
from workflow import ids

ids.new_token()  # others are drawn with it
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b" ".join(ids.new_token().encode() for _ in range(200)))
    os._exit(0)
os.wait()
theirs = os.read(reader, 65536).decode().split()
ours = [ids.new_token() for _ in range(200)]
print(len({*ours, *theirs}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_draws_no_token_that_its_parent_gives_out():
    done = subprocess.run(
        [sys.executable, "-c", FORK_WITH_TOKENS], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) == 400


def test_run_ids_end_in_twenty_zero_bits():
    run = ids.new_run_id()
    assert run.version == 7
    assert run.int & ids.MAX_ORDINAL == 0


@unhurried
@given(ordinals)
def test_node_ids_tell_their_run_and_place(ordinal):
    run = ids.new_run_id()
    node = ids.node_id(run, ordinal)
    assert ids.run_of(node) == run
    assert ids.ordinal_of(node) == ordinal
    assert (node.version, node.variant) == (run.version, run.variant)


@unhurried
@given(ordinals)
def test_the_text_of_a_node_id_is_the_same_id(ordinal):
    run = str(ids.new_run_id())
    text = ids.node_id_text(run, ordinal)
    assert text == str(ids.node_id(UUID(run), ordinal))
    assert int(text[-5:], 16) == ordinal


@unhurried
@given(st.lists(ordinals, min_size=2, unique=True))
def test_node_ids_sort_in_tree_order(some):
    run = ids.new_run_id()
    assert sorted(ids.node_id(run, ordinal) for ordinal in some) == [
        ids.node_id(run, n) for n in sorted(some)
    ]


@pytest.mark.parametrize("ordinal", [-1, ids.MAX_ORDINAL + 1])
def test_an_impossible_ordinal_is_refused(ordinal):
    with pytest.raises(ValueError, match="ordinal"):
        ids.node_id(ids.new_run_id(), ordinal)


def test_the_id_of_a_node_is_no_run_id():
    with pytest.raises(ValueError, match="not the id of a run"):
        ids.node_id(ids.node_id(ids.new_run_id(), 3), 4)


def test_tokens_drawn_by_many_threads_never_repeat():
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: [ids.new_token() for _ in range(2_000)], range(8)))
    assert len({token for batch in drawn for token in batch}) == 16_000


def test_tokens_are_canonical_text_and_never_repeat():
    tokens = {ids.new_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert all(str(UUID(token)) == token for token in tokens)
