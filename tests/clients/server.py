"""A node as a process of its own for the client tests: own ports, own folder, nothing left behind.

The node is the binary that RINGMQ_BINARY names; its folder is made below RINGMQ_TEST_FOLDER (not a tmpfs: O_DIRECT).
"""

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request


class Ports:
    """Four ports in a row, claimed as tests/node/mod.rs has it: no other test's as long as this lives."""

    def __init__(self):
        while True:
            self.first = random.SystemRandom().randrange(10_000, 31_000, 4)
            self.claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self.claim.bind("\0ringmq-test-ports-%d" % self.first)
                for port in self:
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
                return
            except OSError as error:
                self.claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise

    def __iter__(self):
        return iter(range(self.first, self.first + 4))


PARTITION = """
[[topic.partition]]
number = 0
replicas = ["a", "b", "c"]
isr = %s
leader = "%s"
epoch = %d
"""


class Server:
    def __init__(self, *flags, binary=None):
        self.binary = binary or os.environ["RINGMQ_BINARY"]
        self.folder = tempfile.mkdtemp(prefix="clients-", dir=os.environ["RINGMQ_TEST_FOLDER"])
        self.flags = flags
        self.process = None
        if self.prepare():
            return
        for attempt in range(5):
            # A process that claims no ports may take one between the look and the start.
            self.claim_ports()
            try:
                self.start()
                return
            except RuntimeError:
                self.kill()
                if attempt == 4:
                    raise

    def prepare(self):
        """True: whoever made it starts it."""
        return False

    def claim_ports(self):
        self.ports = Ports()
        self.tcp_port, self.http_port, _, self.peer_port = self.ports

    @property
    def tcp(self):
        return "127.0.0.1:%d" % self.tcp_port

    def start(self):
        serve = [] if os.path.basename(self.binary) == "nsqd" else ["serve"]
        data = os.path.join(self.folder, "data")
        os.makedirs(data, exist_ok=True)
        addresses = ["--tcp-address=" + self.tcp, "--http-address=127.0.0.1:%d" % self.http_port]
        if serve:
            addresses.append("--native-address=127.0.0.1:0")
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *serve, "--data-path=" + data, *addresses, *self.flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/ping").startswith("OK"):
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the node does not start:\n" + self.log())

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            return log.read()[-4000:]

    def get(self, path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (self.http_port, path), timeout=10) as answer:
            return answer.read().decode()

    def post(self, path, body):
        url = "http://127.0.0.1:%d%s" % (self.http_port, path)
        with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=10) as answer:
            return answer.read().decode()

    def channels(self, topic):
        """Statistics of a topic's channels by name."""
        topics = json.loads(self.get("/stats?format=json&topic=" + topic))["topics"] or []
        return {c["channel_name"]: c for t in topics for c in t["channels"]}

    def kill(self):
        """SIGKILL."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """A clean stop, which must end with 0 within seconds."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=20)
        self.process = None
        if status != 0:
            raise RuntimeError("after SIGTERM the node ended with %d:\n%s" % (status, self.log()))

    def close(self):
        """A clean stop; then everything is removed."""
        try:
            if self.process:
                self.stop()
        finally:
            self.kill()
            self.ports.claim.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class Member(Server):
    """A node of a cluster: its ports are chosen and its id is made before it starts."""

    def prepare(self):
        self.claim_ports()
        self.file = os.path.join(self.folder, "cluster.toml")
        data = "--data-path=" + os.path.join(self.folder, "data")
        self.id = subprocess.run([self.binary, "node-id", data], check=True, capture_output=True, text=True).stdout.strip()
        self.flags += ("--cluster-file=" + self.file, "--peer-address=127.0.0.1:%d" % self.peer_port, "--shards=1")
        return True


