"""The stock tools of NSQ 1.3.0 above nodes of ours, a stock nsqd, and both kinds of nsqlookupd: each does its job, as its output shows."""

import glob
import gzip
import http.server
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
import unittest
import urllib.parse
import urllib.request

from server import Ports
from test_lookup import Mixture, Program, is_known, post, stock, wait

NUMBERS = itertools.count()
LINES = [b"line %d" % n for n in range(50)]


def to_nsq(node, topic, lines=LINES, *flags):
    subprocess.run([stock("to_nsq"), "-topic=" + topic, "-nsqd-tcp-address=" + node, *flags], input=b"\n".join(lines) + b"\n", check=True,
                   capture_output=True, timeout=30)


def stop(program):
    """The tool finishes what it has."""
    program.process.send_signal(signal.SIGTERM)
    program.process.wait(timeout=20)


class Sink(http.server.ThreadingHTTPServer):
    """What nsq_to_http sends."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.heard = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(urllib.parse.unquote_plus(self.path.partition("=")[2]).encode())

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        self.server.heard.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mixture = Mixture()
        cls.node = cls.mixture.nodes[0]
        cls.nsqd = "127.0.0.1:%d" % cls.mixture.nsqd

    @classmethod
    def tearDownClass(cls):
        cls.mixture.close()

    def setUp(self):
        self.topic = "tools-%d" % next(NUMBERS)

    def program(self, name, *flags):
        program = Program(stock(name), *flags)
        self.addCleanup(program.close)
        return program

    def depths(self, server_http, topic):
        with urllib.request.urlopen("http://127.0.0.1:%d/stats?format=json&topic=%s" % (server_http, topic), timeout=10) as answer:
            topics = json.load(answer)["topics"] or []
        return {c["channel_name"]: c["depth"] + c["in_flight_count"] + c["deferred_count"] for t in topics for c in t["channels"]}


class Tools(Case):
    def test_to_nsq_and_nsq_tail_over_every_transport(self):
        for transport in ("", "snappy", "deflate", "tls_v1", "tls_v1 snappy", "tls_v1 deflate"):
            with self.subTest(transport):
                asked = [word + ",true" for word in transport.split()] + (["tls_insecure_skip_verify,true"] if "tls" in transport else [])
                topic = "%s-%s" % (self.topic, transport.replace(" ", "-"))
                to_nsq(self.node.tcp, topic, LINES, *("-producer-opt=" + word for word in asked))
                tail = self.program("nsq_tail", "-topic=" + topic, "-channel=tail", "-nsqd-tcp-address=" + self.node.tcp,
                                    "-n=%d" % len(LINES), *("-consumer-opt=" + word for word in asked))
                out, _ = tail.process.communicate(timeout=30)
                self.assertEqual(sorted(out.splitlines()), sorted(LINES))

    def test_nsq_to_file(self):
        for kind, flags, reader in (("plain", [], open), ("gzip", ["-gzip"], gzip.open)):
            for whose, (lookup, http_ports) in self.mixture.lookups.items():
                with self.subTest("%s, %s" % (kind, whose)):
                    topic = "%s-%s-%s" % (self.topic, kind, whose.replace(" ", "-"))
                    to_nsq(self.node.tcp, topic)
                    wait(lambda: is_known("127.0.0.1:%d" % lookup, topic, 1), "the topic is registered")
                    writer = self.program("nsq_to_file", "-topic=" + topic, "-output-dir=.", "-lookupd-http-address=127.0.0.1:%d" % lookup,
                                          "-max-in-flight=10", *flags)
                    wait(lambda: self.depths(self.node.http_port, topic).get("nsq_to_file") is not None, "the channel is there")
                    wait(lambda: self.mixture_in_flight(topic) == len(LINES), "all messages came")
                    stop(writer)
                    found = []
                    for path in glob.glob(os.path.join(writer.folder.name, topic + "*")):
                        with reader(path, "rb") as file:
                            found += file.read().splitlines()
                    self.assertEqual(sorted(found), sorted(LINES))
                    self.assertEqual(self.depths(self.node.http_port, topic), {"nsq_to_file": 0})

    def mixture_in_flight(self, topic):
        """Messages that were handed out or finished."""
        channels = self.node.channels(topic).values()
        return sum(c["message_count"] - c["depth"] for c in channels)

    def test_nsq_to_nsq_from_each_to_each(self):
        addresses = {"node": (self.node.tcp, self.node.http_port), "nsqd": (self.nsqd, self.mixture.nsqd_http),
                     "other": (self.mixture.nodes[1].tcp, self.mixture.nodes[1].http_port)}
        for source, target in (("node", "other"), ("node", "nsqd"), ("nsqd", "node")):
            with self.subTest("%s to %s" % (source, target)):
                topic = "%s-%s-%s" % (self.topic, source, target)
                (tcp, http_port), (to, _) = addresses[source], addresses[target]
                lines = [b'{"n":%d}' % n for n in range(50)]
                to_nsq(tcp, topic, lines)
                mover = self.program("nsq_to_nsq", "-topic=" + topic, "-channel=mover", "-destination-topic=%s.copy" % topic,
                                     "-nsqd-tcp-address=" + tcp, "-destination-nsqd-tcp-address=" + to)
                tail = self.program("nsq_tail", "-topic=%s.copy" % topic, "-channel=tail", "-nsqd-tcp-address=" + to, "-n=50")
                out, _ = tail.process.communicate(timeout=30)
                self.assertEqual(sorted(out.splitlines()), sorted(lines))
                wait(lambda: self.depths(http_port, topic) == {"mover": 0}, "all are finished")
                stop(mover)

    def test_nsq_to_http(self):
        sink = Sink()
        self.addCleanup(sink.server_close)
        self.addCleanup(sink.shutdown)
        for flag in ("-post=http://127.0.0.1:%d/" % sink.server_port, "-get=http://127.0.0.1:%d/?body=%%s" % sink.server_port):
            with self.subTest(flag):
                topic = "%s-%s" % (self.topic, flag[1:4])
                sink.heard.clear()
                to_nsq(self.node.tcp, topic)
                sender = self.program("nsq_to_http", "-topic=" + topic, "-channel=http", "-nsqd-tcp-address=" + self.node.tcp, flag)
                wait(lambda: self.depths(self.node.http_port, topic) == {"http": 0}, "all are sent")
                stop(sender)
                self.assertEqual(sorted(sink.heard), sorted(LINES))

    def test_nsq_stat(self):
        to_nsq(self.node.tcp, self.topic)
        post(self.node.http_port, "/channel/create?topic=%s&channel=c" % self.topic)
        answer = subprocess.run(
            [stock("nsq_stat"), "-topic=" + self.topic, "-channel=c", "-nsqd-http-address=127.0.0.1:%d" % self.node.http_port,
             "-interval=100ms", "-count=1"], check=True, capture_output=True, text=True, timeout=30).stdout
        rows = [line for line in answer.splitlines() if re.match(r"\s*\d", line)]
        self.assertTrue(rows, answer)
        # depth, of it in memory and on disk, in flight, deferred; requeued, timed out, messages, clients
        depths, counts = ([int(number) for number in part.split()] for part in rows[0].split("|")[1:])
        self.assertEqual((depths[0], sum(depths[1:])), (len(LINES), len(LINES)), answer)
        self.assertEqual(counts, [0, 0, len(LINES), 0], answer)


class Admin(Case):
    """nsqadmin, told of each kind of nsqlookupd, or of the nodes themselves."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ports = Ports()
        ports = list(cls.ports)
        lookups = {whose: ["-lookupd-http-address=127.0.0.1:%d" % cls.mixture.lookups[whose][0]] for whose in ("ours", "stock")}
        lookups["nodes"] = ["-nsqd-http-address=127.0.0.1:%d" % port for port in cls.mixture.http_ports]
        cls.admins = {}
        for (whose, flags), port in zip(lookups.items(), ports):
            admin = Program(stock("nsqadmin"), "-http-address=127.0.0.1:%d" % port, *flags, listens=[port])
            cls.mixture.open.append(admin)
            cls.admins[whose] = port

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.ports.claim.close()

    def ask(self, whose, method, path, body=None):
        request = urllib.request.Request("http://127.0.0.1:%d/api%s" % (self.admins[whose], path), method=method,
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def each(self):
        for whose in self.admins:
            topic = "%s-%s" % (self.topic, whose)
            for port in self.mixture.http_ports:
                post(port, "/topic/create?topic=" + topic)
            for lookup, ports in self.mixture.lookups.values():
                wait(lambda: is_known("127.0.0.1:%d" % lookup, topic, len(ports)), "all nodes register the topic")
            yield whose, topic

    def test_what_it_shows_of_a_node_is_what_it_shows_of_nsqd(self):
        for whose, topic in self.each():
            for port in self.mixture.http_ports:
                post(port, "/pub?topic=" + topic, b"a message")
                post(port, "/channel/create?topic=%s&channel=c" % topic)
            self.assertIn(topic, self.ask(whose, "GET", "/topics")["topics"])
            shown = self.ask(whose, "GET", "/topics/" + topic)
            self.assertEqual(len(shown["nodes"]), 3)
            # the messages are the channel's
            self.assertEqual((shown["depth"], shown["message_count"]), (0, 3))
            self.same(shown["nodes"])
            shown = self.ask(whose, "GET", "/topics/%s/c" % topic)
            self.assertEqual((shown["depth"], shown["message_count"], len(shown["nodes"])), (3, 3, 3))
            self.same(shown["nodes"])
            nodes = self.ask(whose, "GET", "/nodes")["nodes"]
            self.assertEqual(sorted(node["http_port"] for node in nodes), sorted(self.mixture.http_ports))
            for node in nodes:
                page = self.ask(whose, "GET", "/nodes/%s:%d" % (node["broadcast_address"], node["http_port"]))
                self.assertIn(topic, [t["topic_name"] for t in page["topics"]])
            counter = self.ask(whose, "GET", "/counter")["stats"]
            self.assertEqual(sum(c["message_count"] for c in counter.values() if c["topic_name"] == topic), 3)

    def same(self, nodes):
        """What the nodes are said to have, without what names one, and whether a message is in memory. nsqadmin adds the channels of all
        nodes to the first node's, so that they are compared on their own page."""
        aside = ("node", "hostname", "memory_depth", "backend_depth", "channels")

        def plain(value):
            if isinstance(value, list):
                return [plain(v) for v in value]
            if isinstance(value, dict):
                return {key: plain(v) for key, v in value.items() if key not in aside}
            return value
        nsqd = next(node for node in nodes if str(self.mixture.nsqd_http) in node["node"])
        for node in nodes:
            self.assertEqual(plain(node), plain(nsqd))

    def on_every_node(self, topic, condition, what):
        for port in self.mixture.http_ports:
            def holds(port=port):
                with urllib.request.urlopen("http://127.0.0.1:%d/stats?format=json&topic=%s" % (port, topic), timeout=10) as answer:
                    found = json.load(answer)["topics"] or []
                return condition(found[0] if found else None)
            wait(holds, "%s, on %d" % (what, port))

    def test_actions(self):
        for whose, topic in self.each():
            for port in self.mixture.http_ports:
                post(port, "/channel/create?topic=%s&channel=c" % topic)
                post(port, "/pub?topic=" + topic, b"a message")
            # nsqadmin finds what it has to change in a nsqlookupd, which hears of a channel a moment later
            wait(lambda: "c" in str(self.ask(whose, "GET", "/topics/" + topic)["channels"]), "the channel is known")
            channel = lambda t: next((c for c in t["channels"] if c["channel_name"] == "c"), None)
            for action, paused in (("pause", True), ("unpause", False)):
                self.ask(whose, "POST", "/topics/%s/c" % topic, {"action": action})
                self.on_every_node(topic, lambda t: channel(t)["paused"] == paused, action)
                self.ask(whose, "POST", "/topics/%s" % topic, {"action": action})
                self.on_every_node(topic, lambda t: t["paused"] == paused, action)
            self.on_every_node(topic, lambda t: channel(t)["depth"] == 1, "a message waits")
            self.ask(whose, "POST", "/topics/%s/c" % topic, {"action": "empty"})
            self.on_every_node(topic, lambda t: channel(t)["depth"] == 0, "empty")
            self.ask(whose, "DELETE", "/topics/%s/c" % topic)
            self.on_every_node(topic, lambda t: channel(t) is None, "the channel is deleted")
            for port in self.mixture.http_ports:
                post(port, "/pub?topic=" + topic, b"a message")
            self.on_every_node(topic, lambda t: t["depth"] == 1, "a message waits for a channel")
            self.ask(whose, "POST", "/topics/" + topic, {"action": "empty"})
            self.on_every_node(topic, lambda t: t["depth"] == 0, "the topic is empty")
            self.ask(whose, "DELETE", "/topics/" + topic)
            self.on_every_node(topic, lambda t: t is None, "the topic is deleted")

    def test_create_and_tombstone(self):
        for whose in self.admins:
            if whose == "nodes":
                continue  # both are asked of a nsqlookupd alone
            with self.subTest(whose):
                lookup = "127.0.0.1:%d" % self.mixture.lookups[whose][0]
                topic = "%s-%s" % (self.topic, whose)
                self.ask(whose, "POST", "/topics", {"topic": topic, "channel": "c"})
                with urllib.request.urlopen("http://%s/channels?topic=%s" % (lookup, topic), timeout=10) as answer:
                    self.assertEqual(json.load(answer)["channels"], ["c"])
                # a node that hears of the topic creates the channel
                post(self.node.http_port, "/pub?topic=" + topic, b"a message")
                wait(lambda: self.depths(self.node.http_port, topic) == {"c": 1}, "the node creates the channel")
                wait(lambda: is_known(lookup, topic, 1), "the node registers the topic")
                self.ask(whose, "DELETE", "/nodes/127.0.0.1:%d" % self.node.http_port, {"topic": topic})
                wait(lambda: is_known(lookup, topic, 0), "its tombstone hides the node")


del Case


if __name__ == "__main__":
    unittest.main()
