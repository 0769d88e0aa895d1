# SPDX-License-Identifier: GPL-2.0
"""The watchdog: a process that writes knobs for an experiment, and restores them even if the
command is killed.

The command sends requests to the watchdog regularly. If the command ends, is killed, or sends
nothing for longer than the lease, the watchdog restores the former values.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

from mmpolicy.ab.run.keeper import Keeper, put_back
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure

LARGEST = 1 << 17  # most bytes of a message
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
# seconds between two checks, while the watchdog works on a request, whether the run has to end
POLL_S = 0.2
GONE = (
    "the watchdog process of the experiment has ended: it has restored the knobs after "
    "--lease without a report, or it was killed"
)

Message = dict[str, Any]
Tell = Callable[[str], object]
Look = Callable[[], None]


def _answer(keeper: Keeper, request: Message) -> Message:
    """Carry out a request in the watchdog process, and return the answer to send back: {} if it
    succeeded, or the error.
    """
    try:
        if "learn" in request:
            keeper.learn(request["learn"])
        elif "go" in request:
            keeper.go(request["go"])
        else:
            keeper.check()
    except StoppedError as err:
        return {"lost": err.reason}
    except Error as err:
        fields = (err.message, err.exit_code, err.next_step, err.errno, err.path)
        return {"error": fields}
    return {}


def _serve(keeper: Keeper, wire: socket.socket, lease_s: float, tell: Tell) -> None:
    """Be the loop of the watchdog process: answer requests until one asks for the end, the
    command's process ends, or no request arrives for lease_s seconds. Then restore the knobs.
    """
    wire.settimeout(lease_s)
    why = "was killed"
    try:
        while text := wire.recv(LARGEST):
            request = json.loads(text)
            if "end" in request:
                wire.send(json.dumps({"note": keeper.back()}).encode())
                return
            wire.send(json.dumps(_answer(keeper, request)).encode())
    except socket.timeout:  # Python 3.10 and newer raise TimeoutError, which is the same class
        why = f"has not reported for {figure(lease_s)} s"
    except OSError:
        pass
    tell(
        f"experiment ends, as its process {why}; "
        f"{keeper.back() or 'all knobs have their former values'}"
    )


def _live(keeper: Keeper, wire: socket.socket, lease_s: float, tell: Tell) -> NoReturn:
    """Run the watchdog process, which never returns. Signals to the process group or the terminal
    of the command do not end it.
    """
    try:
        os.setsid()
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        keeper.tree.survive()
        _serve(keeper, wire, lease_s, tell)
    finally:
        os._exit(0)


class Watchdog:
    """The command's connection to the watchdog process, which writes the knobs. That process
    inherits the lock of experiments, so that no other experiment starts before the knobs are
    restored.
    """

    def __init__(
        self, keeper: Keeper, lease_s: float, tell: Tell, look: Callable[[], None]
    ) -> None:
        self.tree = keeper.tree
        self.lease_s = lease_s
        self.look = look  # called while the command waits; raises an error if the run has to end
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self.wire.close()
            _live(keeper, theirs, lease_s, tell)
        theirs.close()
        self.wire.settimeout(POLL_S)

    def ask(self, request: Message) -> Message:
        """Send a request to the watchdog, which carries it out; return its answer. If it fails,
        raise the error of the watchdog in this process.
        """
        try:
            self.wire.send(json.dumps(request).encode())
            text = self._answer()
        except OSError:
            text = b""
        if not text:
            raise StoppedError("lost", GONE)
        answer: Message = json.loads(text)
        if "lost" in answer:
            raise StoppedError("lost", answer["lost"])
        if "error" in answer:
            message, code, *more = answer["error"]
            raise Error(message, Exit(code), *more)
        return answer

    def _answer(self) -> bytes:
        """Wait for the answer of the watchdog. If the run has to end, or no answer comes within the
        lease, kill the watchdog: it is stopped, or stuck in a write.
        """
        end = monotonic() + self.lease_s
        while True:
            try:
                return self.wire.recv(LARGEST)
            # Python 3.10 and newer raise TimeoutError, which is the same class
            except socket.timeout:
                try:
                    if monotonic() > end:
                        text = (
                            "the watchdog process of the experiment has not answered for "
                            f"{figure(self.lease_s)} s"
                        )
                        raise StoppedError("lost", text) from None
                    self.look()
                except StoppedError:
                    self._kill()
                    raise

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wire.close()

    def end(self) -> str:
        """Let the watchdog process restore the knobs and end; return a warning, or "". If it was
        killed, restore them in this process.
        """
        try:
            note: str = self.ask({"end": True})["note"]
        except StoppedError:
            note = ""
        self.wire.close()
        os.waitpid(self.pid, 0)
        return put_back(self.tree) or note
