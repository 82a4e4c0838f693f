#!/usr/bin/env python3
"""Replication: three nodes beside one, in one run on one machine, all nodes and the load on the same cores.

    benches/replication.py                     # all three bars
    benches/replication.py put --rounds=7      # one of: put, mput, catchup
    benches/replication.py put mput --etcd     # the three have an etcd, with one member on the same cores, instead of a cluster file
    benches/replication.py --folder=/data      # on another disk
    benches/replication.py catchup --one-cpu   # leader and follower share a CPU
    benches/replication.py catchup --one-disk  # and, or, a disk

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). All nodes have one shard. A round measures the
node alone and the leader of the three, in changing order; the figures are medians over the rounds. The three have every
message synced before it is acknowledged (isr of three, min_isr 2).

| bar     | work                                              | must be |
|---------|---------------------------------------------------|---------|
| put     | PUB 100 B, 1 connection, closed loop              | p50 <= 2.5 x that of one node |
| mput    | MPUB 200 x 1 KiB, 4 connections, closed loop      | rate >= 1/4 of that of one node |
| catchup | a follower was away for --backlog MiB             | its rate >= half of the lesser of the disk's sequential rate and that of loopback on one core |

catchup gives leader and follower a CPU each (the first and the last) and a disk each, as nodes have: the leader's data lie in
--leader-folder, in memory, since there is one disk. Its rate is held against that of the follower's disk. On one disk for both,
half of its rate is all of it: each byte is read and written.

Exit code: 0 every bar held, 1 one was missed, 2 it could not be measured.
"""
import argparse, json, mmap, os, shutil, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.request

from bars import fail, free_port, run_load
from clusters import Etcd, get, wait

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
TOPIC = "orders"


