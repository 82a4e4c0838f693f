"""What benches in Python share: a server on an empty data path, the node or nsqd, and a small blocking client of the NSQ protocol."""
import contextlib, os, shutil, socket, struct, subprocess, sys, tempfile, time, types, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = os.path.basename(sys.argv[0])


def commands():
    """The servers to measure: the node (RINGMQ, or else target/release/ringmq), and nsqd if NSQD names it."""
    servers = {"node": [os.environ.get("RINGMQ", os.path.join(ROOT, "target/release/ringmq")), "serve"]}
    if "NSQD" in os.environ:
        servers["nsqd"] = [os.environ["NSQD"]]
    return servers


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
            sys.exit(f"{NAME}: the server closed the connection")
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
            sys.exit(f"{NAME}: OK was expected: {found}")


def publish(client, topic, count):
    for first in range(0, count, 1000):
        bodies = [b"%0100d" % n for n in range(first, first + 1000)]
        inner = struct.pack(">i", 1000) + b"".join(struct.pack(">i", 100) + body for body in bodies)
        client.ok(b"MPUB %s\n" % topic + struct.pack(">i", len(inner)) + inner)


def ask(http, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{http}/{path}", data=b"").read()


def create(http, topic, channel="ch"):
    ask(http, f"topic/create?topic={topic}")
    ask(http, f"channel/create?topic={topic}&channel={channel}")


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def peak(pid):
    """The most memory that was resident, in bytes."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


@contextlib.contextmanager
def started(command, parent, *more):
    """A server on an empty data path below `parent`, killed at the end: its ports and its process id."""
    tcp, http, native = free_port(), free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="bench-", dir=parent)
    flags = [f"-data-path={folder}", f"-tcp-address=127.0.0.1:{tcp}", f"-http-address=127.0.0.1:{http}"]
    if "serve" in command:
        flags = ["-" + flag for flag in flags] + ["--shards=1", f"--native-address=127.0.0.1:{native}"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command + flags + list(more), stdout=log, stderr=log)
        try:
            for _ in range(100):
                try:
                    Client(tcp)
                    break
                except OSError:
                    time.sleep(0.1)
            yield types.SimpleNamespace(tcp=tcp, http=http, pid=server.pid)
        finally:
            server.kill()
            server.wait()
            shutil.rmtree(folder)
