"""pynsq and gnsq, as their users have them, over every transport: plain, TLS, snappy, deflate, and TLS with each.

RINGMQ_BINARY may be a stock nsqd, too: what is asserted is nsqd's.
"""

import asyncio
import itertools
import json
import logging
import os
import ssl
import time
import unittest

import gevent
import gnsq
import nsq

from pki import Pki
from server import Server

NUMBERS = itertools.count()
TRANSPORTS = {
    "plain": {},
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True, "deflate_level": 4},
    "tls_snappy": {"tls_v1": True, "snappy": True},
    "tls_deflate": {"tls_v1": True, "deflate": True},
}
# None is long: both libraries lose sight of what their decompressors hold once that is more than they asked their sockets for.
BODIES = [b"message %d" % n for n in range(200)] + [os.urandom(3_000), b"\0" * 3_000]
logging.disable(logging.CRITICAL)


def stats(server, topic):
    return json.loads(server.get("/stats?format=json&include_clients=true&topic=" + topic))


class Transports(unittest.TestCase):
    flags = []
    options = {}

    @classmethod
    def setUpClass(cls):
        cls.pki = Pki()
        cls.server = Server(*cls.pki.flags(), *cls.flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.pki.close()

    def asked(self, transport):
        asked = dict(TRANSPORTS[transport])
        if "tls_v1" in asked:
            asked["tls_options"] = {"ca_certs": self.pki.path("ca.pem"), "cert_reqs": ssl.CERT_REQUIRED,
                                    "certfile": self.pki.path("client.pem"), "keyfile": self.pki.path("client.key")}
        return {**asked, **self.options}

    def check_stats(self, topic, transport):
        found = stats(self.server, topic)
        clients = [c for t in found["topics"] for channel in t["channels"] for c in channel["clients"]]
        self.assertTrue(clients and found["producers"])
        for client in clients + found["producers"]:
            for field, key in (("tls", "tls_v1"), ("snappy", "snappy"), ("deflate", "deflate")):
                self.assertEqual(client[field], TRANSPORTS[transport].get(key, False), field)
            self.assertIn(client["tls_version"], ["TLS1.2", "TLS1.3"] if client["tls"] else [""])
            self.assertEqual(bool(client["tls_cipher_suite"]), client["tls"])
            self.check_client(client)

    def check_client(self, client):
        self.assertNotIn("authed", client)

    def with_pynsq(self, transport):
        topic = "pynsq-%d" % next(NUMBERS)

        async def run():
            heard = []
            asked = self.asked(transport)
            writer = nsq.Writer([self.server.tcp], reconnect_interval=0.3, **asked)
            deadline = time.monotonic() + 30

            async def until(condition):
                while not condition():
                    self.assertLess(time.monotonic(), deadline, "%d of %d" % (len(heard), len(BODIES)))
                    await asyncio.sleep(0.02)

            await until(lambda: any(conn.state == "CONNECTED" for conn in writer.conns.values()))
            for body in BODIES:
                done = asyncio.get_running_loop().create_future()
                writer.pub(topic, body, callback=lambda conn, data, done=done: done.set_result(data))
                self.assertEqual(await asyncio.wait_for(done, 20), b"OK")

            def take(message):
                heard.append(message.body)
                return True

            reader = nsq.Reader(topic, "c", message_handler=take, nsqd_tcp_addresses=[self.server.tcp], max_in_flight=20, **asked)
            await until(lambda: len(heard) >= len(BODIES))
            self.assertEqual(sorted(heard), sorted(BODIES))
            self.check_stats(topic, transport)
            for client in (writer, reader):
                for conn in list(client.conns.values()):
                    conn.close()
            await asyncio.sleep(0.05)

        asyncio.run(run())

    def with_gnsq(self, transport):
        topic = "gnsq-%d" % next(NUMBERS)
        asked, heard = self.asked(transport), []
        # Not its Producer, which takes the OK of a layer for the answer to a publish.
        producer = gnsq.NsqdTCPClient("127.0.0.1", self.server.tcp_port, **asked)
        producer.connect()
        producer.identify()
        for body in BODIES:
            producer.publish(topic, body)
            self.assertEqual(producer.read_response(), (gnsq.protocol.FRAME_TYPE_RESPONSE, b"OK"))
        consumer = gnsq.Consumer(topic, "c", [self.server.tcp], max_in_flight=20,
                                 message_handler=lambda consumer, message: heard.append(message.body), **asked)
        consumer.start(block=False)
        deadline = time.monotonic() + 30
        while len(heard) < len(BODIES):
            self.assertLess(time.monotonic(), deadline, "%d of %d" % (len(heard), len(BODIES)))
            gevent.sleep(0.02)
        self.assertEqual(sorted(heard), sorted(BODIES))
        self.check_stats(topic, transport)
        consumer.close()
        producer.close_stream()


class TlsRequired(Transports):
    """Every connection has to have TLS, and to show a certificate of the CA."""

    flags = ["--tls-required=tcp-https", "--tls-client-auth-policy=require-verify"]


def add(cls, transport):
    for library in ("pynsq", "gnsq"):
        def test(self, library=library):
            getattr(self, "with_" + library)(transport)
        setattr(cls, "test_%s_%s" % (library, transport), test)


for name, asked in TRANSPORTS.items():
    add(Transports, name)
    if "tls_v1" in asked:
        # TlsRequired inherits the others: plain ones are refused there
        add(TlsRequired, name)
    else:
        for library in ("pynsq", "gnsq"):
            setattr(TlsRequired, "test_%s_%s" % (library, name), None)


if __name__ == "__main__":
    unittest.main()
