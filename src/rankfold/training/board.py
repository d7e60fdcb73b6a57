"""Notes that processes leave for one another outside of their group: who is there, who runs, who ended with what."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from rankfold.errors import DomainError
from rankfold.numerics.collectives import WAITS, UnansweredError

TIMEOUT = "RANKFOLD_TIMEOUT"  # of the environment: seconds that a process waits for the others
SECONDS = 1800.0  # without it
BEAT, GRACE = 1.0, 6.0  # seconds between two notes that a process runs; without any for so long it is gone


def waiting_time() -> float:
    """The seconds that a process waits for the others."""
    given = os.environ.get(TIMEOUT, str(SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DomainError(f"{TIMEOUT} is {given!r}, but a number of seconds above 0 was expected.")
    return seconds


class Board:
    """The notes of one process, for when the group fails."""

    def __init__(self, store: Store, number: int, size: int) -> None:
        self.store: Store = PrefixStore("rankfold", store)
        self.number, self.size = number, size

    @classmethod
    def open(cls, number: int, size: int) -> Board:
        """The notes of process `number` of `size`, in the store that torchrun names."""
        seconds = waiting_time()
        try:
            return cls(*next(rendezvous("env://", timeout=timedelta(seconds=seconds))))
        except (RuntimeError, ValueError) as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise ConnectionError(
                f"rank {number} of {size}: the {size} processes have not met at {place} within {seconds:g} seconds "
                f"({first_line(error)}).\n  Start all of them; {TIMEOUT} sets the seconds."
            ) from error

    def write(self, what: str, text: str) -> None:
        """Leave a note; none where the store is gone."""
        with suppress(RuntimeError):
            self.store.set(f"{what}/{self.number}", text)

    def read(self, what: str, number: int) -> str | None:
        """The note of a process; None where there is none."""
        key = f"{what}/{number}"
        return bytes(self.store.get(key)).decode() if self.store.check([key]) else None

    def meet(self, own: str) -> list[str]:
        """A word of every process, once all are there; later notes are of this meeting alone.

        torchrun keeps the store when it starts processes again, with the notes of those before. So each has a new name;
        the first calls the names that it reads, and begins once every process has answered to its own.
        """
        here, end = f"{uuid.uuid4().hex} {own}", time.monotonic() + waiting_time()
        self.write("here", here)
        call: list[str | None] = []
        number = answered = ""
        while time.monotonic() < end:
            with suppress(RuntimeError):
                if self.number == 0:
                    found = [self.read("here", i) for i in range(self.size)]
                    if None not in found and found != call:
                        call, number = found, uuid.uuid4().hex
                        self.write("call", json.dumps([number, call]))
                called = self.read("call", 0)
                if called is not None and answered != (told := json.loads(called))[0] and told[1][self.number] == here:
                    answered, call = told
                    self.write("answer", answered)
                if self.number == 0 and number and {self.read("answer", i) for i in range(self.size)} == {number}:
                    self.write("begin", number)
                if answered and self.read("begin", 0) == answered:
                    self.store = PrefixStore(answered, self.store)
                    return [str(x).split()[1] for x in call]
            time.sleep(0.005)
        keys = [self.read("answer", i) == number if number else self.read("here", i) for i in range(self.size)]
        who = ranks_named([i for i, there in enumerate(keys) if not there]) or "others"
        raise ConnectionError(
            f"rank {self.number} of {self.size}: {who} did not come within {waiting_time():g} seconds.\n"
            f"  Start all processes; {TIMEOUT} sets the seconds."
        )

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Inside the block, a note each second that this process runs, and whether it waits for the others."""
        end = threading.Event()

        def beat() -> None:
            num = 0
            while not end.wait(BEAT if num else 0.0):
                num += 1
                self.write("beat", f"{num} {'waits' if WAITS.is_set() else 'works'}")

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def broken(self, error: Exception) -> ConnectionError:
        """The error of a process that has waited for the others in vain: which of them ended, are gone, or hang."""
        end, others = time.monotonic() + GRACE, [i for i in range(self.size) if i != self.number]
        ended: dict[int, str] = {}
        gone, hang = others[:1], []  # the first keeps the notes, unless torchrun does
        with suppress(RuntimeError):  # the notes are gone: the last that were read
            before = {i: self.read("beat", i) for i in others}
            while gone and not ended and time.monotonic() < end:
                time.sleep(0.1)
                now = {i: self.read("beat", i) for i in others}
                ended = {i: text for i in others if (text := self.read("ended", i)) is not None}
                gone = [i for i in others if now[i] == before[i]]
                hang = [i for i in others if i not in gone and str(now[i]).endswith("works")]
            self.write("told", "")
            rest = [i for i in others if i not in (*gone, *hang, *ended)] if self.number == 0 else []
            while time.monotonic() < end + GRACE and any(self.read("told", i) is None for i in rest):
                time.sleep(0.1)  # the others read the notes that the first may keep
        why = f"nobody is missing, so the connection between them failed ({first_line(error)})"
        if ended:
            why = "; ".join(f"rank {i} ended with: {text}" for i, text in ended.items())
        elif gone or hang:
            told = [f"rank {i} is gone" for i in gone] + [f"rank {i} hangs" for i in hang if not gone]
            waited = f" after {error.seconds:.1f} seconds" if isinstance(error, UnansweredError) else ""
            why = f"{', '.join(told)}: no answer{waited}"
        return ConnectionError(
            f"rank {self.number} of {self.size}: {why}.\n  Go on with --resume. A process waits for at most "
            f"{waiting_time():g} seconds, which {TIMEOUT} sets."
        )


def ranks_named(numbers: Sequence[int]) -> str:
    """`rank 1`, or `ranks 1, 2`; nothing without any."""
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers)) if numbers else ""


def first_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
