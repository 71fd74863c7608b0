"""Children that do not outlive their parent (Linux's PR_SET_PDEATHSIG), even when the parent is killed outright."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def follow_parent(parent: int, sig: signal.Signals) -> Callable[[], None]:
    """What a child of `parent` runs after the fork, so that the kernel sends it `sig` when that parent ends.

    The kernel means the *thread* that forked: fork from one that lives as long as the process. The library is loaded
    here, before the fork, since a child may not do much before its exec. On other systems the result does nothing.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)

    def follow() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:  # it ended between fork and prctl: no signal will come
            os.kill(os.getpid(), sig)

    return follow
