"""Three nodes whose etcd says who leads what, as processes on this machine, for the benches."""
import json, os, random, shutil, signal, socket, subprocess, time, urllib.error, urllib.request

from bars import fail

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START_LIMIT = 60
taken = set()


def arguments(parser):
    """Those of every bench of a cluster, read together with the parser's own."""
    parser.add_argument("--folder", help="where the data are")
    parser.add_argument("--ringmq", default=os.environ.get("RINGMQ", os.path.join(ROOT, "target/release/ringmq")))
    parser.add_argument("--serve", action="append", default=[], metavar="FLAG", help="one more flag of the nodes")
    return parser.parse_args()


def free_port():
    """A port outside of the range from which the kernel takes those of outgoing connections: nobody takes it while a node is down."""
    while True:
        port = random.randrange(10_000, 31_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in taken:
            taken.add(port)
            return port


class Etcd:
    """One member, gone with its data at the end."""

    def __init__(self, folder):
        if not shutil.which("etcd"):
            fail("etcd is not there: apt-get install etcd-server")
        self.port, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        data, self.log = os.path.join(folder, "etcd"), os.path.join(folder, "etcd.log")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        flags = [f"--data-dir={data}", f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
                 f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                 f"--initial-cluster=default=http://127.0.0.1:{peer}", "--logger=zap", "--log-level=warn"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(["etcd", *flags], stdout=log, stderr=log, env=environment)
        wait(lambda: "true" in (get(f"{self.url}/health") or ""), lambda: f"etcd does not start: {tail(self.log)}")

    def metrics(self):
        """Requests served by method, and keys."""
        found = {"requests": {}, "keys": 0, "txns": 0, "watchers": 0}
        for line in (get(f"{self.url}/metrics") or "").splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("grpc_server_handled_total"):
                method = name.split('grpc_method="')[1].split('"')[0]
                found["requests"][method] = found["requests"].get(method, 0) + float(value)
            elif name == "etcd_debugging_mvcc_keys_total":
                found["keys"] = int(float(value))
        return found

    def stop(self):
        self.process.kill()
        self.process.wait()


class Node:
    def __init__(self, ringmq, etcd, name, folder, flags):
        self.name, self.data, self.log = name, os.path.join(folder, name), os.path.join(folder, f"{name}.log")
        self.port, self.http, self.native, self.peer = (free_port() for _ in range(4))
        at = [f"--{key}-address=127.0.0.1:{port}" for key, port in
              (("tcp", self.port), ("http", self.http), ("native", self.native), ("peer", self.peer))]
        self.command = [ringmq, "serve", f"--data-path={self.data}", f"--etcd-endpoints={etcd.url}", f"--node-name={name}",
                        "--broadcast-address=127.0.0.1", *at, *flags]
        self.process = None

    def spawn(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def wait_ready(self):
        def is_ready():
            if self.process.poll() is not None:
                fail(f"{self.name} ended: {tail(self.log)}")
            return get(f"http://127.0.0.1:{self.http}/ping") == "OK"
        wait(is_ready, lambda: f"{self.name} is not ready: {tail(self.log)}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def signal(self, number):
        self.process.send_signal(number)

    def replicas(self, topic):
        """By partition, as /stats shows them; none while the node does not answer."""
        try:
            topics = json.loads(get(f"http://127.0.0.1:{self.http}/stats?format=json&topic={topic}") or "{}").get("topics") or []
            return {replica["partition"]: replica for replica in topics[0]["replication"]} if topics else {}
        except (KeyError, json.JSONDecodeError):
            return {}

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


class Cluster:
    def __init__(self, ringmq, folder, flags, count=3):
        self.etcd = Etcd(folder)
        self.nodes = [Node(ringmq, self.etcd, name, folder, flags) for name in "abcde"[:count]]
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_ready()

    def create(self, topic, partitions, replicas=3):
        url = f"http://127.0.0.1:{self.nodes[0].http}/topic/create?topic={topic}&partition_num={partitions}&replicator={replicas}"
        wait(lambda: get(url, b"") is not None, lambda: f"{topic} is not created: {tail(self.nodes[0].log)}")

    def leaders(self, topic):
        """The node that leads each partition, and how many replicas are in sync."""
        found = {}
        for node in self.nodes:
            if node.process:
                for partition, replica in node.replicas(topic).items():
                    if replica["role"] == "leader":
                        found[partition] = (node, len(replica["isr"]))
        return found

    def wait_in_sync(self, topic, partitions, replicas=3, limit=120):
        def is_whole():
            leaders = self.leaders(topic)
            return len(leaders) == partitions and all(isr == replicas for _, isr in leaders.values())
        wait(is_whole, lambda: f"{topic} is not in sync: {[tail(node.log, 800) for node in self.nodes]}", limit)

    def stop(self):
        for node in self.nodes:
            if node.process:
                node.signal(signal.SIGCONT)
                node.kill()
        self.etcd.stop()


def get(url, body=None, timeout=10):
    """The answer's text; None when there is none, or an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=timeout) as answer:
            return answer.read().decode()
    except (OSError, urllib.error.URLError, ValueError):
        return None


def wait(condition, what, limit=START_LIMIT, pause=0.05):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            fail(f"not within {limit} s: {what()}")
        time.sleep(pause)


def tail(path, size=2000):
    with open(path, errors="replace") as file:
        return file.read()[-size:]


def publish_once(connection, topic, partition, body):
    """One PUB to a partition over an NSQ connection; None when it was acknowledged, the error's text otherwise."""
    connection.sendall(f"PUB {topic} {partition}\n".encode() + len(body).to_bytes(4, "big") + body)
    while True:
        head = receive(connection, 8)
        size, kind = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        text = receive(connection, size - 4)
        if text == b"_heartbeat_":
            connection.sendall(b"NOP\n")
            continue
        return None if kind == 0 and text == b"OK" else text.decode(errors="replace")


def receive(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError("closed")
        found += piece
    return found


def connect(port, timeout):
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.settimeout(timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"  V2")
    return connection
