"""`ringmq pub`, `tail`, `stat` and `topic` against nodes that want TLS and AUTH, ours and the stock nsqd 1.3.0 (RINGMQ_STOCK)."""

import os
import subprocess
import unittest

from pki import Pki
from test_auth import AuthServer
from test_https import Secure

BINARIES = {"nsqd": os.path.join(os.environ["RINGMQ_STOCK"], "nsqd"), "node": os.environ["RINGMQ_BINARY"]}


class Tools(unittest.TestCase):
    def setUp(self):
        self.pki = Pki()
        self.addCleanup(self.pki.close)
        self.auth = AuthServer()
        self.addCleanup(self.auth.server_close)
        self.addCleanup(self.auth.shutdown)

    def nodes(self):
        for name, binary in BINARIES.items():
            flags = ("--tls-required=true", "--tls-client-auth-policy=require-verify", "--auth-http-address=" + self.auth.address)
            node = Secure(self.pki, *flags, "--broadcast-address=127.0.0.1", binary=binary)
            self.addCleanup(node.close)
            yield name, node

    def run_tool(self, *args, stdin=b""):
        done = subprocess.run([os.environ["RINGMQ_BINARY"], *args], input=stdin, capture_output=True, timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def options(self, flag, *without, **other):
        given = {"tls_v1": "true", "tls_root_ca_file": self.pki.path("ca.pem"), "tls_cert": self.pki.path("client.pem"),
                 "tls_key": self.pki.path("client.key"), "auth_secret": "all", **other}
        return ["--%s=%s,%s" % (flag, name, value) for name, value in given.items() if name not in without]

    def http(self, *without):
        given = {"root-ca-file": "ca.pem", "cert": "client.pem", "key": "client.key"}
        return ["--http-client-tls-%s=%s" % (name, self.pki.path(file)) for name, file in given.items() if name not in without]

    def test_messages_go_in_and_come_out(self):
        for name, node in self.nodes():
            with self.subTest(name):
                address = "--nsqd-tcp-address=127.0.0.1:%d" % node.tcp_port
                published = self.run_tool("pub", "t", address, *self.options("producer-opt"), stdin=b"one\ntwo\n")
                self.assertEqual(published[0], 0, published)
                read = self.run_tool("tail", "t", "--channel=c", "-n", "2", address, *self.options("consumer-opt"))
                self.assertEqual(read[:2], (0, "one\ntwo\n"), read)

    def test_what_is_missing_is_named(self):
        for name, node in self.nodes():
            with self.subTest(name):
                address = "--nsqd-tcp-address=127.0.0.1:%d" % node.tcp_port
                for without, other, said in (
                    (("auth_secret",), {}, "the node asks for a secret: give the option auth_secret"),
                    ((), {"auth_secret": "none"}, "E_UNAUTHORIZED"),
                    (("tls_cert", "tls_key"), {}, "no TLS"),
                    (("tls_root_ca_file",), {}, "no TLS"),
                    (("tls_v1",), {}, "E_INVALID"),
                ):
                    code, _, error = self.run_tool("pub", "t", address, *self.options("producer-opt", *without, **other), stdin=b"x\n")
                    self.assertEqual((code, said in error), (1, True), (without, error))

    def test_a_certificate_that_is_not_verified_need_not_be_known(self):
        for name, node in self.nodes():
            with self.subTest(name):
                options = self.options("producer-opt", "tls_root_ca_file", tls_insecure_skip_verify="true")
                address = "--nsqd-tcp-address=127.0.0.1:%d" % node.tcp_port
                done = self.run_tool("pub", "t", address, *options, stdin=b"x\n")
                self.assertEqual(done[0], 0, done)

    def test_topics_are_changed_and_listed_over_https(self):
        """Also where the plain address is named: the node says where its HTTPS is."""
        for name, node in self.nodes():
            with self.subTest(name):
                plain = "--nsqd-http-address=127.0.0.1:%d" % node.http_port
                secure = "--nsqd-http-address=https://127.0.0.1:%d" % node.https_port
                for address, topic in ((plain, "one"), (secure, "two")):
                    done = self.run_tool("topic", "create", topic, address, *self.http())
                    self.assertEqual(done[0], 0, done)
                for address in (plain, secure):
                    done = self.run_tool("stat", "--json", address, *self.http())
                    self.assertEqual((done[0], "one" in done[1], "two" in done[1]), (0, True, True), done)
                code, _, error = self.run_tool("topic", "list", secure, *self.http("root-ca-file"))
                self.assertEqual((code, "--http-client-tls-root-ca-file" in error), (1, True), error)


if __name__ == "__main__":
    unittest.main()
