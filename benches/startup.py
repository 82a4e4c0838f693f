#!/usr/bin/env python3
"""Startup time: from exec to the first acknowledged publish, of a RingMQ node beside nsqd, in one run on one machine.

    NSQD=/path/to/nsqd benches/startup.py                  # 20 starts of each kind
    NSQD=... benches/startup.py --rounds=5 --shards=1 --before=0

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`); without NSQD the node is measured alone. Both run
with their defaults (--shards=N changes that of the node), each on one data path below --folder (which should be on the disk that
is meant), removed at the end. At first --before MiB are published and consumed, so that the journals were used once around. Then,
in each round and for each server: --between messages of 100 B are published and acknowledged, and the server is stopped (SIGTERM)
or killed (SIGKILL) right then; it starts again, and the clock runs from exec until one PUB is acknowledged. The two servers take
turns, the first of a round changes; the figures are medians over the rounds.

`redone` is what the node's log says of the start: bytes that were redone from the journals.
"""
import argparse, os, re, shutil, signal, socket, statistics, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = {"clean stop": signal.SIGTERM, "kill -9": signal.SIGKILL}


def fail(text):
    print(f"startup.py: {text}", file=sys.stderr)
    sys.exit(2)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Client:
    """A blocking NSQ client."""

    def __init__(self, port):
        self.wire = socket.create_connection(("127.0.0.1", port), 5)
        self.wire.settimeout(30)
        self.wire.sendall(b"  V2")

    def read(self, size):
        got = b""
        while len(got) < size:
            more = self.wire.recv(size - len(got))
            if not more:
                raise OSError("closed")
            got += more
        return got

    def frame(self):
        while True:
            size, kind = struct.unpack(">ii", self.read(8))
            body = self.read(size - 4)
            if body != b"_heartbeat_":
                return kind, body
            self.wire.sendall(b"NOP\n")

    def ok(self, command):
        self.wire.sendall(command)
        kind, body = self.frame()
        if (kind, body) != (0, b"OK"):
            fail(f"{command[:20]!r} was answered {body!r}")

    def publish(self, messages, size):
        """In MPUBs of 100 KiB or so."""
        count = max(1, min(messages, 100_000 // size))
        body = struct.pack(">i", count) + (struct.pack(">i", size) + b"x" * size) * count
        command = b"MPUB load\n" + struct.pack(">i", len(body)) + body
        for _ in range(-(-messages // count)):
            self.ok(command)

    def drain(self, messages):
        self.ok(b"SUB load load\n")
        self.wire.sendall(b"RDY 1000\n")
        for _ in range(messages):
            kind, body = self.frame()
            if kind != 2:
                fail(f"a message was expected, not {body[:100]!r}")
            self.wire.sendall(b"FIN " + body[10:26] + b"\n")
        self.wire.sendall(b"CLS\n")
        while self.frame()[1] != b"CLOSE_WAIT":
            pass

    def close(self):
        self.wire.close()


class Server:
    def __init__(self, kind, args):
        self.kind = kind
        self.folder = tempfile.mkdtemp(prefix=f"startup-{kind}-", dir=args.folder)
        self.port, native = free_port(), free_port()
        common = [f"--tcp-address=127.0.0.1:{self.port}", f"--http-address=127.0.0.1:{free_port()}", f"--data-path={self.folder}"]
        own = [f"--native-address=127.0.0.1:{native}", *([f"--shards={args.shards}"] if args.shards else [])]
        self.command = [args.nsqd, *common] if kind == "nsqd" else [args.ringmq, "serve", *common, *own]
        self.log = os.path.join(self.folder, "log")
        self.process = None

    def start(self):
        """Milliseconds until a PUB is acknowledged."""
        with open(self.log, "w") as log:
            begun = time.perf_counter()
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while True:
            try:
                client = Client(self.port)
                client.ok(b"PUB load\n" + struct.pack(">i", 1) + b"x")
                took = (time.perf_counter() - begun) * 1000
                client.close()
                return took
            except OSError:
                if self.process.poll() is not None or time.perf_counter() - begun > 60:
                    fail(f"{' '.join(self.command)} does not start: {open(self.log).read()[-2000:]}")
                time.sleep(0.0005)

    def said(self, pattern):
        found = re.findall(pattern, open(self.log).read())
        return int(found[-1]) if found else 0

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(60)

    def use(self, messages, size):
        client = Client(self.port)
        client.publish(messages, size)
        return client


def measured(servers, args):
    times = {(server.kind, case): [] for server in servers for case in CASES}
    redone = {case: [] for case in CASES}
    for round in range(args.rounds):
        for case, how in CASES.items():
            for server in servers if round % 2 == 0 else servers[::-1]:
                client = server.use(args.between, 100) if args.between else None
                server.end(how)
                if client:
                    client.close()
                times[server.kind, case].append(server.start())
                if server.kind == "ringmq":
                    redone[case].append(server.said(r"journals replayed.* bytes=(\d+)"))
    return times, redone


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shards", type=int, default=0, help="of the node; 0: its default")
    parser.add_argument("--before", type=int, default=300, help="MiB that are published and consumed at first")
    parser.add_argument("--between", type=int, default=10_000, help="messages of 100 B before each end")
    parser.add_argument("--folder", default=os.path.join(ROOT, "target"), help="where the data paths are")
    args = parser.parse_args()
    args.ringmq = os.environ.get("RINGMQ", os.path.join(ROOT, "target/release/ringmq"))
    args.nsqd = os.environ.get("NSQD")
    os.makedirs(args.folder, exist_ok=True)
    servers = [Server(kind, args) for kind in ("ringmq", "nsqd") if kind == "ringmq" or args.nsqd]
    try:
        for server in servers:
            server.start()
            if args.before:
                count = args.before * 16
                server.use(count, 64 * 1024).close()
                client = Client(server.port)
                client.drain(count)
                client.close()
        times, redone = measured(servers, args)
    finally:
        for server in servers:
            if server.process and server.process.poll() is None:
                server.end(signal.SIGKILL)
            shutil.rmtree(server.folder, ignore_errors=True)
    print(f"{args.rounds} starts of each; {args.between} messages of 100 B before each end; {args.before} MiB at first")
    print("| after | node: ms to the first acknowledged PUB | redone | nsqd |")
    print("|---|---|---|---|")
    for case in CASES:
        shown = {s.kind: show(times[s.kind, case]) for s in servers}
        mib = statistics.median(redone[case]) / (1 << 20)
        print(f"| {case} | {shown['ringmq']} | {mib:.1f} MiB | {shown.get('nsqd', '')} |")


def show(times):
    return f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"


if __name__ == "__main__":
    main()
