"""The programs of this folder, driven from a test."""

import base64
import json
import os
import queue
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = ("go-nsq", "nsqjs", "pynsq", "gnsq")


def command(library):
    if library == "go-nsq":
        return [os.path.join(os.environ["RINGMQ_REMOTE"], "go-nsq")]
    if library == "nsqjs":
        return ["node", os.path.join(os.environ["RINGMQ_REMOTE"], "nsqjs.js")]
    return [sys.executable, os.path.join(HERE, library + "_client.py")]


class Refused(Exception):
    """The library said that it could not."""


class Message:
    def __init__(self, line):
        self.id, self.attempts, self.body = line["message"], line["attempts"], base64.b64decode(line["body"])
        self.at = time.time()


class Remote:
    """One client: a process, gone with `close`. Its messages are in `messages`, in the order in which they came."""

    def __init__(self, library):
        self.library, self.messages, self.answers = library, [], queue.Queue()
        self.process = subprocess.Popen(
            command(library), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            line = json.loads(line)
            if "message" in line:
                self.messages.append(Message(line))
            else:
                self.answers.put(line)
        self.answers.put({"error": "it ended"})

    def do(self, what, **fields):
        try:
            self.process.stdin.write(json.dumps({"do": what, **fields}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Refused("%s: it ended" % what) from None
        try:
            answer = self.answers.get(timeout=60)
        except queue.Empty:
            raise AssertionError("%s does not answer within 60 s: %s; %s" % (self.library, what, self.state())) from None
        if "error" in answer:
            raise Refused("%s: %s" % (what, answer["error"]))

    def state(self):
        """Whether it waits or was given no time."""
        with open("/proc/%d/stat" % self.process.pid) as stat:
            fields = stat.read().rpartition(")")[2].split()
        return "state %s, %s ticks of CPU" % (fields[0], int(fields[11]) + int(fields[12]))

    def connect(self, address, **options):
        self.do("connect", address=address, options=options)

    def publish(self, topic, *bodies, **fields):
        self.do("publish", topic=topic, bodies=[base64.b64encode(body).decode() for body in bodies], **fields)

    def subscribe(self, topic, channel, addresses=(), lookups=(), in_flight=50, finishes=True, **options):
        self.do("subscribe", topic=topic, channel=channel, addresses=list(addresses), lookups=list(lookups), in_flight=in_flight,
                finishes=finishes, options=options)

    def until(self, condition, what, limit=30):
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("%s: not within %d s: %s; %d messages" % (self.library, limit, what, len(self.messages)))
            time.sleep(0.02)

    def expect(self, bodies, what="all messages"):
        """These come, each once, and nothing else has come."""
        self.until(lambda: len(self.messages) >= len(bodies), what)
        heard = sorted(message.body for message in self.messages)
        if heard != sorted(bodies):
            raise AssertionError("%s: %s: %r" % (self.library, what, heard[:20]))

    def take(self):
        """The next message, which is no longer in `messages`."""
        self.until(lambda: self.messages, "a message")
        return self.messages.pop(0)

    def kill(self):
        """What it wrote before is heard."""
        self.process.kill()
        self.close()

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(timeout=5)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
