"""The pool that runs plain handlers: nothing is lost, blocking work gets a thread each, lost threads are replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from workflow.worker.threads import ThreadPool


def on_loop(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def test_every_result_arrives_once_however_fast_the_work_is() -> None:
    async def main() -> None:
        pool = ThreadPool(8, asyncio.get_running_loop())
        results: list[int] = []
        done = asyncio.Event()

        def take(value: int) -> None:
            results.append(value)
            if len(results) == 5000:
                done.set()

        for i in range(5000):
            pool.submit(lambda i=i: i, take)  # type: ignore[misc]
            if i % 97 == 0:
                await asyncio.sleep(0)
        await done.wait()
        assert sorted(results) == list(range(5000))
        pool.close()

    on_loop(main())


def test_work_that_blocks_gets_a_thread_each_up_to_the_size() -> None:
    async def main() -> None:
        pool = ThreadPool(6, asyncio.get_running_loop())
        together = threading.Barrier(6)
        results: list[int] = []
        done = asyncio.Event()

        def take(value: int) -> None:
            results.append(value)
            if len(results) == 12:
                done.set()

        for _ in range(12):  # each of the two waves of six can only pass when all six are at work at once
            pool.submit(lambda: together.wait(20), take)
        await done.wait()
        assert sorted(results) == sorted(2 * list(range(6)))
        pool.close()

    on_loop(main())


def test_work_that_is_added_while_all_threads_are_busy_is_not_forgotten() -> None:
    async def main() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        first, second = threading.Event(), asyncio.Event()
        pool.submit(lambda: first.wait(20), lambda _: None)
        pool.submit(lambda: None, lambda _: second.set())
        first.set()
        await second.wait()
        pool.close()

    on_loop(main())


def test_a_thread_that_is_given_up_is_replaced_and_its_result_is_not_taken() -> None:
    async def main() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        stuck, began = threading.Event(), threading.Event()
        taken: list[str] = []
        after = asyncio.Event()

        def hang() -> str:
            began.set()
            stuck.wait(20)
            return "too late"

        pool.submit(hang, taken.append)
        while not began.is_set():
            await asyncio.sleep(0)
        pool.submit(lambda: "next", lambda _: after.set())
        assert pool.abandon(hang)
        assert not pool.abandon(hang)
        assert pool.abandoned == 1
        await after.wait()
        stuck.set()
        while pool.abandoned:
            await asyncio.sleep(0)
        assert taken == []
        pool.close()

    on_loop(main())


def test_work_that_raises_costs_no_thread() -> None:
    async def main() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        taken: list[object] = []
        done = asyncio.Event()

        def fail() -> None:
            raise SystemExit(3)

        pool.submit(fail, taken.append)
        pool.submit(lambda: None, lambda _: done.set())
        await done.wait()
        assert taken == []
        pool.close()

    on_loop(main())


def test_a_closed_pool_lets_its_threads_end() -> None:
    async def main() -> None:
        before = {t.ident for t in threading.enumerate()}
        pool = ThreadPool(3, asyncio.get_running_loop())
        done = asyncio.Event()
        pool.submit(lambda: None, lambda _: done.set())
        await done.wait()
        pool.close()
        while any(t.name == "workflow-handler" and t.ident not in before for t in threading.enumerate()):
            await asyncio.sleep(0)

    on_loop(main())


class Limited:
    """`Thread.start` as it is where the system starts no more threads, for the first few of these names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.failures = failures
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name == "workflow-handler" and self.failures:
                self.failures -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("more", [0, 5], ids=["alone", "with work that follows"])
def test_a_thread_that_cannot_be_started_is_tried_again_and_its_work_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    async def main() -> None:
        pool = ThreadPool(4, asyncio.get_running_loop())
        Limited(monkeypatch, failures=2)
        results: list[int] = []
        done = asyncio.Event()

        def take(value: int) -> None:
            results.append(value)
            if len(results) == 1 + more:
                done.set()

        for number in range(1 + more):
            pool.submit(lambda number=number: number, take)  # type: ignore[misc]
        await done.wait()
        assert sorted(results) == list(range(1 + more))
        pool.close()

    on_loop(main())
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("no thread can be started for handlers, of which 0 are at work")


def test_a_pool_that_could_not_start_threads_grows_to_its_size_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = ThreadPool(3, asyncio.get_running_loop())
        limited = Limited(monkeypatch, failures=0)
        together = threading.Barrier(3)
        left = 3
        done = asyncio.Event()

        def take(_: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        pool.submit(lambda: together.wait(20), take)
        limited.failures = 2
        for _ in range(2):  # these find the only thread blocked until they are at work too
            pool.submit(lambda: together.wait(20), take)
        await done.wait()
        assert not limited.failures
        pool.close()

    on_loop(main())
