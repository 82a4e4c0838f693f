#!/usr/bin/env python3
"""Many partitions on three nodes and an etcd, on one machine: creation, rest, a node that is killed, its return, a start of all.

    benches/partitions.py                         # 1,000 partitions: 20 topics with 50 each, three replicas
    benches/partitions.py --topics=4 --partitions=25 --rest=10

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). Each line of the table is a phase: how long it took until
every partition had a leader, until every replica was in sync, the CPU that nodes and etcd used meanwhile in seconds of one CPU, the
resident memory of the largest node and of etcd at its end, and the requests that etcd served.
"""
import argparse, json, os, shutil, signal, sys, tempfile, time

from bars import fail
from clusters import Cluster, arguments, connect, get, publish_once, wait

LIMIT = 600
FLAGS = ["--shards=2", "--journal-bytes=16MiB"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=50, help="of each topic")
    parser.add_argument("--rest", type=float, default=30, help="seconds of rest that are measured")
    parser.add_argument("--lease", type=int, default=10)
    args = arguments(parser)
    folder = tempfile.mkdtemp(prefix="partitions-", dir=args.folder)
    flags = [*FLAGS, f"--lease-ttl={args.lease}s", "--lease-ttl-floor=1s", *args.serve]
    cluster = Cluster(args.ringmq, folder, flags)
    try:
        run(args, cluster)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run(args, cluster):
    topics = [f"topic-{number}" for number in range(args.topics)]
    total = args.topics * args.partitions
    print(f"{'phase':26} {'leaders':>8} {'in sync':>8} {'node CPU':>9} {'etcd CPU':>9} {'node MiB':>9} {'etcd MiB':>9} {'requests':>9}  by method")
    with Phase(cluster, "create", total) as phase:
        for topic in topics:
            cluster.create(topic, args.partitions)
        phase.wait_whole()
    with Phase(cluster, f"rest of {args.rest:g} s", total):
        time.sleep(args.rest)
    with Phase(cluster, "one PUB to each", total):
        publish_to_each(cluster, topics, args.partitions)
    node = cluster.nodes[0]
    with Phase(cluster, "kill -9 of one", total) as phase:
        led = standing(cluster)[0][node.name]
        node.kill()
        phase.wait_leaders()
        publish_to_each(cluster, topics, args.partitions)
        phase.note(f"it led {led}; a PUB to each was acknowledged {time.monotonic() - phase.began:.1f} s after the signal")
    with Phase(cluster, "its return", total) as phase:
        node.spawn()
        node.wait_ready()
        phase.wait_whole()
    with Phase(cluster, "kill -9 of all, a start", total) as phase:
        for other in cluster.nodes:
            other.kill()
        for other in cluster.nodes:
            other.spawn()
        phase.wait_whole()
    metrics = cluster.etcd.metrics()
    print(f"{total} partitions, keys in etcd: {metrics['keys']}")


def standing(cluster):
    """Partitions that each node leads, and how many of all are in sync on as many nodes as run."""
    leads, whole = {}, 0
    running = [node for node in cluster.nodes if node.process]
    for node in running:
        try:
            topics = json.loads(get(f"http://127.0.0.1:{node.http}/stats?format=json", timeout=30) or "{}").get("topics") or []
        except json.JSONDecodeError:
            topics = []
        replicas = [replica for topic in topics for replica in topic.get("replication") or []]
        led = [replica for replica in replicas if replica["role"] == "leader"]
        leads[node.name] = len(led)
        whole += sum(len(replica["isr"]) == len(running) for replica in led)
    return leads, whole


class Phase:
    def __init__(self, cluster, name, total):
        self.cluster, self.name, self.total, self.leaders, self.whole, self.notes = cluster, name, total, None, None, []

    def __enter__(self):
        self.began = time.monotonic()
        self.lives, self.cpu = {}, {}
        self.requests, self.etcd_cpu = self.cluster.etcd.metrics()["requests"], cpu_of(self.cluster.etcd.process.pid)
        for node in self.cluster.nodes:
            if node.process:
                self.cpu[node.process.pid] = node.cpu_seconds()
        return self

    def note(self, text):
        self.notes.append(text)

    def wait_leaders(self):
        wait(lambda: sum(standing(self.cluster)[0].values()) >= self.total, lambda: f"leaders: {standing(self.cluster)}", LIMIT, 0.1)
        self.leaders = time.monotonic() - self.began

    def wait_whole(self):
        self.wait_leaders()
        wait(lambda: standing(self.cluster)[1] >= self.total, lambda: f"in sync: {standing(self.cluster)}", LIMIT, 0.5)
        self.whole = time.monotonic() - self.began

    def __exit__(self, kind, *_):
        if kind:
            return
        took = time.monotonic() - self.began
        running = [node for node in self.cluster.nodes if node.process]
        # A process that is new began at zero.
        cpu = sum(node.cpu_seconds() - self.cpu.get(node.process.pid, 0) for node in running)
        etcd = self.cluster.etcd
        after = etcd.metrics()["requests"]
        requests = {method: int(after[method] - self.requests.get(method, 0)) for method in after}
        requests = {method: count for method, count in requests.items() if count}
        seconds = lambda value: "-" if value is None else f"{value:.1f} s"
        print(f"{self.name:26} {seconds(self.leaders):>8} {seconds(self.whole):>8} {cpu:>7.2f} s {cpu_of(etcd.process.pid) - self.etcd_cpu:>7.2f} s "
              f"{max(node.resident_mib() for node in running):>9.0f} {resident_of(etcd.process.pid):>9.0f} {sum(requests.values()):>9}  "
              f"{requests} in {took:.1f} s", flush=True)
        for text in self.notes:
            print(f"  {text}")


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def publish_to_each(cluster, topics, partitions):
    """One acknowledged PUB to each partition, at whichever node takes it."""
    connections, end = {}, time.monotonic() + LIMIT
    at = 0
    running = [node for node in cluster.nodes if node.process]
    for topic in topics:
        for partition in range(partitions):
            while True:
                if time.monotonic() > end:
                    fail(f"{topic}/{partition} takes no PUB")
                node = running[at % len(running)]
                try:
                    connection = connections.setdefault(node.name, None) or connect(node.port, 20)
                    connections[node.name] = connection
                    if publish_once(connection, topic, partition, b"x" * 100) is None:
                        break
                except OSError:
                    connections[node.name] = None
                at += 1
                if at % len(running) == 0:
                    time.sleep(0.01)
    for connection in filter(None, connections.values()):
        connection.close()


if __name__ == "__main__":
    main()
