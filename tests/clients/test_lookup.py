"""Consumers that find their nodes by lookup: go-nsq, nsqjs, pynsq, gnsq and the stock nsq_tail, over our nsqlookupd, the stock one, and a
node's own answers; the nodes are two of ours and a stock nsqd."""

import concurrent.futures
import itertools
import json
import os
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from pki import ANY_HTTPS_PORT, Pki
from remote import LIBRARIES, Remote
from server import Ports, Server
from test_libraries import options, pairs

NUMBERS = itertools.count()
MESSAGES = 20


def wait(condition, what, limit=30):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %s s: %s" % (limit, what))
        time.sleep(0.02)


def post(port, path, body=b""):
    url = "http://127.0.0.1:%d%s" % (port, path)
    with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=10) as answer:
        return answer.read()


class Program:
    """A process that listens, or ends by itself; gone with `close`."""

    def __init__(self, path, *args, listens=()):
        self.log = tempfile.TemporaryFile()
        folder = os.environ["RINGMQ_TEST_FOLDER"]
        self.folder = tempfile.TemporaryDirectory(prefix="lookup-", dir=folder)
        self.process = subprocess.Popen(
            [path, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, cwd=self.folder.name)
        for port in listens:
            wait(lambda: self.is_listening(port), "%s listens on %d" % (path, port))

    def is_listening(self, port):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError("it ended:\n" + self.log.read().decode(errors="replace"))
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()


def stock(name):
    return os.path.join(os.environ["RINGMQ_STOCK"], name)


class Mixture:
    """Both kinds of nsqlookupd, two nodes of ours that register with both, the first of which answers itself, and a stock nsqd."""

    def __init__(self):
        self.open = []
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        self.pki = Pki()
        self.ports = [Ports(), Ports(), Ports()]
        (ours, ours_http, theirs, theirs_http), (self.nsqd, self.nsqd_http, own, _) = map(tuple, self.ports[:2])
        for command, tcp, http in [
            ([os.environ["RINGMQ_BINARY"], "lookupd"], ours, ours_http),
            ([stock("nsqlookupd")], theirs, theirs_http),
        ]:
            flags = ["-tcp-address=127.0.0.1:%d" % tcp, "-http-address=127.0.0.1:%d" % http, "-broadcast-address=127.0.0.1"]
            self.open.append(Program(*command, *flags, listens=[tcp, http]))
        lookups = ["-lookupd-tcp-address=127.0.0.1:%d" % port for port in (ours, theirs)]
        register = ["-broadcast-address=127.0.0.1", *self.pki.flags(), *ANY_HTTPS_PORT, *lookups]
        flags = ["-tcp-address=127.0.0.1:%d" % self.nsqd, "-http-address=127.0.0.1:%d" % self.nsqd_http]
        self.open.append(Program(stock("nsqd"), *flags, *register, listens=[self.nsqd, self.nsqd_http]))
        self.nodes = []
        for extra in (["--lookupd-http-address=127.0.0.1:%d" % own], []):
            node = Server("--shards=2", *register, *extra)
            self.open.append(node)
            self.nodes.append(node)
        self.http_ports = [node.http_port for node in self.nodes] + [self.nsqd_http]
        # What a lookup there finds.
        self.lookups = {
            "ours": (ours_http, self.http_ports),
            "stock": (theirs_http, self.http_ports),
            "a node": (own, self.http_ports[:1]),
        }

    def close(self):
        for program in reversed(self.open):
            program.close()
        self.pki.close()


def is_known(lookup, topic, nodes):
    """Whether a lookup finds the topic on so many nodes: they register it a moment after it came."""
    try:
        with urllib.request.urlopen("http://%s/lookup?topic=%s" % (lookup, topic), timeout=10) as answer:
            return len(json.loads(answer.read())["producers"]) == nodes
    except urllib.error.HTTPError:
        return False


def publish(ports, topic):
    bodies = [b"%d-%d" % (port, number) for port in ports for number in range(MESSAGES)]
    for body in bodies:
        post(int(body.split(b"-")[0]), "/pub?topic=" + topic, body)
    return bodies


class Lookup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mixture = Mixture()

    @classmethod
    def tearDownClass(cls):
        cls.mixture.close()

    def each(self):
        for whose, (port, ports) in self.mixture.lookups.items():
            yield whose, "127.0.0.1:%d" % port, ports, "lookup-%d" % next(NUMBERS)

    def published(self, lookup, ports, topic):
        """A consumer that comes now finds all: one that misses a node may not ask again for a minute."""
        bodies = publish(ports, topic)
        wait(lambda: is_known(lookup, topic, len(ports)), "all nodes register the topic")
        return bodies

    def run_one(self, library, lookup, ports, topic, **options):
        bodies = self.published(lookup, ports, topic)
        with Remote(library) as consumer:
            consumer.subscribe(topic, "c", lookups=[lookup], **options)
            consumer.expect(bodies)

    def run_all(self, runs):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for run in [pool.submit(self.run_one, *args, **options) for args, options in runs]:
                run.result()

    def test_every_library_finds_every_node(self):
        self.run_all([((library, *lookup), {}) for library in LIBRARIES for _, *lookup in self.each()])

    def test_every_library_finds_a_node_over_every_transport(self):
        """Of a node alone: pynsq does not get on with nsqd's compression (test_libraries has why)."""
        self.run_all([
            ((library, *lookup), options(self.mixture.pki, transport))
            for library, transport in pairs() for whose, *lookup in self.each() if whose == "a node"])

    def test_a_reader_that_waits_for_a_topic_finds_it_when_it_comes(self):
        for whose, lookup, ports, topic in self.each():
            with self.subTest(whose), Remote("pynsq") as consumer:
                consumer.subscribe(topic, "c", lookups=[lookup])
                # It has asked in vain.
                time.sleep(0.5)
                consumer.expect(publish(ports, topic))

    def test_nsq_tail_finds_every_node(self):
        for whose, lookup, ports, topic in self.each():
            with self.subTest(whose):
                bodies = self.published(lookup, ports, topic)
                flags = ["-lookupd-http-address=" + lookup, "-topic=" + topic, "-channel=tail", "-n=%d" % len(bodies)]
                tail = Program(stock("nsq_tail"), *flags)
                try:
                    out, _ = tail.process.communicate(timeout=60)
                finally:
                    tail.close()
                self.assertEqual(sorted(out.split()), sorted(bodies))


if __name__ == "__main__":
    unittest.main()
