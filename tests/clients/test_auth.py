"""AUTH against an auth server, with stock nsqd 1.3.0 and with the node: the same questions, the same answers to clients."""

import http.server
import json
import os
import socket
import struct
import threading
import time
import unittest
import urllib.parse

from server import Server
from test_golden import MAGIC, Peer, body, negotiate, plain

ALL = {"permissions": ["subscribe", "publish"], "topic": ".*", "channels": [".*"]}

# What the auth server says to each secret: a status and a body, or an object.
SECRETS = {
    "all": {"ttl": 3600, "identity": "me <&>", "identity_url": "http://me", "authorizations": [ALL]},
    "publisher": {"ttl": 3600, "authorizations": [{"permissions": ["publish"], "topic": "^a.*", "channels": [".*"]}]},
    "subscriber": {"ttl": 3600, "authorizations": [{"permissions": ["subscribe"], "topic": "^a.*", "channels": ["^c$"]}]},
    "no channels": {"ttl": 3600, "authorizations": [{"permissions": ["publish"], "topic": ".*", "channels": ["x"]}]},
    "none": {"ttl": 3600, "authorizations": []},
    "no ttl": {"authorizations": [ALL]},
    "wrong permission": {"ttl": 3600, "authorizations": [{**ALL, "permissions": ["admin"]}]},
    "wrong expression": {"ttl": 3600, "authorizations": [{**ALL, "topic": "("}]},
    "no json": (200, b"nope"),
    "error": (500, b'{"message":"no"}'),
    "forbidden": (403, b'{"message":"no"}'),
    "short": {"ttl": 1, "authorizations": [ALL]},
}

# Steps of a client; each is sent, then its answers are collected.
CONVERSATIONS = {
    "no_auth_pub": [MAGIC + body(b"PUB a", b"x")],
    "no_auth_mpub": [MAGIC + body(b"MPUB a", struct.pack(">ll", 1, 1) + b"x")],
    "no_auth_sub": [MAGIC + b"SUB a c\n"],
    "no_auth_nop": [MAGIC + b"NOP\n"],
    "identify_says_required": [MAGIC + negotiate()],
    "all": [MAGIC + body(b"AUTH", b"all"), body(b"PUB a", b"x"), b"SUB a c\n"],
    "twice": [MAGIC + body(b"AUTH", b"all") + body(b"AUTH", b"all")],
    "pipelined": [MAGIC + body(b"AUTH", b"all") + body(b"PUB pipelined", b"x") + body(b"PUB pipelined", b"y")],
    "publisher_pub": [MAGIC + body(b"AUTH", b"publisher"), body(b"PUB a1", b"x"), body(b"PUB b", b"x")],
    "publisher_mpub": [MAGIC + body(b"AUTH", b"publisher"), body(b"MPUB b", struct.pack(">ll", 1, 1) + b"x")],
    "publisher_sub": [MAGIC + body(b"AUTH", b"publisher"), b"SUB a1 c\n"],
    "subscriber_sub": [MAGIC + body(b"AUTH", b"subscriber"), b"SUB a2 c\n"],
    "subscriber_other": [MAGIC + body(b"AUTH", b"subscriber"), b"SUB a2 d\n"],
    "subscriber_pub": [MAGIC + body(b"AUTH", b"subscriber"), body(b"PUB a2", b"x")],
    "no_channels": [MAGIC + body(b"AUTH", b"no channels"), body(b"PUB a", b"x")],
    "none": [MAGIC + body(b"AUTH", b"none")],
    "no_ttl": [MAGIC + body(b"AUTH", b"no ttl")],
    "wrong_permission": [MAGIC + body(b"AUTH", b"wrong permission")],
    "wrong_expression": [MAGIC + body(b"AUTH", b"wrong expression")],
    "no_json": [MAGIC + body(b"AUTH", b"no json")],
    "error": [MAGIC + body(b"AUTH", b"error")],
    "forbidden": [MAGIC + body(b"AUTH", b"forbidden")],
    "unknown": [MAGIC + body(b"AUTH", b"nobody knows this")],
    "after_identify": [MAGIC + negotiate(), body(b"AUTH", b"all"), body(b"PUB a", b"x")],
}


class AuthServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.questions = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return "127.0.0.1:%d" % self.server_port


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        self.server.questions.append((path, {key: values[0] for key, values in asked.items()}))
        answer = SECRETS.get(asked.get("secret", [""])[0], (404, b'{"message":"unknown"}'))
        status, data = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Auth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.auth = AuthServer()
        cls.servers = {}
        nsqd = os.path.join(os.environ["RINGMQ_STOCK"], "nsqd")
        for name, binary in (("nsqd", nsqd), ("node", os.environ["RINGMQ_BINARY"])):
            cls.servers[name] = Server("--auth-http-address=" + cls.auth.address, "--broadcast-address=127.0.0.1", binary=binary)

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            server.close()
        cls.auth.shutdown()
        cls.auth.server_close()

    def converse(self, server, steps):
        peer, told = Peer(server), []
        for step in steps:
            try:
                peer.socket.sendall(step)
            except OSError:
                pass  # it is told what it is told
            told.append(plain(peer.collect()))
        told.append("closed" if peer.ended else "open")
        peer.socket.close()
        return told

    def compare(self, name):
        told = {}
        for who, server in self.servers.items():
            self.auth.questions.clear()
            told[who] = (self.converse(server, CONVERSATIONS[name]), list(self.auth.questions))
        self.assertEqual(told["node"], told["nsqd"], "ours, then nsqd's")

    def test_the_server_is_asked_again_after_the_ttl(self):
        for who, server in self.servers.items():
            self.auth.questions.clear()
            peer = Peer(server)
            peer.socket.sendall(MAGIC + body(b"AUTH", b"short"))
            peer.collect()
            peer.socket.sendall(body(b"PUB again", b"x"))
            self.assertEqual(plain(peer.collect()), [(0, b"OK")], who)
            before = len(self.auth.questions)
            time.sleep(1.5)
            peer.socket.sendall(body(b"PUB again", b"x"))
            self.assertEqual(plain(peer.collect()), [(0, b"OK")], who)
            self.assertEqual((before, len(self.auth.questions)), (1, 2), who)
            # What it may do is taken from it.
            SECRETS["short"], kept = SECRETS["none"], SECRETS["short"]
            try:
                time.sleep(1.5)
                peer.socket.sendall(body(b"PUB again", b"x"))
                self.assertEqual(plain(peer.collect())[0][1][:14], b"E_UNAUTHORIZED", who)
                self.assertTrue(peer.ended, who)
            finally:
                SECRETS["short"] = kept
                peer.socket.close()

    def test_stats_show_who_it_is(self):
        shown = []
        for server in self.servers.values():
            peer = Peer(server)
            peer.socket.sendall(MAGIC + body(b"AUTH", b"all") + b"SUB who c\n")
            peer.collect()
            stats = json.loads(server.get("/stats?format=json&topic=who"))
            client = stats["topics"][0]["channels"][0]["clients"][0]
            shown.append({key: client.get(key) for key in ("authed", "auth_identity", "auth_identity_url")})
            peer.socket.close()
        self.assertEqual(shown[1], shown[0], "ours, then nsqd's")
        self.assertTrue(shown[0]["authed"])


class Servers(unittest.TestCase):
    """Several auth servers, of which one is away."""

    def test_the_next_one_is_asked(self):
        auth = AuthServer()
        away = socket.socket()
        away.bind(("127.0.0.1", 0))  # nobody listens
        server = Server("--auth-http-address=127.0.0.1:%d" % away.getsockname()[1], "--auth-http-address=" + auth.address)
        try:
            for _ in range(8):
                peer = Peer(server)
                peer.socket.sendall(MAGIC + body(b"AUTH", b"all"))
                self.assertEqual(plain(peer.collect())[0][1][2], ("permission_count", 1))
                peer.socket.close()
        finally:
            server.close()
            auth.shutdown()
            auth.server_close()
            away.close()


def add(name):
    setattr(Auth, "test_" + name, lambda self: self.compare(name))


for name in CONVERSATIONS:
    add(name)

if __name__ == "__main__":
    unittest.main()
