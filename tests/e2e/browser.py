"""A headless Chromium, controlled over its debugging pipe: a page's requests, console messages, DOM and screenshots.
No host name is resolved, so a page that needs another server fails visibly."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
SKIPPED = "SKIPPED: no headless browser is installed (Debian's chromium-headless-shell)"
DEADLINE_S = 60


class Browser:
    """A context manager. page() opens a tab."""

    def __init__(self, folder):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads file 3 and writes file 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.rest, self.last = b"", 0
        self.pages = {}  # by session

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.output)
        os.close(self.input)
        self.process.kill()
        self.process.wait()

    def receive(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.input], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.input, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self.rest += data
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, session=None, **params):
        self.last += 1
        number = self.last
        request = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data):]
        deadline = time.monotonic() + DEADLINE_S
        while True:
            message = self.receive(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if page := self.pages.get(message.get("sessionId")):
                page.handle(message)

    def page(self, url, width, height, dark=False, phone=False):
        target = self.call("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.call("Page.navigate", url=url)
        return page


class Page:
    """requests: all URLs that the page requested; complaints: errors, warnings and exceptions on its console."""

    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session
        self.requests, self.complaints = [], []

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def handle(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:1000])
        elif method == "Log.entryAdded" and "ERR_NETWORK_CHANGED" in params["entry"]["text"]:
            pass  # another test's network interfaces come and go; the page asks again
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression):
        """Polls until the expression is true: the page loads and updates by itself."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except RuntimeError as error:  # such as an element that does not exist yet
                value = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {DEADLINE_S} s: {expression}: {value}; complaints: {self.complaints}")
            time.sleep(0.05)

    def screenshot(self, path, whole=False):
        """whole: the whole page, not only the visible part."""
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.pages.pop(self.session, None)
