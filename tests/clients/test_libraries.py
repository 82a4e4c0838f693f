"""go-nsq, nsqjs, pynsq and gnsq, unmodified, over every transport: plain, TLS, snappy, deflate, and TLS with each.

RINGMQ_BINARY may be a stock nsqd, too: what is asserted is nsqd's, but for requeues over a restart. Only pynsq over a compression fails
there: it ends a connection when what it receives decompresses to nothing (docs/nsq.md), and nsqd sends the head of a stream by itself.
"""

import concurrent.futures
import json
import os
import time
import unittest

from pki import ANY_HTTPS_PORT, Pki
from remote import LIBRARIES, Refused, Remote
from server import Server
from test_auth import AuthServer

TRANSPORTS = ("plain", "tls", "snappy", "deflate", "tls_snappy", "tls_deflate")
STOCK = os.path.basename(os.environ["RINGMQ_BINARY"]) == "nsqd"
TIMEOUT_MS = 1000
SMALL = [b"message %d" % n for n in range(100)] + [os.urandom(3_000), b"\0" * 3_000]
# pynsq and gnsq lose sight of what their decompressors hold once that is more than they asked their sockets for.
LONG = [os.urandom(200_000), b"\0" * 900_000]
AGENTS = {"go-nsq": "go-nsq/1.1.0", "nsqjs": "nsqjs/0.13.0", "pynsq": "pynsq/0.9.1", "gnsq": "gnsq/1.0.2"}


def bodies(library, transport):
    return SMALL + (LONG if library in ("go-nsq", "nsqjs") or transport in ("plain", "tls") else [])


def options(pki, transport):
    asked = {}
    if "tls" in transport:
        asked["tls"] = {"ca": pki.path("ca.pem"), "cert": pki.path("client.pem"), "key": pki.path("client.key")}
    if "snappy" in transport:
        asked["snappy"] = True
    if "deflate" in transport:
        asked["deflate"] = 4
    return asked


def pairs(transports=TRANSPORTS):
    return [(library, transport) for library in LIBRARIES for transport in transports]


def consumers(server, topic):
    """Statistics of the topic's consumers and producers."""
    found = json.loads(server.get("/stats?format=json&include_clients=true&topic=" + topic))
    return [client for t in found["topics"] or [] for channel in t["channels"] for client in channel["clients"]], found["producers"]


def until(condition, what, limit=30):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %d s: %s" % (limit, what))
        time.sleep(0.02)


class Together(unittest.TestCase):
    """The conversations of a class run side by side, since most of each is waiting; a test waits for one of them."""

    pairs = pairs()
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.pki = Pki()
        cls.server = Server(*cls.pki.flags(), *ANY_HTTPS_PORT, *cls.flags)
        cls.pool = concurrent.futures.ThreadPoolExecutor(6)
        cls.runs = {pair: cls.pool.submit(cls.run_one, *pair) for pair in cls.pairs}

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.server.close()
        cls.pki.close()

    @classmethod
    def asked(cls, transport):
        return options(cls.pki, transport)

    @classmethod
    def client(cls, library):
        return Remote(library)

    @classmethod
    def add_tests(cls):
        for pair in cls.pairs:
            setattr(cls, "test_%s_over_%s" % pair, lambda self, pair=pair: self.runs[pair].result())


