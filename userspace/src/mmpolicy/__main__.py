# SPDX-License-Identifier: GPL-2.0
"""Entry point of the command, as `mmpolicy` and as `python -m mmpolicy`.

The imports take most of the start-up time, so Ctrl-C during them must not print a traceback.
"""

from __future__ import annotations

import os

INTERRUPTED = 130  # exit code after Ctrl-C: 128 and the number of SIGINT


def _end(_number: int = 0, _frame: object = None) -> None:
    """End this process at once; nothing has been changed."""
    os.write(2, b"mmpolicy: interrupted\n")
    os._exit(INTERRUPTED)


def _run() -> None:
    import signal  # imported here, where main() catches a Ctrl-C during the import

    usual = signal.getsignal(signal.SIGINT)
    # not if the signal is ignored, as a shell does for background jobs
    if usual is signal.default_int_handler:
        # _end() ends the process at once. A KeyboardInterrupt might not: in some callbacks during
        # an import, Python only prints an exception and goes on.
        signal.signal(signal.SIGINT, _end)
    from mmpolicy.cli import main as command

    signal.signal(signal.SIGINT, usual)
    command(prog_name="mmpolicy")


def main() -> None:
    """Import the command, and run it."""
    try:
        _run()
    except KeyboardInterrupt:  # Ctrl-C came before click handles it, or afterwards
        _end()


if __name__ == "__main__":
    main()
