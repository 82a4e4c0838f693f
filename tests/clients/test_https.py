"""HTTPS, ours beside the stock nsqd 1.3.0 (RINGMQ_STOCK): who is let in, what plain HTTP answers, and the certificate behind a SIGHUP."""

import http.client
import json
import os
import signal
import socket
import ssl
import struct
import time
import unittest

from pki import Pki
from server import Server

STOCK = os.path.join(os.environ["RINGMQ_STOCK"], "nsqd")


class Secure(Server):
    """A node with HTTPS on the third of its ports."""

    def __init__(self, pki, *flags, binary=None):
        self.pki = pki
        super().__init__(*pki.flags(), *flags, binary=binary)

    def claim_ports(self):
        super().claim_ports()
        self.https_port = self.ports.first + 2
        self.flags = [flag for flag in self.flags if not flag.startswith("--https-address")]
        self.flags.append("--https-address=127.0.0.1:%d" % self.https_port)

    def get(self, path):
        """Also where plain HTTP is closed: of that only its answer is waited for."""
        status, body = self.ask(path)
        return "OK" if status == 403 else body

    def ask(self, path, method="GET", secure=False, certificate=True):
        """Status and body; or the word that it failed."""
        if secure:
            connection = http.client.HTTPSConnection("127.0.0.1", self.https_port, timeout=10, context=self.context(certificate))
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().replace(str(self.https_port), "PORT")
        except (ssl.SSLError, ConnectionResetError, http.client.RemoteDisconnected):
            if not secure:
                raise
            return "refused"
        finally:
            connection.close()

    def context(self, certificate=True):
        context = ssl.create_default_context(cafile=self.pki.path("ca.pem"))
        if certificate:
            context.load_cert_chain(self.pki.path("client.pem"), self.pki.path("client.key"))
        return context

    def shown(self, port, nsq=False):
        """The serial number of the certificate that the node shows there."""
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            if nsq:
                body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
                plain.sendall(b"  V2IDENTIFY\n" + struct.pack(">l", len(body)) + body)
                size = struct.unpack(">l", plain.recv(4, socket.MSG_WAITALL))[0]
                plain.recv(size, socket.MSG_WAITALL)
            with self.context().wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                return secure.getpeercert()["serialNumber"]


class Https(unittest.TestCase):
    def setUp(self):
        self.pki = Pki()
        self.addCleanup(self.pki.close)

    def node(self, *flags, binary=None):
        node = Secure(self.pki, *flags, binary=binary)
        self.addCleanup(node.close)
        return node

    def test_who_is_let_in(self):
        for flags in (
            [], ["--tls-required=tcp-https"], ["--tls-required=true"], ["--tls-required", "--tls-client-auth-policy=require"],
            ["--tls-client-auth-policy=require-verify"], ["--tls-required=tcp-https", "--tls-client-auth-policy=require-verify"],
        ):
            answers = []
            for node in (self.node(*flags), self.node(*flags, binary=STOCK)):
                answers.append([
                    node.ask("/ping"), node.ask("/topic/create?topic=t", "POST"), node.ask("/nope"),
                    node.ask("/ping", secure=True), node.ask("/topic/create?topic=t", "POST", secure=True),
                    node.ask("/nope", secure=True), node.ask("/ping", secure=True, certificate=False),
                ])
                node.close()
            self.assertEqual(answers[0], answers[1], "%s: ours, then nsqd's" % flags)

    def test_without_a_certificate_nobody_listens(self):
        for binary in (None, STOCK):
            node = Server(*([] if binary else ["--shards=1"]), "--https-address=127.0.0.1:0", binary=binary)
            self.addCleanup(node.close)
            self.assertEqual(node.get("/ping"), "OK")

    def test_a_hangup_replaces_the_certificate_of_both_ports(self):
        node = self.node()
        before = {node.shown(node.https_port), node.shown(node.tcp_port, nsq=True)}
        self.assertEqual(len(before), 1)
        self.pki.renew("node")
        node.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        after = before
        while after & before:
            self.assertLess(time.monotonic(), deadline, node.log())
            time.sleep(0.05)
            after = {node.shown(node.https_port), node.shown(node.tcp_port, nsq=True)}
        self.assertEqual(len(after), 1)
        # What cannot be read changes nothing.
        with open(self.pki.path("node.key"), "w") as file:
            file.write("no key")
        node.process.send_signal(signal.SIGHUP)
        while "stay as they were" not in node.log():
            self.assertLess(time.monotonic(), deadline, node.log())
            time.sleep(0.05)
        self.assertEqual({node.shown(node.https_port), node.shown(node.tcp_port, nsq=True)}, after)


if __name__ == "__main__":
    unittest.main()