class Transports(Together):
    flags = ("--msg-timeout=%dms" % TIMEOUT_MS,)

    @classmethod
    def run_one(cls, library, transport):
        topic, asked = "transports.%s.%s" % (library, transport), cls.asked(transport)
        with cls.client(library) as producer, cls.client(library) as consumer:
            producer.connect(cls.server.tcp, **asked)
            consumer.subscribe(topic, "c", [cls.server.tcp], **asked)
            all_bodies = bodies(library, transport)
            for body in all_bodies:
                producer.publish(topic, body)
            batch = [b"batch %d" % n for n in range(50)]
            producer.publish(topic, *batch)
            consumer.expect(all_bodies + batch)
            cls.check_stats(topic, library, transport)
            cls.check_defer(topic, producer, consumer)
            cls.check_pause(topic, producer, consumer)
            consumer.do("leave")
        with cls.client(library) as producer, cls.client(library) as consumer:
            producer.connect(cls.server.tcp, **asked)
            consumer.subscribe(topic, "later#ephemeral", [cls.server.tcp], in_flight=1, finishes=False, **asked)
            until(lambda: "later#ephemeral" in cls.server.channels(topic), "the channel is there")
            cls.check_requeue(topic, producer, consumer)
            cls.check_touch(topic, producer, consumer)
        until(lambda: "later#ephemeral" not in cls.server.channels(topic), "the channel goes with its last client")

    @classmethod
    def check_stats(cls, topic, library, transport):
        found, producers = consumers(cls.server, topic)
        producers = [p for p in producers if any(count["topic"] == topic for count in p.get("pub_counts", ()))]
        assert len(found) == 1 and len(producers) == 1, (found, producers)
        for client in found + producers:
            for field in ("tls", "snappy", "deflate"):
                assert client[field] == (field in transport), (field, client)
            assert client["tls_version"] in (["TLS1.2", "TLS1.3"] if client["tls"] else [""]), client
            assert bool(client["tls_cipher_suite"]) == client["tls"], client
            assert client["user_agent"] == AGENTS[library], client

    @staticmethod
    def check_defer(topic, producer, consumer):
        consumer.messages.clear()
        due = time.time() + 0.3
        producer.publish(topic, b"deferred", delay_ms=300)
        assert consumer.take().at >= due

    @classmethod
    def check_pause(cls, topic, producer, consumer):
        for which in ("topic=%s&channel=c" % topic, "topic=" + topic):
            kind = "channel" if "channel" in which else "topic"
            cls.server.post("/%s/pause?%s" % (kind, which), b"")
            producer.publish(topic, kind.encode())
            time.sleep(0.2)
            assert not consumer.messages, "a message during the pause of the " + kind
            cls.server.post("/%s/unpause?%s" % (kind, which), b"")
            assert consumer.take().body == kind.encode()

    @staticmethod
    def check_requeue(topic, producer, consumer):
        producer.publish(topic, b"requeued")
        first = consumer.take()
        assert first.attempts == 1
        for attempts, delay_ms in ((2, 0), (3, 200)):
            # the message just came, so a delay that begins now is no longer than the node's
            due = time.time() + delay_ms / 1000
            consumer.do("requeue", id=first.id, delay_ms=delay_ms)
            again = consumer.take()
            assert (again.id, again.attempts, again.body) == (first.id, attempts, b"requeued")
            assert again.at >= due
        consumer.do("finish", id=first.id)

    @staticmethod
    def check_touch(topic, producer, consumer):
        producer.publish(topic, b"touched")
        message = consumer.take()
        for _ in range(4):
            time.sleep(0.4)
            consumer.do("touch", id=message.id)
        assert not consumer.messages, "it came again, though it was touched"
        consumer.do("finish", id=message.id)
        producer.publish(topic, b"timed out")
        first, again = consumer.take(), consumer.take()
        assert (first.id, first.attempts) == (again.id, 1) and again.attempts == 2
        consumer.do("finish", id=again.id)


class TlsRequired(Together):
    """Every connection has to have TLS, and to show a certificate of the CA."""

    pairs = pairs(("tls", "tls_snappy", "tls_deflate"))
    flags = ("--tls-required=tcp-https", "--tls-client-auth-policy=require-verify")

    @classmethod
    def run_one(cls, library, transport):
        topic, asked = "required.%s.%s" % (library, transport), cls.asked(transport)
        with cls.client(library) as producer, cls.client(library) as consumer:
            producer.connect(cls.server.tcp, **asked)
            producer.publish(topic, *SMALL)
            consumer.subscribe(topic, "c", [cls.server.tcp], **asked)
            consumer.expect(SMALL)
            for client in sum(consumers(cls.server, topic), []):
                assert client["tls"], client


