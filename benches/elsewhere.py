#!/usr/bin/env python3
"""What it costs a client to be at a node that does not lead: the same work at the leader and at another node, in one run.

    benches/elsewhere.py                   # all rows
    benches/elsewhere.py put consume --rounds=7
    benches/elsewhere.py --folder=/data    # on another disk

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). Three nodes with one shard each and an etcd, on the
same cores as the load; the topic has one partition with three replicas. A round measures the leader and another node, in
changing order; the figures are medians over the rounds, CPU is that of all three nodes.

| row     | work                                                         |
|---------|--------------------------------------------------------------|
| put     | PUB 100 B, 1 connection, closed loop: latency                |
| puts    | PUB 100 B, 32 connections, closed loop: rate, CPU            |
| mput    | MPUB 200 x 100 B, 4 connections, closed loop: rate, CPU      |
| both    | PUB 100 B and a consumer at the same node, 1,000/s: latency from publish to delivery |
| consume | a backlog of 100 B messages, 1 connection: rate, CPU         |

Exit code: 0, or 2 where it could not be measured.
"""
import argparse, os, shutil, statistics, tempfile

from bars import fail, run_load
from clusters import Cluster, arguments, get, wait

TOPIC = "orders"
ROWS = ["put", "puts", "mput", "both", "consume"]
PUBLISH = {
    "put": ["--size=100", "--connections=1"],
    "puts": ["--size=100", "--connections=32"],
    "mput": ["--size=100", "--batch=200", "--connections=4"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=[], metavar="|".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--backlog", type=int, default=300_000, help="messages of the row consume")
    args = arguments(parser)
    if unknown := set(args.rows) - set(ROWS):
        fail(f"no such row: {' '.join(unknown)}")
    folder = tempfile.mkdtemp(prefix="elsewhere-", dir=args.folder)
    cluster = Cluster(args.ringmq, folder, ["--shards=1", *args.serve])
    try:
        cluster.create(TOPIC, 1)
        cluster.wait_in_sync(TOPIC, 1)
        leader = cluster.leaders(TOPIC)[0][0]
        other = next(node for node in cluster.nodes if node is not leader)
        for row in args.rows or ROWS:
            report(row, measure(args, cluster, row, leader, other))
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(args, cluster, row, leader, other):
    found = {"leader": [], "other": []}
    for number in range(args.rounds + 1):
        order = [("leader", leader), ("other", other)]
        for name, node in order if number % 2 else reversed(order):
            value = one(args, cluster, row, node, leader)
            if number:  # the first warms the files up
                found[name].append(value)
    return found


def one(args, cluster, row, node, leader):
    """Latency in us, messages per second, CPU seconds per million messages; None where it says nothing."""
    if row == "consume":
        channel(leader, "create", "backlog")
        load(cluster, leader, "--mode=produce", "--size=100", "--batch=200", "--connections=4", f"--messages={args.backlog}", "--duration=600s")
        run, cpu = load(cluster, node, "--mode=consume", "--channel=backlog", "--connections=1", f"--messages={args.backlog}", "--duration=60s")
        channel(leader, "delete", "backlog")
        flow = run["delivered"]
        return None, flow["messages_per_second"], cpu * 1e6 / flow["messages"]
    if row == "both":
        channel(leader, "create", "both")
        run, cpu = load(cluster, node, "--mode=both", "--channel=both", "--size=100", "--connections=1", "--rate=1000", f"--duration={args.seconds}s")
        channel(leader, "delete", "both")
        return run["end_to_end_latency"]["p50_us"], None, cpu * 1e6 / run["delivered"]["messages"]
    run, cpu = load(cluster, node, "--mode=produce", *PUBLISH[row], f"--duration={args.seconds}s")
    flow = run["published"]
    return run["publish_latency"]["p50_us"], flow["messages_per_second"], cpu * 1e6 / flow["messages"]


def load(cluster, node, *options):
    result = node.log + ".json"
    command = [cluster.nodes[0].command[0], "load", f"--address=127.0.0.1:{node.port}", f"--topic={TOPIC}", "--quiet", "--warm-up=0s",
               f"--json={result}", *options]
    before = sum(node.cpu_seconds() for node in cluster.nodes)
    run = run_load(command, result)
    return run, sum(node.cpu_seconds() for node in cluster.nodes) - before


def channel(node, operation, name):
    url = f"http://127.0.0.1:{node.http}/channel/{operation}?topic={TOPIC}&channel={name}"
    wait(lambda: get(url, b"") is not None, lambda: f"no {operation} of channel {name}")


def report(row, found):
    parts = []
    for place, (what, unit, digits) in enumerate([("p50", "us", 0), ("rate", "/s", 0), ("CPU", "s per million", 1)]):
        pairs = [(a[place], b[place]) for a, b in zip(found["leader"], found["other"])]
        if any(a is None for a, _ in pairs):
            continue
        ratios = [b / a for a, b in pairs]
        leader, other = (statistics.median(values) for values in zip(*pairs))
        parts.append(f"{what} {other:,.{digits}f} {unit}, at the leader {leader:,.{digits}f}, ratio {statistics.median(ratios):.2f} "
                     f"({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"{row:8} {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
