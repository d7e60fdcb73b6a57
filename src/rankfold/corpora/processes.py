"""Pieces answered by processes of this machine. One that dies is replaced, and its piece tried again.

Every process has a pipe of its own, so that one that is killed leaves no lock behind. It holds two pieces: the one it
answers, and the next.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from rankfold.corpora.engines import Engine, Failed, Opener, attempt, given_up, num_cpus

HELD = 2  # pieces of one worker
AHEAD = 4  # pieces for each worker that may be read before the first of them is answered


class _Job:
    """A piece, its place, and how often a worker died of it."""

    def __init__(self, number: int, piece: Any) -> None:
        self.number, self.piece, self.deaths = number, piece, 0


class _Process:
    """One worker, and the pieces it holds, the one it answers first."""

    def __init__(self, opener: Opener, place: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.place, self.ready = place, False
        self.jobs: deque[_Job] = deque()
        self.process = context.Process(target=_serve, args=(other, opener, place, threads), daemon=True)
        self.process.start()
        other.close()

    def take(self, job: _Job) -> None:
        self.jobs.append(job)
        with contextlib.suppress(OSError):  # it has died: its end is seen where results are waited for
            self.pipe.send((job.number, job.piece))

    def end(self) -> str:
        """Stop it, and say how it ended."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()
        code = self.process.exitcode or 0
        try:
            return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        except ValueError:
            return f"signal {-code}"
        finally:
            self.process.close()


def run_processes(engine: Engine, opener: Opener, pieces: Iterator[Any]) -> Generator[Any, None, None]:
    """The result of each piece, or the `Failed` that it ended in, in their order; at most a few are held."""
    num = engine.workers or num_cpus()
    threads = engine.threads or max(1, num_cpus() // num)
    pool: list[_Process] = []
    waiting: deque[_Job] = deque()  # to be tried again, before anything new
    results: dict[int, Any] = {}
    read = told = starts = 0
    is_over = False
    try:
        while True:
            while told in results:
                yield results.pop(told)
                told += 1
            while not is_over and read - told < AHEAD * num and len(waiting) < num:
                piece = next(pieces, None)
                is_over = piece is None or isinstance(piece, Failed)
                if isinstance(piece, Failed):
                    results[read] = piece
                elif piece is not None:
                    waiting.append(_Job(read, piece))
                read += piece is not None
            if told == read:
                return
            while len(pool) < min(num, read - told):
                pool.append(_Process(opener, len(pool), threads))
            _deal(pool, waiting)
            for process in _heard(pool):
                try:
                    number, result = process.pipe.recv()
                except (EOFError, OSError):
                    starts = starts if process.ready else starts + 1
                    _replace(process, pool, waiting, results, engine.retries, starts, opener, threads)
                    continue
                process.ready, starts = True, 0
                if number is None:
                    if result is not None:  # the model could not be loaded
                        yield result
                        return
                    continue
                job = process.jobs.popleft()
                job.deaths += 1
                if isinstance(result, Failed) and result.passing and job.deaths <= engine.retries:
                    waiting.appendleft(job)
                else:
                    results[number] = result
    finally:
        for process in pool:
            process.end()


def _deal(pool: list[_Process], waiting: deque[_Job]) -> None:
    """Give each worker a piece, then each a second one."""
    for held in range(HELD):
        for process in pool:
            if waiting and len(process.jobs) <= held:
                process.take(waiting.popleft())


def _heard(pool: list[_Process]) -> list[_Process]:
    ends: Any = {process.pipe: process for process in pool}
    return [ends[pipe] for pipe in wait(list(ends))]


def _replace(
    process: _Process,
    pool: list[_Process],
    waiting: deque[_Job],
    results: dict[int, Any],
    retries: int,
    starts: int,
    opener: Opener,
    threads: int,
) -> None:
    """Another process in the place of a dead one. The piece that it answered has one try less; if it had none left,
    its result is the error.
    """
    how = process.end()
    jobs = process.jobs
    if not process.ready and starts > retries:
        job = jobs.popleft()
        error = ChildProcessError(
            f"a worker ended while it loaded the model ({how}), {starts} times.\n"
            "  Take fewer workers if the machine has no memory left. In a script, call under if __name__ == "
            '"__main__": processes import the script again.'
        )
        results[job.number] = Failed(job.piece.label, error)
    elif jobs and process.ready:
        jobs[0].deaths += 1
        if jobs[0].deaths > retries:
            job = jobs.popleft()
            results[job.number] = Failed(job.piece.label, given_up(job.piece.label, job.deaths, how))
    waiting.extendleft(reversed(jobs))
    pool[process.place] = _Process(opener, process.place, threads)


def _serve(pipe: Connection, opener: Opener, place: int, threads: int) -> None:
    """Answer pieces until the pipe is closed."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    try:
        worker = opener()
    except Exception as error:
        pipe.send((None, Failed.of(error, "the model")))
        return
    pipe.send((None, None))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    while True:
        number, piece = inbox.get()
        pipe.send((number, attempt(worker, piece)))


def _receive(pipe: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Read pieces while others are answered: so neither end waits for the other to read."""
    while True:
        try:
            inbox.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to hear the answer