class Auth(Together):
    """An auth server decides; what it refuses, the library says."""

    @classmethod
    def setUpClass(cls):
        cls.auth = AuthServer()
        cls.flags = ("--auth-http-address=" + cls.auth.address,)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.auth.shutdown()
        cls.auth.server_close()

    @classmethod
    def run_one(cls, library, transport):
        asked = cls.asked(transport)
        topic = "a.%s.%s" % (library, transport)
        with cls.client(library) as producer, cls.client(library) as consumer:
            producer.connect(cls.server.tcp, auth="publisher", **asked)
            producer.publish(topic, b"one", b"two")
            consumer.subscribe(topic, "c", [cls.server.tcp], auth="subscriber", **asked)
            consumer.expect([b"one", b"two"])
            until(lambda: consumers(cls.server, topic)[0], "the consumer is in /stats")
            assert all(client["authed"] for client in consumers(cls.server, topic)[0])
        with cls.client(library) as producer:
            try:
                producer.connect(cls.server.tcp, auth="publisher", **asked)
                producer.publish("b." + topic, b"not allowed")
            except Refused:
                pass
            else:
                raise AssertionError("a publish that nobody allowed")
        topics = json.loads(cls.server.get("/stats?format=json&topic=b." + topic))["topics"]
        assert not topics, topics


class Restart(Together):
    """What was put off comes after a restart of the node: not early, with its attempts; after a stop and after a kill."""

    flags = ("--msg-timeout=%dms" % TIMEOUT_MS,)
    delay_ms = 3000

    @classmethod
    def setUpClass(cls):
        cls.pki = Pki()
        cls.server = Server(*cls.pki.flags(), *ANY_HTTPS_PORT, *cls.flags)
        cls.due, cls.held, cls.again = {}, {}, {}
        try:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                list(pool.map(lambda pair: cls.put_off(*pair), cls.pairs))
            cls.server.stop()
            cls.server.start()
            cls.server.kill()
            cls.server.start()
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                list(pool.map(lambda pair: cls.read(*pair), cls.pairs))
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.pki.close()

    @classmethod
    def put_off(cls, library, transport):
        topic, asked = "restart.%s.%s" % (library, transport), cls.asked(transport)
        with cls.client(library) as producer, cls.client(library) as consumer:
            producer.connect(cls.server.tcp, **asked)
            consumer.subscribe(topic, "c", [cls.server.tcp], finishes=False, **asked)
            producer.publish(topic, b"requeued")
            first = consumer.take()
            due = time.time() + cls.delay_ms / 1000
            consumer.do("requeue", id=first.id, delay_ms=cls.delay_ms)
            producer.publish(topic, b"deferred", delay_ms=cls.delay_ms)
            until(lambda: cls.server.channels(topic)["c"]["deferred_count"] == 2, "both wait")
            cls.due[library, transport], cls.held[library, transport] = due, first.id

    @classmethod
    def read(cls, library, transport):
        topic = "restart.%s.%s" % (library, transport)
        with cls.client(library) as consumer:
            consumer.subscribe(topic, "c", [cls.server.tcp], **cls.asked(transport))
            consumer.until(lambda: len(consumer.messages) >= 2, "both come again")
            cls.again[library, transport] = {message.body: message for message in consumer.messages}

    @classmethod
    def add_tests(cls):
        for pair in cls.pairs:
            setattr(cls, "test_%s_over_%s" % pair, lambda self, pair=pair: self.check(pair))

    def check(self, pair):
        again = self.again[pair]
        self.assertEqual(sorted(again), [b"deferred", b"requeued"])
        self.assertEqual(again[b"requeued"].id, self.held[pair])
        self.assertEqual((again[b"requeued"].attempts, again[b"deferred"].attempts), (2, 1))
        if not STOCK:
            for message in again.values():
                self.assertGreaterEqual(message.at, self.due[pair])


for case in (Transports, TlsRequired, Auth, Restart):
    case.add_tests()
del case


def load_tests(loader, tests, pattern):
    """Without `Together`, which has no tests."""
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Transports, TlsRequired, Auth, Restart))


if __name__ == "__main__":
    unittest.main()
