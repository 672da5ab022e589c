"""A real browser for the tests of pages: Chromium without a window, driven over a pipe by its DevTools protocol."""

import fcntl
import json
import os
import select
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds that the browser may take for one answer
# One process renders all pages; it shares no memory files, needs no GPU, and stays off the network.
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
)


class Browser:
    """One browser with one tab.

    events  what the tab said since it last opened a page: requests, messages of the console, errors
    """

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        # The browser reads commands from descriptor 3 and answers on 4, messages ending with a zero byte.
        theirs_in, self.commands = map(_moved_up, os.pipe())
        self.answers, theirs_out = map(_moved_up, os.pipe())
        quiet = os.open(os.devnull, os.O_RDWR)
        self.process = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={self.profile.name}"],
            os.environ | {"HOME": self.profile.name},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, quiet, stream) for stream in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
        )
        for descriptor in (theirs_in, theirs_out, quiet):
            os.close(descriptor)
        self.unread = b""
        self.sent = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self.commands)
        os.close(self.answers)
        os.kill(self.process, signal.SIGTERM)
        os.waitpid(self.process, 0)
        self.profile.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        """What the browser answers to a command of the protocol."""
        self.sent += 1
        message: dict[str, Any] = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.sent:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {PATIENCE:.0f} s")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.unread += piece
        message, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(message))

    # ---------------------------------------------------------------------------------------------------------- a page

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def look(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Change the window's width and the reader's theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")


def _moved_up(descriptor: int) -> int:
    """The same pipe at a higher number, out of the way of those that the browser expects."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