class Node:
    def __init__(self, args, name, folder):
        self.args, self.name = args, name
        self.data = os.path.join(args.apart.get(name, folder), name)
        self.port, self.http, self.native, self.peer = (free_port() for _ in range(4))
        self.id = self.run("node-id", f"--data-path={self.data}")
        self.log = os.path.join(folder, f"{name}.log")
        self.process = None

    def run(self, *words):
        done = subprocess.run([self.args.ringmq, *words], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"ringmq {' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return done.stdout.strip()

    def start(self, *flags):
        at = [f"--{key}-address=127.0.0.1:{port}" for key, port in (("tcp", self.port), ("http", self.http), ("native", self.native))]
        with open(self.log, "a") as log:
            command = [self.args.ringmq, "serve", f"--data-path={self.data}", "--shards=1", *at, *flags]
            cpus = sorted(os.sched_getaffinity(0))
            mine = set(cpus)
            if self.args.is_spread:
                mine = {cpus[-1] if self.name in ("b", "c") else cpus[0]}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=lambda: os.sched_setaffinity(0, mine))
        end = time.time() + 30
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if time.time() > end or self.process.poll() is not None:
                    fail(f"{' '.join(command)} does not start: {open(self.log).read()[-2000:]}")
                time.sleep(0.02)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def load(self, *options):
        result = self.log + ".json"
        command = [self.args.ringmq, "load", f"--address=127.0.0.1:{self.port}", f"--topic={TOPIC}", "--mode=produce", "--quiet",
                   f"--server-pid={self.process.pid}", f"--json={result}", *options]
        return run_load(command, result)

    def replica(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/stats?format=json&topic={TOPIC}", timeout=5) as answer:
                return json.load(answer)["topics"][0]["replication"][0]
        except (OSError, LookupError, TypeError):
            return {"role": "unknown"}

    def wait_role(self, role):
        end = time.time() + 30
        while self.replica()["role"] != role:
            if time.time() > end:
                fail(f"{self.name} is not {role}: {open(self.log).read()[-2000:]}")
            time.sleep(0.05)


class Cluster:
    def __init__(self, args, folder):
        self.args, self.version = args, 0
        self.file = os.path.join(folder, "cluster.toml")
        self.nodes = [Node(args, name, folder) for name in "abc"]
        self.write(["a", "b", "c"])
        for node in self.nodes:
            self.start(node)
        self.nodes[0].wait_role("leader")

    def start(self, node):
        node.start(f"--cluster-file={self.file}", f"--peer-address=127.0.0.1:{node.peer}", *self.args.serve)

    def write(self, isr):
        self.version += 1
        text = f'cluster_id = "{"c" * 32}"\nversion = {self.version}\n'
        for n in self.nodes:
            text += f'[[node]]\nname = "{n.name}"\nid = "{n.id}"\npeer_address = "127.0.0.1:{n.peer}"\n'
        text += f'[[topic]]\nname = "{TOPIC}"\nid = "{"a" * 32}"\npartitions = 1\nmin_isr = 2\n'
        text += f'[[topic.partition]]\nnumber = 0\nreplicas = ["a", "b", "c"]\nisr = {json.dumps(isr)}\nleader = "a"\nepoch = 1\n'
        with open(self.file, "w") as file:
            file.write(text)
        for n in self.nodes:
            if n.process:
                n.process.send_signal(signal.SIGHUP)

    def stop(self):
        for node in self.nodes:
            node.stop()


class WithEtcd:
    """The same by an etcd; the node that leads comes first."""

    def __init__(self, args, folder):
        self.etcd = Etcd(folder)
        os.sched_setaffinity(self.etcd.process.pid, {min(os.sched_getaffinity(0))})
        self.nodes = [Node(args, name, folder) for name in "abc"]
        for node in self.nodes:
            node.start(f"--etcd-endpoints={self.etcd.url}", f"--node-name={node.name}", "--broadcast-address=127.0.0.1",
                       f"--peer-address=127.0.0.1:{node.peer}", *args.serve)
        # A topic gets the nodes that are there.
        for node in self.nodes:
            wait(lambda: get(f"http://127.0.0.1:{node.http}/ping") == "OK", lambda: f"{node.name} is not ready")
        create = f"http://127.0.0.1:{self.nodes[0].http}/topic/create?topic={TOPIC}&partition_num=1&replicator=3"
        wait(lambda: get(create, b"") is not None, lambda: f"{TOPIC} is not created")
        wait(lambda: any(node.replica()["role"] == "leader" for node in self.nodes), lambda: "nobody leads")
        self.nodes.sort(key=lambda node: node.replica()["role"] != "leader")
        wait(lambda: len(self.nodes[0].replica().get("isr", [])) == 3, lambda: f"the isr is {self.nodes[0].replica()}")

    def stop(self):
        for node in self.nodes:
            node.stop()
        self.etcd.stop()


class Alone:
    def __init__(self, args, folder):
        self.nodes = [Node(args, "alone", folder)]
        self.nodes[0].start(*args.serve)

    def stop(self):
        self.nodes[0].stop()


def both(args, measure):
    """Medians of what `measure` finds of a node alone, and of the leader of three, which run all the time."""
    found = {"alone": [], "three": []}
    folder = tempfile.mkdtemp(prefix="replication-", dir=args.folder)
    try:
        kinds = {"alone": Alone(args, os.path.join(folder)), "three": (WithEtcd if args.etcd else Cluster)(args, folder)}
        try:
            for number in range(args.rounds + 1):
                names = ["alone", "three"] if number % 2 else ["three", "alone"]
                for name in names:
                    value = measure(kinds[name].nodes[0])
                    if number:  # the first warms the files up
                        found[name].append(value)
        finally:
            for kind in kinds.values():
                kind.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratios = [b / a for a, b in zip(found["alone"], found["three"])]
    return statistics.median(found["alone"]), statistics.median(found["three"]), statistics.median(ratios), ratios


def verdict(name, text, holds):
    print(f"{name:8} {text} {'pass' if holds else 'MISSED'}", flush=True)
    return holds


def put(args):
    options = ["--size=100", "--connections=1", f"--duration={args.seconds}s", "--warm-up=300ms"]
    p50 = lambda node: node.load(*options)["publish_latency"]["p50_us"]
    alone, three, ratio, ratios = both(args, p50)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return verdict("put", f"p50 {three:.0f} us, alone {alone:.0f} us, ratio {ratio:.2f} ({spread}), bar <= 2.5", ratio <= 2.5)


def mput(args):
    options = ["--size=1KiB", "--batch=200", "--connections=4", f"--duration={args.seconds}s", "--warm-up=300ms"]
    rate = lambda node: node.load(*options)["published"]["messages_per_second"]
    alone, three, ratio, ratios = both(args, rate)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return verdict("mput", f"{three:,.0f} /s, alone {alone:,.0f} /s, ratio {ratio:.2f} ({spread}), bar >= 0.25", ratio >= 0.25)


def disk_rate(args, also=lambda: None):
    """Bytes per second of 1 MiB writes on new space with O_DIRECT, one fdatasync at the end; `also` waits for what goes on beside."""
    path = os.path.join(args.folder, f"replication-raw-{os.getpid()}")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        block = mmap.mmap(-1, MIB)
        block.write(os.urandom(MIB))
        began = time.time()
        for n in range(args.backlog):
            os.pwrite(file, block, n * MIB)
        os.fdatasync(file)
        also()
        return args.backlog * MIB / (time.time() - began)
    finally:
        os.close(file)
        os.unlink(path)


def shared_disk_rate(args):
    """The same while another process reads as much: what a leader and a follower on one disk have at most, each."""
    path = os.path.join(args.folder, f"replication-read-{os.getpid()}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        block = mmap.mmap(-1, MIB)
        for n in range(args.backlog):
            os.pwrite(file, block, n * MIB)
        os.fdatasync(file)
        child = os.fork()
        if child == 0:
            for n in range(args.backlog):
                os.preadv(file, [block], n * MIB)
            os._exit(0)
        return disk_rate(args, lambda: os.waitpid(child, 0))
    finally:
        os.close(file)
        os.unlink(path)


def loopback_rate():
    """Bytes per second that one core sends to itself over loopback TCP."""
    allowed = os.sched_getaffinity(0)
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    os.sched_setaffinity(0, {min(allowed)})
    if child == 0:
        wire = socket.create_connection(listener.getsockname())
        block = bytes(MIB)
        for _ in range(1024):
            wire.sendall(block)
        os._exit(0)
    wire, _ = listener.accept()
    buffer, total, began = bytearray(MIB), 0, time.time()
    while got := wire.recv_into(buffer):
        total += got
    seconds = time.time() - began
    os.waitpid(child, 0)
    os.sched_setaffinity(0, allowed)
    return total / seconds


def catchup(args):
    folder = tempfile.mkdtemp(prefix="replication-", dir=args.folder)
    rates, args.is_spread = [], not args.one_cpu
    if not args.one_disk:
        args.apart["a"] = tempfile.mkdtemp(prefix="replication-", dir=args.leader_folder)
    try:
        cluster = Cluster(args, folder)
        try:
            leader, away = cluster.nodes[0], cluster.nodes[2]
            for _ in range(min(args.rounds, 3)):
                away.stop()
                cluster.write(["a", "b"])
                time.sleep(0.5)
                before = leader.replica()["end"]
                leader.load("--size=1KiB", "--batch=200", "--connections=4", f"--messages={args.backlog * 1024}", "--duration=600s", "--warm-up=0s")
                time.sleep(1)
                backlog = leader.replica()["end"] - before
                cluster.start(away)
                began, first = None, None
                while True:
                    follower = next((f for f in leader.replica().get("followers", []) if f["node"] == "c"), None)
                    if follower and follower["acked"] > before and began is None:
                        began, first = time.time(), follower["acked"]
                    if follower and follower["lag"] == 0:
                        break
                    time.sleep(0.005)
                if began is None:
                    fail("the backlog is too short: --backlog=MIB")
                rates.append((leader.replica()["end"] - first) / max(time.time() - began, 1e-3))
                cluster.write(["a", "b", "c"])
                time.sleep(1)
                print(f"catchup  round: {backlog / MIB:.0f} MiB at {rates[-1] / 1e6:.0f} MB/s", flush=True)
        finally:
            cluster.stop()
        disk, shared, loop = disk_rate(args), shared_disk_rate(args), loopback_rate()
    finally:
        for each in [folder, *args.apart.values()]:
            shutil.rmtree(each, ignore_errors=True)
        args.apart, args.is_spread = {}, False
    rate = statistics.median(rates)
    ratio = rate / min(disk, loop)
    raw = f"disk {disk / 1e6:.0f} (read and written at once {shared / 1e6:.0f}), loopback {loop / 1e6:.0f}"
    how = f"{'one CPU' if args.one_cpu else 'a CPU each'}, {'one disk' if args.one_disk else 'a disk each'}"
    text = f"{how}: {rate / 1e6:.0f} MB/s; {raw} MB/s, ratio {ratio:.2f}, bar >= 0.5"
    return verdict("catchup", text, ratio >= 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bars", nargs="*", default=[], metavar="put|mput|catchup")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--backlog", type=int, default=512, help="MiB")
    parser.add_argument("--folder", default=os.path.join(ROOT, "target"))
    parser.add_argument("--etcd", action="store_true", help="put, mput: an etcd instead of a cluster file")
    parser.add_argument("--one-cpu", action="store_true", help="catchup: leader and follower on the first CPU")
    parser.add_argument("--one-disk", action="store_true", help="catchup: all data in --folder")
    parser.add_argument("--leader-folder", default="/dev/shm", help="catchup: the leader's data, on another disk or in memory")
    parser.add_argument("--serve", action="append", default=[], help="a flag for every node")
    args = parser.parse_args()
    args.apart, args.is_spread = {}, False  # folders of nodes with a disk of their own; a CPU each
    args.ringmq = os.environ.get("RINGMQ") or os.path.join(ROOT, "target/release/ringmq")
    bars = {"put": put, "mput": mput, "catchup": catchup}
    for name in args.bars:
        if name not in bars:
            fail(f"there is no {name}: put, mput or catchup")
    if args.etcd and "catchup" in (args.bars or bars):
        fail("--etcd is for put and mput: name these")
    os.makedirs(args.folder, exist_ok=True)
    # Not stopped at the first that is missed.
    held = [bars[name](args) for name in (args.bars or bars)]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
