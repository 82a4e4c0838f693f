#!/usr/bin/env python3
"""What messages that are put off cost the others: one consumer finishes 200,000 messages, or requeues every second one for 60 s and
finishes the rest, on a RingMQ node beside nsqd, in one run on one machine.

    NSQD=/path/to/nsqd benches/gaps.py             # 5 rounds
    NSQD=... benches/gaps.py --rounds=3 --messages=100000

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`); without NSQD the node is measured alone. In each round each
server starts on an empty data path below --folder, with one shard and else with its defaults. For each case, 100 B messages are published by
MPUB of 1,000 on a topic with a channel, and the clock runs from RDY 2500 until the last one was answered. This client is Python on one CPU,
and is what bounds the node's rate. `growth` is resident memory over that time.
"""
import argparse, os, shutil, socket, statistics, struct, subprocess, sys, tempfile, time, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = {"all finished": False, "half put off": True}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Client:
    def __init__(self, port):
        self.wire = socket.create_connection(("127.0.0.1", port), 5)
        self.wire.settimeout(30)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire.sendall(b"  V2")
        self.unread = bytearray()

    def frames(self):
        """The frames of one receive: (kind, payload) each."""
        data = self.wire.recv(1 << 20)
        if not data:
            sys.exit("gaps.py: the server closed the connection")
        self.unread += data
        found, at, unread = [], 0, self.unread
        while len(unread) - at >= 8:
            size, kind = struct.unpack_from(">ii", unread, at)
            if len(unread) - at < 4 + size:
                break
            found.append((kind, bytes(unread[at + 8 : at + 4 + size])))
            at += 4 + size
        del unread[:at]
        return found

    def ok(self, command):
        self.wire.sendall(command)
        while not (found := self.frames()):
            pass
        if found != [(0, b"OK")]:
            sys.exit(f"gaps.py: OK was expected: {found}")


def publish(client, topic, count):
    for first in range(0, count, 1000):
        bodies = [b"%0100d" % n for n in range(first, first + 1000)]
        inner = struct.pack(">i", 1000) + b"".join(struct.pack(">i", 100) + body for body in bodies)
        client.ok(b"MPUB %s\n" % topic + struct.pack(">i", len(inner)) + inner)


def consume(client, count, half):
    """Seconds."""
    begun, got = time.monotonic(), 0
    client.wire.sendall(b"RDY 2500\n")
    while got < count:
        answers = []
        for kind, payload in client.frames():
            if kind == 2:
                put_off = int(payload[26:]) % 2 == 0 and half
                answers.append(b"REQ %s 60000\n" % payload[10:26] if put_off else b"FIN %s\n" % payload[10:26])
                got += 1
            elif payload == b"_heartbeat_":
                answers.append(b"NOP\n")
            else:
                sys.exit(f"gaps.py: unexpected: {kind} {payload[:80]}")
        client.wire.sendall(b"".join(answers))
    return time.monotonic() - begun


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def measure(command, options):
    """Rate and growth of each case, of one server on an empty data path."""
    tcp, http, native = free_port(), free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="gaps-", dir=options.folder)
    flags = [f"-data-path={folder}", f"-tcp-address=127.0.0.1:{tcp}", f"-http-address=127.0.0.1:{http}"]
    if "serve" in command:
        flags = ["-" + flag for flag in flags] + ["--shards=1", f"--native-address=127.0.0.1:{native}"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command + flags, stdout=log, stderr=log)
        try:
            for _ in range(100):
                try:
                    Client(tcp)
                    break
                except OSError:
                    time.sleep(0.1)
            found = {}
            for case, half in CASES.items():
                topic = "half" if half else "all"
                for path in (f"topic/create?topic={topic}", f"channel/create?topic={topic}&channel=ch"):
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/{path}", data=b"").read()
                publish(Client(tcp), topic.encode(), options.messages)
                time.sleep(1)
                client, before = Client(tcp), resident(server.pid)
                client.ok(b"SUB %s ch\n" % topic.encode())
                seconds = consume(client, options.messages, half)
                found[case] = (options.messages / seconds, resident(server.pid) - before)
            return found
        finally:
            server.kill()
            server.wait()
            shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="a multiple of 1,000")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    servers = {"node": [os.environ.get("RINGMQ", os.path.join(ROOT, "target/release/ringmq")), "serve"]}
    if "NSQD" in os.environ:
        servers["nsqd"] = [os.environ["NSQD"]]
    found = {name: [] for name in servers}
    for nth in range(options.rounds):
        for name in list(servers) if nth % 2 == 0 else reversed(list(servers)):
            found[name].append(measure(servers[name], options))
    for name, rounds in found.items():
        for case in CASES:
            rates, grown = zip(*(r[case] for r in rounds))
            print(
                f"{name:5} {case}: {statistics.median(rates):9,.0f} handed out/s ({min(rates):,.0f} to {max(rates):,.0f}), "
                f"growth {statistics.median(grown) / 2**20:.1f} MiB"
            )
        ratios = [r["half put off"][0] / r["all finished"][0] for r in rounds]
        print(f"{name:5} half put off / all finished: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


main()
