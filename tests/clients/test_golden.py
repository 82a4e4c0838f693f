"""The same conversations with stock nsqd 1.3.0 (RINGMQ_STOCK) and with the node: every byte that comes back is the same.

What names a message, a time or a version is put aside; what differs on purpose stands in DIFFERENCES, with the reason.
"""

import concurrent.futures
import json
import os
import re
import socket
import struct
import time
import unittest
import zlib

from server import Server

STOCK = os.path.join(os.environ["RINGMQ_STOCK"], "nsqd")
MAGIC = b"  V2"
ID = re.compile(rb"[0-9a-f]{16}")


def body(line, data):
    return line + b"\n" + struct.pack(">l", len(data)) + data


def identify(**fields):
    return body(b"IDENTIFY", json.dumps(fields).encode())


def negotiate(**fields):
    return identify(feature_negotiation=True, **fields)


def messages(*bodies):
    return struct.pack(">l", len(bodies)) + b"".join(struct.pack(">l", len(b)) + b for b in bodies)


END = object()  # the client closes its side

# Each is a list of what is sent, in turn; after each step the answers are collected.
CONVERSATIONS = {
    "magic": [b"  V1"],
    "magic_cut": [b"  V", END],
    "nop": [MAGIC + b"NOP\n" + b"NOP\r\n"],
    "unknown_command": [MAGIC + b"FOO bar\n"],
    "empty_line": [MAGIC + b"\n"],
    "lower_case": [MAGIC + b"pub t\n"],
    # IDENTIFY
    "identify_plain": [MAGIC + identify()],
    "identify_negotiates": [MAGIC + negotiate()],
    "identify_twice": [MAGIC + negotiate(msg_timeout=2000) + negotiate(sample_rate=7)],
    "identify_all": [MAGIC + negotiate(client_id="c", hostname="h", user_agent="u", heartbeat_interval=2000, msg_timeout=30000,
                                       output_buffer_size=128, output_buffer_timeout=100, sample_rate=10)],
    "identify_no_buffer": [MAGIC + negotiate(output_buffer_size=-1)],
    "identify_no_flush": [MAGIC + negotiate(output_buffer_timeout=-1)],
    "identify_no_heartbeat": [MAGIC + negotiate(heartbeat_interval=-1), b"SUB %(topic)s c\n"],
    "identify_topology": [MAGIC + negotiate(topology_region="r", topology_zone="z")],
    "identify_key_twice": [MAGIC + b"IDENTIFY\n" + struct.pack(">l", 72)
                           + b'{"feature_negotiation":true,"msg_timeout":2000,"msg_timeout":3000}      '],
    "identify_key_case": [MAGIC + negotiate(Msg_Timeout=2000)],
    "identify_null": [MAGIC + body(b"IDENTIFY", b"null")],
    "identify_array": [MAGIC + body(b"IDENTIFY", b"[]")],
    "identify_no_json": [MAGIC + body(b"IDENTIFY", b"nope")],
    "identify_wrong_type": [MAGIC + negotiate(msg_timeout="1")],
    "identify_fraction": [MAGIC + negotiate(msg_timeout=1000.5)],
    "identify_empty": [MAGIC + body(b"IDENTIFY", b"")],
    "identify_negative": [MAGIC + b"IDENTIFY\n" + struct.pack(">l", -1)],
    "identify_too_big": [MAGIC + b"IDENTIFY\n" + struct.pack(">l", 5242881)],
    "identify_heartbeat_low": [MAGIC + negotiate(heartbeat_interval=999)],
    "identify_heartbeat_high": [MAGIC + negotiate(heartbeat_interval=60001)],
    "identify_buffer_low": [MAGIC + negotiate(output_buffer_size=63)],
    "identify_buffer_high": [MAGIC + negotiate(output_buffer_size=65537)],
    "identify_flush_low": [MAGIC + negotiate(output_buffer_timeout=24)],
    "identify_flush_high": [MAGIC + negotiate(output_buffer_timeout=30001)],
    "identify_sample_low": [MAGIC + negotiate(sample_rate=-1)],
    "identify_sample_high": [MAGIC + negotiate(sample_rate=100)],
    "identify_timeout_low": [MAGIC + negotiate(msg_timeout=999)],
    "identify_timeout_high": [MAGIC + negotiate(msg_timeout=900001)],
    "identify_both": [MAGIC + negotiate(snappy=True, deflate=True)],
    "identify_tls_without": [MAGIC + negotiate(tls_v1=True)],
    "identify_deflate_level": [MAGIC + negotiate(deflate_level=3)],
    "identify_body_cut": [MAGIC + b"IDENTIFY\n" + struct.pack(">l", 10) + b"{", END],
    "identify_size_cut": [MAGIC + b"IDENTIFY\n\0", END],
    "identify_after_sub": [MAGIC + b"SUB %(topic)s c\n" + identify()],
    # publishing
    "pub": [MAGIC + body(b"PUB %(topic)s", b"hello")],
    "pub_no_topic": [MAGIC + b"PUB\n"],
    "pub_bad_topic": [MAGIC + body(b"PUB a$b", b"x")],
    "pub_long_topic": [MAGIC + body(b"PUB " + b"x" * 65, b"x")],
    "pub_empty_topic": [MAGIC + body(b"PUB ", b"x")],
    "pub_quotes": [MAGIC + body(b'PUB a"\\\x01\xff\xc3\xa4', b"x")],
    "pub_empty": [MAGIC + body(b"PUB %(topic)s", b"")],
    "pub_negative": [MAGIC + b"PUB %(topic)s\n" + struct.pack(">l", -5)],
    "pub_too_big": [MAGIC + b"PUB %(topic)s\n" + struct.pack(">l", 1048577)],
    "pub_body_cut": [MAGIC + b"PUB %(topic)s\n" + struct.pack(">l", 5) + b"ab", END],
    "pub_size_cut": [MAGIC + b"PUB %(topic)s\n\0\0", END],
    "pub_line_cut": [MAGIC + b"PUB %(topic)s", END],
    "pub_then_pub_cut": [MAGIC + body(b"PUB %(topic)s", b"a") + b"PUB %(topic)s\n" + struct.pack(">l", 5) + b"ab", END],
    "pub_then_size_cut": [MAGIC + body(b"PUB %(topic)s", b"a") + b"PUB %(topic)s\n\0", END],
    "identify_then_pub_cut": [MAGIC + negotiate() + b"PUB %(topic)s\n" + struct.pack(">l", 5) + b"ab", END],
    "identify_then_line_cut": [MAGIC + negotiate() + b"PUB %(topic)s", END],
    "identify_then_identify_cut": [MAGIC + negotiate() + b"IDENTIFY\n" + struct.pack(">l", 5) + b"{", END],
    "sub_then_mpub_cut": [MAGIC + b"SUB %(topic)s c\nMPUB %(topic)s\n" + struct.pack(">lll", 20, 2, 5) + b"a", END],
    "identify_then_end": [MAGIC + negotiate(), END],
    "pub_then_end": [MAGIC + body(b"PUB %(topic)s", b"a") + body(b"PUB %(topic)s", b"b"), END],
    "mpub": [MAGIC + body(b"MPUB %(topic)s", messages(b"a", b"b"))],
    "mpub_bad_topic": [MAGIC + body(b"MPUB a$b", messages(b"a"))],
    "mpub_no_topic": [MAGIC + b"MPUB\n"],
    "mpub_no_messages": [MAGIC + body(b"MPUB %(topic)s", messages())],
    "mpub_empty_message": [MAGIC + body(b"MPUB %(topic)s", messages(b"a", b""))],
    "mpub_empty": [MAGIC + body(b"MPUB %(topic)s", b"")],
    "mpub_too_big": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">l", 5242881)],
    "mpub_message_too_big": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">lll", 2000000, 1, 1048577)],
    "mpub_too_many": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">ll", 2000000, 2000000)],
    "mpub_count_cut": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">l", 20) + b"\0", END],
    "mpub_size_cut": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">lll", 20, 2, 1) + b"a\0", END],
    "mpub_message_cut": [MAGIC + b"MPUB %(topic)s\n" + struct.pack(">lll", 20, 2, 5) + b"a", END],
    # consuming
    "sub": [MAGIC + b"SUB %(topic)s c\n"],
    "sub_twice": [MAGIC + b"SUB %(topic)s c\nSUB %(topic)s c\n"],
    "sub_no_channel": [MAGIC + b"SUB %(topic)s\n"],
    "sub_bad_topic": [MAGIC + b"SUB a$b c\n"],
    "sub_bad_channel": [MAGIC + b"SUB %(topic)s c$d\n"],
    "rdy_before_sub": [MAGIC + b"RDY 1\n"],
    "rdy_too_high": [MAGIC + b"SUB %(topic)s c\nRDY 2501\n"],
    "rdy_signed": [MAGIC + b"SUB %(topic)s c\nRDY -1\n"],
    "rdy_word": [MAGIC + b"SUB %(topic)s c\nRDY x\n"],
    "rdy_alone": [MAGIC + body(b"PUB %(topic)s", b"a") + body(b"PUB %(topic)s", b"b") + b"SUB %(topic)s c\nRDY\n"],
    "fin_before_sub": [MAGIC + b"FIN 0123456789abcdef\n"],
    "fin_no_id": [MAGIC + b"SUB %(topic)s c\nFIN\n"],
    "fin_short_id": [MAGIC + b"SUB %(topic)s c\nFIN 0123\n"],
    "fin_unknown": [MAGIC + b"SUB %(topic)s c\nFIN 0123456789abcdef\nNOP\nFIN 0123456789abcdeg\n"],
    "req_no_timeout": [MAGIC + b"SUB %(topic)s c\nREQ 0123456789abcdef\n"],
    "req_word": [MAGIC + b"SUB %(topic)s c\nREQ 0123456789abcdef x\n"],
    "req_unknown": [MAGIC + b"SUB %(topic)s c\nREQ 0123456789abcdef 100\n"],
    "touch_unknown": [MAGIC + b"SUB %(topic)s c\nTOUCH 0123456789abcdef\n"],
    "touch_no_id": [MAGIC + b"SUB %(topic)s c\nTOUCH\n"],
    "cls_before_sub": [MAGIC + b"CLS\n"],
    "cls": [MAGIC + b"SUB %(topic)s c\nCLS\n", b"RDY 1\nRDY -1\nNOP\n" + body(b"PUB %(topic)s", b"x"), b"CLS\n"],
    "consume": [MAGIC + body(b"MPUB %(topic)s", messages(b"a")) + b"SUB %(topic)s c\nRDY 5\n"],
    "extra_words": [MAGIC + b"NOP a b c\nSUB %(topic)s c d e\nRDY 1 2\n"],
    # AUTH
    "auth_disabled": [MAGIC + body(b"AUTH", b"secret")],
    "auth_words": [MAGIC + body(b"AUTH x", b"secret")],
    "auth_empty": [MAGIC + body(b"AUTH", b"")],
    "auth_cut": [MAGIC + b"AUTH\n" + struct.pack(">l", 9) + b"a", END],
    "auth_after_sub": [MAGIC + b"SUB %(topic)s c\n" + body(b"AUTH", b"s")],
}

