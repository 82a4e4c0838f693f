#!/usr/bin/env python3
"""What TLS and compression cost: publish and consume over each transport, the node beside nsqd in the same run.

    NSQD=/path/to/nsqd benches/transports.py                         # 100 B and 1 KiB, 5 rounds
    NSQD=... benches/transports.py --rounds=3 --sizes=100 --transports=plain,tls_snappy

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). The load is the Go program in benches/transports (Go builds
it): --connections, windows of 100 messages; a window is one write of the client, so one TLS record and one chunk. Bodies are lines of JSON.
Each server starts on an empty data path below --folder, the node with one shard, both else with their defaults. The servers take turns, and
the first of a round changes. The figures are medians over the rounds:
- `msg/s`: messages per second of all connections together;
- `CPU us`: user and system time of the server for one message, from the scheduler's counters of its threads (/proc/<pid>/task/*/schedstat).
  Other work on the machine changes it little;
- `load CPU us`: the same of the Go program, which shares the machine's CPUs with the server;
- `ratio`: nsqd's CPU by the node's, and the node's rate by nsqd's: above 1 the node is better.
"""
import argparse, glob, os, resource, statistics, subprocess, tempfile
from servers import ROOT, commands, create, started

TRANSPORTS = ("plain", "snappy", "deflate", "tls", "tls_snappy", "tls_deflate")


def cpu(pid):
    """CPU seconds of a process so far. Threads that ended are missing: servers keep theirs."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                total += int(file.read().split()[0])
        except OSError:
            pass  # it ended just now
    return total / 1e9


def children():
    """CPU seconds of the loads that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bench:
    def __init__(self, options):
        self.options = options
        self.load = os.path.join(options.scratch, "transports")
        subprocess.run(["go", "build", "-o", self.load, "."], cwd=os.path.join(ROOT, "benches", "transports"), check=True)
        self.flags = ["--tls-cert=" + options.scratch + "/cert.pem", "--tls-key=" + options.scratch + "/key.pem"]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
                        "-keyout", "key.pem", "-out", "cert.pem"], cwd=options.scratch, check=True, capture_output=True)

    def run(self, server, work, transport, topic, size):
        before, load_before = cpu(server.pid), children()
        seconds = float(subprocess.run(
            [self.load, f"-address=127.0.0.1:{server.tcp}", "-transport=" + transport, "-work=" + work, "-topic=" + topic, f"-size={size}",
             f"-messages={self.options.messages}", f"-connections={self.options.connections}"], check=True, capture_output=True, text=True, timeout=300).stdout)
        count = self.options.messages
        return count / seconds, 1e6 * (cpu(server.pid) - before) / count, 1e6 * (children() - load_before) / count

    def round(self, command, size, found):
        """Each transport publishes to a topic of its own, and consumes what it published."""
        with started(command, self.options.folder, *self.flags) as server:
            for transport in self.options.transports:
                topic = "t." + transport
                create(server.http, topic, "c")
                for work in ("publish", "consume"):
                    found.setdefault((size, transport, work), []).append(self.run(server, work, transport, topic, size))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/var/tmp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[100, 1024])
    parser.add_argument("--transports", type=lambda text: text.split(","), default=TRANSPORTS)
    options = parser.parse_args()
    servers = list(commands().items())
    found = {name: {} for name, _ in servers}
    with tempfile.TemporaryDirectory() as options.scratch:
        bench = Bench(options)
        for number in range(options.rounds):
            for size in options.sizes:
                for name, command in servers if number % 2 == 0 else reversed(servers):
                    bench.round(command, size, found[name])
    print("| size | transport | work | " + "".join(f"{name} msg/s | {name} CPU us | load CPU us | " for name, _ in servers) + "CPU ratio | rate ratio |")
    print("|---|---|---|" + "---|" * (3 * len(servers) + 2))
    for key in found["node"]:
        medians = {name: [statistics.median(column) for column in zip(*found[name][key])] for name in found}
        row = "".join(f"{rate:,.0f} | {used:.2f} | {load:.2f} | " for rate, used, load in medians.values())
        ratios = "- | - |"
        if "nsqd" in medians:
            (rate, used, _), (nsqd_rate, nsqd_used, _) = medians["node"], medians["nsqd"]
            ratios = f"{nsqd_used / used:.2f} | {rate / nsqd_rate:.2f} |"
        print("| %d B | %s | %s | " % key + row + ratios)


main()
