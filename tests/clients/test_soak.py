"""A soak: producers and consumers of every library come and go over every transport, some of them killed, beside connections that break off
anywhere. Nothing that was answered with OK is lost, the node keeps no socket and no memory of who went, and its log has no complaint.

SOAK_SECONDS (8) is how long they come and go; SOAK_REPORT=1 prints what was counted.
"""

import itertools
import os
import random
import re
import socket
import ssl
import threading
import time
import unittest

from pki import ANY_HTTPS_PORT, Pki
from remote import LIBRARIES, Remote
from server import Server
from test_golden import MAGIC, body, negotiate
from test_libraries import TRANSPORTS, options

SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))
TOPIC, CHANNEL = "soak", "c"
# What a node that is well does not log.
COMPLAINT = re.compile(r"\b(WARN|ERROR|panicked)\b")
# But for its start, the connections that break off, and nsqjs, which says CLS without a SUB.
EXPECTED = re.compile("the certificate expires within 14 days|created a new data path|closing a connection .*(failed to read|TLS|E_INVALID cannot CLS)")


class Soak(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pki = Pki()
        cls.server = Server(*cls.pki.flags(), *ANY_HTTPS_PORT, "--msg-timeout=5s")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.pki.close()

    def setUp(self):
        self.until = time.monotonic() + SECONDS
        self.acked, self.seen, self.count = set(), set(), {"producers": 0, "consumers": 0, "broken": 0, "repeats": 0}
        self.lock, self.faults = threading.Lock(), []

    def lives(self, library, kind):
        """Transports and ends of one client after the other."""
        chance = random.Random(library + kind)
        transports = itertools.cycle(chance.sample(TRANSPORTS, len(TRANSPORTS)))
        while time.monotonic() < self.until:
            with self.lock:
                self.count[kind] += 1
            yield options(self.pki, next(transports)), time.monotonic() + chance.uniform(1.5, 5), chance.random() < 0.3

    def produce(self, library):
        numbers = itertools.count()
        for asked, end, is_killed in self.lives(library, "producers"):
            client = Remote(library)
            client.connect(self.server.tcp, **asked)
            while time.monotonic() < min(end, self.until):
                bodies = [b"%s %d" % (library.encode(), next(numbers)) for _ in range(20)]
                if random.random() < 0.1:
                    bodies = bodies[:1]
                    client.publish(TOPIC, *bodies, delay_ms=random.randrange(1, 1000))
                else:
                    client.publish(TOPIC, *bodies)
                with self.lock:
                    self.acked.update(bodies)
                time.sleep(0.05)
            client.kill() if is_killed else client.close()

    def consume(self, library):
        for asked, end, is_killed in self.lives(library, "consumers"):
            client = Remote(library)
            client.subscribe(TOPIC, CHANNEL, [self.server.tcp], in_flight=20, **asked)
            time.sleep(max(0, min(end, self.until) - time.monotonic()))
            client.kill() if is_killed else client.close()
            self.note(client)

    def note(self, client):
        with self.lock:
            bodies = [message.body for message in client.messages]
            self.count["repeats"] += len(self.seen.intersection(bodies))
            self.seen.update(bodies)

    def break_off(self):
        """Connections that end in the middle of anything."""
        context = ssl.create_default_context(cafile=self.pki.path("ca.pem"))
        opening = [b"", MAGIC, MAGIC + negotiate(), MAGIC + negotiate(snappy=True), MAGIC + negotiate(deflate=True),
                   MAGIC + negotiate(tls_v1=True), MAGIC + b"SUB soak c\nRDY 5\n", MAGIC + b"SUB soak gone#ephemeral\nRDY 5\n",
                   MAGIC + body(b"PUB soak", b"x" * 1000)[:-1]]
        while time.monotonic() < self.until:
            for data in opening:
                with self.lock:
                    self.count["broken"] += 1
                try:
                    with socket.create_connection(("127.0.0.1", self.server.tcp_port), timeout=5) as stream:
                        stream.sendall(data)
                        time.sleep(random.uniform(0, 0.05))
                        if b'"tls_v1": true' in data and random.random() < 0.5:
                            stream.recv(65536)
                            context.wrap_socket(stream, server_hostname="127.0.0.1").close()
                except OSError:
                    pass  # the node was faster

    def guarded(self, run, *args):
        try:
            run(*args)
        except Exception as error:
            self.faults.append("%s%r: %r" % (run.__name__, args, error))
            self.until = 0

    def files(self):
        """How many sockets and other files the node has open."""
        folder = "/proc/%d/fd" % self.server.process.pid
        kinds = []
        for name in os.listdir(folder):
            try:
                kinds.append(os.readlink(os.path.join(folder, name)).startswith("socket:"))
            except OSError:
                pass  # closed meanwhile
        return kinds.count(True), kinds.count(False)

    def resident(self):
        with open("/proc/%d/status" % self.server.process.pid) as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def drain(self):
        with Remote("go-nsq") as client:
            client.subscribe(TOPIC, CHANNEL, [self.server.tcp])
            last = time.monotonic() + 60
            while time.monotonic() < last and self.acked - self.seen:
                time.sleep(0.2)
                messages, client.messages = client.messages, []
                self.seen.update(message.body for message in messages)

    def test_clients_come_and_go(self):
        self.server.post("/topic/create?topic=" + TOPIC, b"")
        self.server.post("/channel/create?topic=%s&channel=%s" % (TOPIC, CHANNEL), b"")
        sockets, _ = self.files()
        work = [(run, library) for library in LIBRARIES for run in (self.produce, self.consume)] + [(self.break_off,)]
        threads = [threading.Thread(target=self.guarded, args=args) for args in work]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 2)
        half = self.resident()
        for thread in threads:
            thread.join()
        self.assertEqual(self.faults, [])
        self.drain()
        lost = self.acked - self.seen
        deadline = time.monotonic() + 20
        while self.files()[0] > sockets and time.monotonic() < deadline:
            time.sleep(0.1)
        resident, files = self.resident(), self.files()
        with open(os.path.join(self.server.folder, "log"), errors="replace") as log:
            complaints = [line for line in log if COMPLAINT.search(line) and not EXPECTED.search(line)]
        if "SOAK_REPORT" in os.environ:
            print("%s acknowledged, %s; sockets %d -> %d, files %d; MiB resident %.1f at half time, %.1f at the end; %d complaints %s" % (
                len(self.acked), self.count, sockets, files[0], files[1], half, resident, len(complaints), complaints[:9]))
        self.assertEqual(len(lost), 0, sorted(lost)[:10])
        self.assertLessEqual(files[0], sockets, "sockets that nobody has any more")
        self.assertLess(resident, half * 1.25 + 16, "MiB resident; at half time %.1f" % half)
        self.assertEqual(complaints, [])


if __name__ == "__main__":
    unittest.main()