class Cluster:
    """Three nodes and one topic of one partition, by a static file."""

    def __init__(self, topic, *flags):
        self.topic = topic
        self.members = {name: Member(*flags) for name in "abc"}
        self.version, self.epoch = 0, 0
        try:
            self.lead("a", "abc")
            for member in self.members.values():
                member.start()
            self.wait_leader("a")
        except BaseException:
            self.close()
            raise

    def lead(self, leader, isr):
        """Another version of the file for all, by SIGHUP for those that run."""
        self.version, self.epoch = self.version + 1, self.epoch + 1
        text = 'cluster_id = "%032x"\nversion = %d\n' % (0xc1, self.version)
        for name, member in self.members.items():
            text += '[[node]]\nname = "%s"\nid = "%s"\npeer_address = "127.0.0.1:%d"\n' % (name, member.id, member.peer_port)
        text += '[[topic]]\nname = "%s"\nid = "%032x"\npartitions = 1\n' % (self.topic, 0x70)
        text += PARTITION % (json.dumps(list(isr)), leader, self.epoch)
        for member in self.members.values():
            with open(member.file, "w") as file:
                file.write(text)
            if member.process:
                member.process.send_signal(signal.SIGHUP)

    def wait_leader(self, name):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            topics = json.loads(self.members[name].get("/stats?format=json&topic=" + self.topic))["topics"] or []
            if any(r["role"] == "leader" for t in topics for r in t.get("replication") or []):
                return
            time.sleep(0.05)
        raise RuntimeError("%s does not lead:\n%s" % (name, self.members[name].log()))

    def addresses(self):
        return [member.tcp for member in self.members.values()]

    def close(self):
        errors = []
        for member in self.members.values():
            try:
                member.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Etcd:
    """A member of its own, gone with its data."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="etcd-", dir=os.environ["RINGMQ_TEST_FOLDER"])
        self.ports = Ports()
        client, peer = list(self.ports)[:2]
        self.url, peers = "http://127.0.0.1:%d" % client, "http://127.0.0.1:%d" % peer
        flags = ["--data-dir=" + os.path.join(self.folder, "data"), "--listen-client-urls=" + self.url,
                 "--advertise-client-urls=" + self.url, "--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers,
                 "--initial-cluster=default=" + peers, "--heartbeat-interval=10", "--election-timeout=100"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self.process = subprocess.Popen(["etcd", *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.ports.claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class EtcdMember(Server):
    """A node of a cluster that an etcd decides; it answers lookups."""

    def __init__(self, etcd, name):
        self.lookup_ports = Ports()
        self.lookup_port = next(iter(self.lookup_ports))
        self.cluster_flags = ["--etcd-endpoints=" + etcd.url, "--node-name=" + name, "--broadcast-address=127.0.0.1",
                              "--lookupd-http-address=127.0.0.1:%d" % self.lookup_port]
        super().__init__("--shards=1", "--lease-ttl=3s", "--lease-ttl-floor=1s")

    def prepare(self):
        self.claim_ports()
        self.flags += (*self.cluster_flags, "--peer-address=127.0.0.1:%d" % self.peer_port)
        return True

    def leads(self, topic):
        topics = json.loads(self.get("/stats?format=json&topic=" + topic))["topics"] or []
        return any(replica["role"] == "leader" for found in topics for replica in found.get("replication") or [])

    def close(self):
        self.lookup_ports.claim.close()
        super().close()


class EtcdCluster:
    """Three nodes and an etcd."""

    def __init__(self):
        self.etcd, self.members = Etcd(), []
        try:
            self.members += [EtcdMember(self.etcd, name) for name in "abc"]
            for member in self.members:
                member.start()
        except BaseException:
            self.close()
            raise

    def lead_topic(self, topic):
        """Creates a topic with one partition on all nodes; the node that leads it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                self.members[0].post("/topic/create?topic=%s&partition_num=1&replicator=3" % topic, b"")
                leaders = [member for member in self.members if member.leads(topic)]
                if leaders:
                    return leaders[0]
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError("nobody leads %s:\n%s" % (topic, self.members[0].log()))

    @staticmethod
    def lookup(member):
        return "http://127.0.0.1:%d" % member.lookup_port

    def close(self):
        """At once: that a stop is clean is shown elsewhere, and the last of three has nobody left to replicate to."""
        for member in self.members:
            member.kill()
            member.close()
        self.etcd.close()