# Conversations whose answers differ, and why.
DIFFERENCES = {}


class Peer:
    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.tcp_port))
        self.socket.settimeout(0.4)
        self.input, self.ended = b"", False

    def collect(self):
        """What comes until nothing does for a while."""
        while not self.ended:
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                break
            except ConnectionResetError:
                data = b""
            self.ended = not data
            self.input += data
        frames = []
        while len(self.input) >= 4:
            size = struct.unpack(">l", self.input[:4])[0]
            # What is compressed is no frame.
            if size < 4 or len(self.input) < 4 + size:
                break
            kind, data = struct.unpack(">l", self.input[4:8])[0], self.input[8:4 + size]
            self.input = self.input[4 + size:]
            frames.append((kind, data))
        return frames


def plain(frames):
    """Without what is another one each time."""
    told = []
    for kind, data in frames:
        if kind == 2:
            told.append(("message", struct.unpack(">H", data[8:10])[0], data[26:]))
        elif data.startswith(b"{"):
            told.append((kind, list(json.loads(data).items())))
        else:
            told.append((kind, data))
    return told


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = {}
        for name, binary in (("nsqd", STOCK), ("node", os.environ["RINGMQ_BINARY"])):
            cls.servers[name] = Server(binary=binary)
        # Most of a conversation is waiting for nothing to come: many are held at a time.
        cls.pool = concurrent.futures.ThreadPoolExecutor(16)
        cls.told = {
            (who, name): cls.pool.submit(cls.converse, server, name) for name in CONVERSATIONS for who, server in cls.servers.items()}

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        for server in cls.servers.values():
            server.close()

    @staticmethod
    def converse(server, name):
        peer, told = Peer(server), []
        for step in CONVERSATIONS[name]:
            if step is END:
                peer.socket.shutdown(socket.SHUT_WR)
            else:
                try:
                    peer.socket.sendall(step.replace(b"%(topic)s", b"golden-" + name.encode()))
                except OSError:
                    pass  # it is told what it is told
            told.append(plain(peer.collect()))
        told.append("closed" if peer.ended else "open")
        peer.socket.close()
        return told

    def compare(self, name):
        nsqd, node = (self.told[who, name].result() for who in ("nsqd", "node"))
        if name in DIFFERENCES:
            self.assertNotEqual(nsqd, node, "it does not differ any more: " + DIFFERENCES[name])
        else:
            self.assertEqual(nsqd, node)

    def test_another_clients_message(self):
        answers = []
        for server in self.servers.values():
            a, b = Peer(server), Peer(server)
            a.socket.sendall(MAGIC + body(b"PUB golden-own", b"x") + b"SUB golden-own c\nRDY 1\n")
            message = next(data for kind, data in a.collect() if kind == 2)
            b.socket.sendall(MAGIC + b"SUB golden-own c\n" + b"".join(
                command % message[10:26] for command in (b"FIN %s\n", b"REQ %s 0\n", b"TOUCH %s\n")))
            answers.append([(kind, ID.sub(b"ID", data)) for kind, data in b.collect()])
            # it stays whose it was
            a.socket.sendall(b"FIN " + message[10:26] + b"\nNOP\n")
            self.assertEqual(a.collect(), [])
            for peer in (a, b):
                peer.socket.close()
        self.assertEqual(answers[0], answers[1])
        self.assertIn(b"E_FIN_FAILED FIN ID failed client does not own message", dict((d, k) for k, d in answers[0]))

    def test_layers_of_compression(self):
        for layer, field in (("snappy", {}), ("deflate", {"deflate_level": 9})):
            heads = []
            for server in self.servers.values():
                peer = Peer(server)
                peer.socket.sendall(MAGIC + negotiate(**{layer: True}, **field))
                answer = plain(peer.collect())
                rest = peer.input
                if layer == "deflate":
                    rest = zlib.decompressobj(-15).decompress(rest)
                    self.assertEqual(rest, b"\0\0\0\6\0\0\0\0OK")
                else:
                    self.assertTrue(rest.startswith(b"\xff\6\0\0sNaPpY"))
                heads.append(answer)
                peer.socket.close()
            self.assertEqual(heads[0], heads[1])

    def test_a_closing_client_is_in_state_4(self):
        for server in self.servers.values():
            peer = Peer(server)
            peer.socket.sendall(MAGIC + b"SUB golden-state c\n")
            peer.collect()
            for command, state in ((b"NOP\n", 3), (b"CLS\n", 4)):
                peer.socket.sendall(command)
                peer.collect()
                stats = json.loads(server.get("/stats?format=json&include_clients=true&topic=golden-state"))
                self.assertEqual(stats["topics"][0]["channels"][0]["clients"][0]["state"], state)
            peer.socket.close()


