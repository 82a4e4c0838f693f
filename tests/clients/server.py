"""A node as a process of its own for the client tests: own ports, own folder, nothing left behind.

The node is the binary that RINGMQ_BINARY names; its folder is made below RINGMQ_TEST_FOLDER (not a tmpfs: O_DIRECT).
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request


def free_port():
    """Free now, and outside the range from which the kernel takes ports for outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Server:
    def __init__(self, *flags):
        self.binary = os.environ["RINGMQ_BINARY"]
        self.folder = tempfile.mkdtemp(prefix="clients-", dir=os.environ["RINGMQ_TEST_FOLDER"])
        self.flags = flags
        self.process = None
        for attempt in range(5):
            # Another process may take a port between the look and the start.
            self.tcp_port, self.http_port = free_port(), free_port()
            try:
                self.start()
                return
            except RuntimeError:
                self.kill()
                if attempt == 4:
                    raise

    @property
    def tcp(self):
        return "127.0.0.1:%d" % self.tcp_port

    def start(self):
        serve = [] if os.path.basename(self.binary) == "nsqd" else ["serve"]
        data = os.path.join(self.folder, "data")
        os.makedirs(data, exist_ok=True)
        addresses = ["--tcp-address=" + self.tcp, "--http-address=127.0.0.1:%d" % self.http_port]
        if serve:
            addresses.append("--native-address=127.0.0.1:0")
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *serve, "--data-path=" + data, *addresses, *self.flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/ping") == "OK":
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the node does not start:\n" + self.log())

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            return log.read()[-4000:]

    def get(self, path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (self.http_port, path), timeout=10) as answer:
            return answer.read().decode()

    def post(self, path, body):
        url = "http://127.0.0.1:%d%s" % (self.http_port, path)
        with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=10) as answer:
            return answer.read().decode()

    def channels(self, topic):
        """Statistics of a topic's channels by name."""
        topics = json.loads(self.get("/stats?format=json&topic=" + topic))["topics"] or []
        return {c["channel_name"]: c for t in topics for c in t["channels"]}

    def kill(self):
        """SIGKILL."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self):
        """A clean stop, which must end with 0 within seconds; then everything is removed."""
        try:
            if self.process:
                self.process.send_signal(signal.SIGTERM)
                status = self.process.wait(timeout=20)
                self.process = None
                if status != 0:
                    raise RuntimeError("after SIGTERM the node ended with %d:\n%s" % (status, self.log()))
        finally:
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
