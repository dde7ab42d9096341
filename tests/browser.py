"""Drives a headless Chromium over a pipe, without a driver, a package or a port."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number in (3, 4):
    os.dup2(ours[number - 3], number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts our ends of the pipes where the protocol expects them: descriptors 3 and 4."""


class Browser:
    """One page of a Chromium, which is controlled with the DevTools protocol.

    Args:
        program: path of the browser.
        profile: an empty folder for its files.
    """

    def __init__(self, program: str, profile: Path) -> None:
        from_us, self._write = os.pipe()
        self._read, to_us = os.pipe()
        arguments = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}",
            "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(from_us), str(to_us), *arguments],
            pass_fds=(from_us, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(from_us)
        os.close(to_us)
        self._numbers, self._buffer = count(1), b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        (page,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attach = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attach["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol, and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(
        self, page: Path | str, fragment: str = "", width: int = 1280, dark: bool = False
    ) -> None:
        """Load a file or an address at a width in CSS pixels, and wait until its program ran."""
        address = page.as_uri() if isinstance(page, Path) else page
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address + fragment)
        until = time.monotonic() + PATIENCE
        ready = "document.readyState === 'complete' && location.protocol !== 'about:'"
        while not self.run(ready):
            assert time.monotonic() < until, "the page does not load"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as on a keyboard."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32,
                "Home": 36, "End": 35, "Tab": 9, "Enter": 13, "Escape": 27}[key]  # fmt: skip
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra
            )

    def point_at(self, selector: str) -> None:
        """Move the mouse onto the first element that matches the selector."""
        x, y = self.run(
            f"(() => {{ const r = document.querySelector({selector!r}).getClientRects()[0];"
            "return [r.left + r.width / 2, r.top + r.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, file: Path) -> None:
        """Write a PNG of the window's content."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return the errors and warnings since the page was opened."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
