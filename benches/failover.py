#!/usr/bin/env python3
"""Time without a writable leader: three nodes with an etcd, of which one goes, over and over.

    benches/failover.py                                  # killed and silent, lease of 3 s and of 10 s, 50 failovers each
    benches/failover.py killed --lease=10 --failovers=10
    benches/failover.py silent --lease=3 --folder=/data

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). etcd has one member on the same machine.

| word   | the node                          | bar, 99th percentile |
|--------|-----------------------------------|----------------------|
| killed | is killed by SIGKILL              | 2 s                  |
| silent | is stopped by SIGSTOP             | lease + 1 s          |

A topic has a partition per node. At each of the nodes that stay, a prober publishes to each partition that the other node led, every
few milliseconds, over a connection that is there before. A sample is the time from the signal to the first publish that began after
it and was acknowledged, by whichever node. So it has in it what a client needs that tries all nodes, and no client's own wait.
Then the node comes back, and the next failover begins when every replica is in sync and a lease is over, at a random time.

Exit code: 0 every bar held, 1 one was missed, 2 it could not be measured.
"""
import argparse, random, shutil, signal, sys, tempfile, threading, time

from bars import fail
from clusters import Cluster, arguments, connect, publish_once

TOPIC, PARTITIONS = "orders", 3
PROBE_PAUSE = 0.004
OUTAGE_MAX = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", nargs="*", default=["killed", "silent"], choices=["killed", "silent"])
    parser.add_argument("--lease", type=int, action="append", help="seconds; may be repeated")
    parser.add_argument("--failovers", type=int, default=50)
    args = arguments(parser)
    held = True
    for how in args.how:
        for lease in args.lease or [3, 10]:
            held &= distribution(args, how, lease)
    sys.exit(0 if held else 1)


def distribution(args, how, lease):
    folder = tempfile.mkdtemp(prefix="failover-", dir=args.folder)
    flags = ["--shards=1", f"--lease-ttl={lease}s", "--lease-ttl-floor=1s", *args.serve]
    cluster = Cluster(args.ringmq, folder, flags)
    try:
        cluster.create(TOPIC, PARTITIONS)
        samples = []
        for _ in range(args.failovers):
            samples += failover(cluster, how, lease)
        return report(how, lease, samples, args.failovers)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def failover(cluster, how, lease):
    """The outages of the partitions that the node led."""
    cluster.wait_in_sync(TOPIC, PARTITIONS)
    # Two nodes that are lost within a lease are taken for an etcd that was asleep, and nothing moves for another lease.
    time.sleep(lease * random.uniform(1.1, 1.5))
    leaders = cluster.leaders(TOPIC)
    node = random.choice(sorted({node.name for node, _ in leaders.values()}))
    node = next(n for n in cluster.nodes if n.name == node)
    led = [partition for partition, (leader, _) in leaders.items() if leader is node]
    probes = [Probe(other, partition) for other in cluster.nodes if other is not node for partition in led]
    for probe in probes:
        probe.start()
    time.sleep(0.2)
    began = time.monotonic()
    node.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    for probe in probes:
        probe.began = began
    found = {}
    while len(found) < len(led):
        if time.monotonic() - began > OUTAGE_MAX:
            fail(f"partitions {set(led) - set(found)} have no leader {OUTAGE_MAX} s after {node.name} was {how}; the last answers: "
                 f"{[probe.answer for probe in probes]}")
        for probe in probes:
            if probe.ended and probe.partition not in found:
                found[probe.partition] = min(p.ended for p in probes if p.partition == probe.partition and p.ended) - began
        time.sleep(0.01)
    for probe in probes:
        probe.is_over = True
    if how == "killed":
        node.kill()
        node.spawn()
        node.wait_ready()
    else:
        node.signal(signal.SIGCONT)
    return list(found.values())


class Probe(threading.Thread):
    """Publishes to a partition at a node until a publish that began after `began` is acknowledged."""

    def __init__(self, node, partition):
        super().__init__(daemon=True)
        self.node, self.partition, self.began, self.ended, self.is_over, self.answer = node, partition, None, None, False, None

    def run(self):
        connection = None
        while not self.is_over and not self.ended:
            try:
                connection = connection or connect(self.node.port, 15)
                sent, began = time.monotonic(), self.began
                self.answer = publish_once(connection, TOPIC, self.partition, b"x" * 100)
                if self.answer is None and began is not None and sent > began:
                    self.ended = time.monotonic()
            except OSError as error:
                self.answer, connection = str(error), None
            time.sleep(PROBE_PAUSE)
        if connection:
            connection.close()


def report(how, lease, samples, failovers):
    samples.sort()
    at = lambda share: samples[min(len(samples) - 1, int(share * len(samples)))]
    bar = 2.0 if how == "killed" else lease + 1.0
    verdict = "pass" if at(0.99) <= bar else "MISSED"
    times = "  ".join(f"{name} {at(share):.2f}" for name, share in (("least", 0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1)))
    print(f"{how:6}  lease {lease:2} s  {failovers} failovers, {len(samples)} partitions  s: {times}  bar {bar:g}: {verdict}", flush=True)
    return verdict == "pass"


if __name__ == "__main__":
    main()