def add(name):
    setattr(Golden, "test_" + name, lambda self: self.compare(name))


for name in CONVERSATIONS:
    add(name)


class Limits(unittest.TestCase):
    """Flags from small values on."""

    def test_limits(self):
        flags = ["--max-msg-size=10", "--max-body-size=100", "--max-rdy-count=3", "--max-channel-consumers=1", "--max-req-timeout=1s",
                 "--output-buffer-timeout=100ms", "--min-output-buffer-timeout=10ms", "--max-output-buffer-timeout=200ms",
                 "--max-output-buffer-size=128", "--msg-timeout=2s", "--max-msg-timeout=3s", "--max-heartbeat-interval=5s",
                 "--max-deflate-level=2", "--max-bytes-per-file=2048"]
        defer = body(b"DPUB limits %d", b"x")
        conversations = [
            MAGIC + negotiate(output_buffer_timeout=200),
            MAGIC + negotiate(output_buffer_timeout=201),
            MAGIC + negotiate(output_buffer_size=128),
            MAGIC + negotiate(output_buffer_size=129),
            MAGIC + negotiate(heartbeat_interval=5000),
            MAGIC + negotiate(heartbeat_interval=5001),
            MAGIC + negotiate(msg_timeout=3000),
            MAGIC + negotiate(msg_timeout=3001),
            MAGIC + negotiate(deflate_level=9),
            MAGIC + (defer % 1000) + (defer % 1001),
            MAGIC + b"SUB limits c\nRDY 1\nREQ 0123456789abcdef 1001\n",
            MAGIC + negotiate(output_buffer_timeout=10),
            MAGIC + negotiate(output_buffer_timeout=9),
            MAGIC + body(b"PUB limits", b"x" * 10) + body(b"PUB limits", b"x" * 11),
            MAGIC + body(b"MPUB limits", messages(*[b"x"] * 10)) + body(b"MPUB limits", b"x" * 101),
            MAGIC + b"SUB limits c\nRDY 3\nRDY 4\n",
            MAGIC + body(b"IDENTIFY", b" " * 101),
        ]
        answers = []
        for binary in (STOCK, os.environ["RINGMQ_BINARY"]):
            server = Server(*flags, binary=binary)
            try:
                told = []
                for wire in conversations:
                    peer = Peer(server)
                    peer.socket.sendall(wire)
                    told.append((plain(peer.collect()), peer.ended))
                    peer.socket.close()
                time.sleep(0.2)
                first, second = Peer(server), Peer(server)
                first.socket.sendall(MAGIC + b"SUB crowd c\n")
                told.append(plain(first.collect()))
                second.socket.sendall(MAGIC + b"SUB crowd c\n")
                told.append((plain(second.collect()), second.ended))
                for peer in (first, second):
                    peer.socket.close()
                answers.append(told)
            finally:
                server.close()
        # messages of a topic that was consumed before come in either order
        for nsqd, node in zip(*answers):
            self.assertEqual(nsqd, node)


if __name__ == "__main__":
    unittest.main()
