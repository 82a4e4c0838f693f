"""TLS of NSQ clients, with stock nsqd 1.3.0 and with the node: who is let in by which policy and version, what /stats says of it, and which
flags end the start."""

import json
import os
import socket
import ssl
import struct
import subprocess
import tempfile
import unittest

from pki import ANY_HTTPS_PORT, Pki
from server import Ports, Server
from test_golden import MAGIC, STOCK, body, negotiate

BINARIES = {"nsqd": STOCK, "node": os.environ["RINGMQ_BINARY"]}
# Flags of a node, beside its certificate.
NODES = {
    "plain": [],
    "required": ["--tls-required"],
    "required_false": ["--tls-required=false"],
    "tcp_https": ["--tls-required=tcp-https"],
    "require": ["--tls-client-auth-policy=require"],
    "require_verify": ["--tls-client-auth-policy=require-verify"],
    "tls12": ["--tls-min-version=tls1.2"],
    "tls13": ["--tls-min-version=tls1.3"],
}
# How a client comes: the certificate that it shows, and the newest version that it speaks.
CLIENTS = {
    "no_tls": None,
    "no_certificate": (None, ssl.TLSVersion.TLSv1_3),
    "certificate": ("client", ssl.TLSVersion.TLSv1_3),
    "certificate_tls12": ("client", ssl.TLSVersion.TLSv1_2),
    "foreign_certificate": ("foreign", ssl.TLSVersion.TLSv1_3),
    "foreign_certificate_tls12": ("foreign", ssl.TLSVersion.TLSv1_2),
}
# Flags that end the start; %s is the folder of the certificates.
REFUSED = {
    "no_such_certificate": ["--tls-cert=%s/none.pem", "--tls-key=%s/node.key"],
    "no_such_key": ["--tls-cert=%s/node.pem", "--tls-key=%s/none.key"],
    "no_key": ["--tls-cert=%s/node.pem"],
    "no_certificate": ["--tls-key=%s/node.key"],
    "another_key": ["--tls-cert=%s/node.pem", "--tls-key=%s/client.key"],
    "a_certificate_that_is_none": ["--tls-cert=%s/node.key", "--tls-key=%s/node.key"],
    "no_such_ca": ["--tls-cert=%s/node.pem", "--tls-key=%s/node.key", "--tls-root-ca-file=%s/none.pem"],
    "a_ca_that_is_none": ["--tls-cert=%s/node.pem", "--tls-key=%s/node.key", "--tls-root-ca-file=%s/node.key"],
    "required_without": ["--tls-required"],
    "tcp_https_without": ["--tls-required=tcp-https"],
    "no_such_version": ["--tls-cert=%s/node.pem", "--tls-key=%s/node.key", "--tls-min-version=tls9"],
    "no_such_requirement": ["--tls-cert=%s/node.pem", "--tls-key=%s/node.key", "--tls-required=perhaps"],
}
# nsqd takes this for a policy that asks for no certificate (docs/nsq.md).
REFUSED_HERE = {"no_such_policy": ["--tls-cert=%s/node.pem", "--tls-key=%s/node.key", "--tls-client-auth-policy=perhaps"]}


def frames(stream, count):
    """So many frames, fewer where the connection ends."""
    found, data = [], b""
    while len(found) < count:
        while len(data) < 4 or len(data) < 4 + struct.unpack(">l", data[:4])[0]:
            more = stream.recv(65536)
            if not more:
                return found + ["closed"]
            data += more
        size = struct.unpack(">l", data[:4])[0]
        found.append((struct.unpack(">l", data[4:8])[0], data[8:4 + size]))
        data = data[4 + size:]
    return found


class Listening(Server):
    """A server that may refuse HTTP: it is there once it listens."""

    def get(self, path):
        if path != "/ping":
            return super().get(path)
        socket.create_connection(("127.0.0.1", self.tcp_port), timeout=5).close()
        return "OK"


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pki, cls.other = Pki(), Pki()

    @classmethod
    def tearDownClass(cls):
        for pki in (cls.pki, cls.other):
            pki.close()

    def context(self, certificate, newest):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.pki.path("ca.pem"))
        context.maximum_version = newest
        if certificate:
            pki = self.other if certificate == "foreign" else self.pki
            context.load_cert_chain(pki.path("client.pem"), pki.path("client.key"))
        return context

    def converse(self, server, client, topic):
        """What a client hears: to its IDENTIFY, to its TLS and to a PUB; then what /stats says of it."""
        with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=10) as stream:
            stream.sendall(MAGIC + (negotiate(tls_v1=True, user_agent="u") if client else b""))
            if client:
                answer = json.loads(frames(stream, 1)[0][1])
                told = [answer["tls_v1"]]
                if not answer["tls_v1"]:
                    return told
                try:
                    with self.context(*client).wrap_socket(stream, server_hostname="127.0.0.1") as stream:
                        return told + frames(stream, 1) + self.publish(stream, server, topic)
                except OSError:  # in TLS 1.3 a client hears of it only when it reads
                    return told + ["refused"]
            return self.publish(stream, server, topic)

    def publish(self, stream, server, topic):
        stream.sendall(body(b"PUB " + topic.encode(), b"x"))
        told = frames(stream, 1)
        return told + self.shown(server, topic) if told[0] == (0, b"OK") else told

    def shown(self, server, topic):
        if "--tls-required" in server.flags or any("policy" in flag for flag in server.flags):
            return []  # HTTP is refused, too
        producers = json.loads(server.get("/stats?format=json&include_clients=true&topic=" + topic))["producers"]
        mine = [p for p in producers if any(count["topic"] == topic for count in p.get("pub_counts") or [])]
        # the suite has no name in nsqd where the version is 1.3; docs/nsq.md has it
        return [(p["tls"], p["tls_version"], bool(p["tls_cipher_suite"]), p["tls_negotiated_protocol"],
                 p["tls_negotiated_protocol_is_mutual"]) for p in mine]

    def compare(self, name):
        told = {}
        for who, binary in BINARIES.items():
            server = Listening(*self.pki.flags(), *ANY_HTTPS_PORT, *NODES[name], binary=binary)
            try:
                told[who] = {client: self.converse(server, asked, client) for client, asked in CLIENTS.items()}
            finally:
                server.close()
        self.assertEqual(told["node"], told["nsqd"], "ours, then nsqd's")

    def refuse(self, flags, whom):
        for who in whom:
            with self.subTest(who), tempfile.TemporaryDirectory(dir=os.environ["RINGMQ_TEST_FOLDER"]) as folder:
                ports = Ports()
                tcp, http, native, _ = ports
                serve = [] if who == "nsqd" else ["serve", "--native-address=127.0.0.1:%d" % native]
                asked = [flag.replace("%s", self.pki.folder) for flag in flags]
                addresses = ["--tcp-address=127.0.0.1:%d" % tcp, "--http-address=127.0.0.1:%d" % http]
                run = subprocess.run([BINARIES[who], *serve, "--data-path=" + folder, *addresses, *asked], capture_output=True, timeout=30)
                ports.claim.close()
                self.assertNotEqual(run.returncode, 0)
                self.assertTrue(run.stderr, "it says why")


for name in NODES:
    setattr(Tls, "test_" + name, lambda self, name=name: self.compare(name))
for refused, whom in ((REFUSED, ("nsqd", "node")), (REFUSED_HERE, ("node",))):
    for name, flags in refused.items():
        setattr(Tls, "test_refused_" + name, lambda self, flags=flags, whom=whom: self.refuse(flags, whom))


if __name__ == "__main__":
    unittest.main()
