"""A headless Chromium, driven through its DevTools protocol over a pipe: no package is needed.

https://chromedevtools.github.io/devtools-protocol/
"""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """The browser of this machine, or None. SHARDWISE_CHROMIUM names one."""
    named = os.environ.get("SHARDWISE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One tab. Collects what the page says in the console, and every request it makes."""

    def __init__(self, width=1280, height=900):
        self._profile = tempfile.TemporaryDirectory()
        to_browser, self._in = os.pipe()
        self._out, from_browser = os.pipe()
        wrapper = ("import os, sys; a, b = int(sys.argv[1]), int(sys.argv[2]); "
                   "a = os.dup2(a, 10); b = os.dup2(b, 11); os.dup2(10, 3); os.dup2(11, 4); "
                   "os.execvp(sys.argv[3], sys.argv[3:])")
        command = [find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
                   "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--no-first-run", "--disable-extensions", "--disable-background-networking",
                   "--disable-component-update", "--force-color-profile=srgb",
                   f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}",
                   "about:blank"]
        self._browser = subprocess.Popen(
            ["python3", "-c", wrapper, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.console, self.requests, self._events = [], [], []
        target = self.call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True,
                                  session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close", session=None)
        except (OSError, EOFError):
            pass
        self._browser.wait(20)
        for end in (self._in, self._out):
            os.close(end)
        self._profile.cleanup()

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._out, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append((params["type"], [a.get("value") for a in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(("exception", params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append((params["entry"]["level"], params["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method:
            self._events.append(method)

    def call(self, method, session="own", timeout=60, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session == "own":
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != self._number:
                self._note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def run(self, script):
        """The value of an expression in the page; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def open(self, path):
        """Opens a file; returns seconds until the page says that it is drawn."""
        self.console.clear()
        self.requests.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        while self.run("document.documentElement?.dataset.ready") != "true":
            has_failed = any(kind == "exception" for kind, _ in self.console)
            if time.monotonic() - began > 60 or has_failed:
                raise RuntimeError(f"the page is not drawn: {self.console}")
            time.sleep(0.02)
        return time.monotonic() - began

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)

    def theme(self, name):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": name}])

    def key(self, key, text=None, code=0):
        """Presses a key: "Enter", "ArrowDown", "/"."""
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39,
                 "Home": 36, "End": 35, "PageDown": 34, "Tab": 9}
        text = {"Enter": "\r"}.get(key, text if text or len(key) > 1 else key)
        params = {"key": key, "windowsVirtualKeyCode": codes.get(key, code or ord(key[0]))}
        if text:
            params["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **params)
        self.call("Input.dispatchKeyEvent", type="keyUp", **params)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """Clicks at the middle of the first element of a selector, as a mouse does."""
        box = self.run(f"""(() => {{ const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const box = node.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()""")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)

    def picture(self, path, whole=False, clip=None):
        params = {"format": "png", "captureBeyondViewport": whole or clip is not None}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = clip or (0, 0, size["width"], size["height"])
        if clip:
            params["clip"] = dict(zip(("x", "y", "width", "height"), clip), scale=1)
        data = self.call("Page.captureScreenshot", **params)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
