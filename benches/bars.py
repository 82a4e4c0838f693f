#!/usr/bin/env python3
"""The bars: a RingMQ node beside nsqd, in one run on one machine, node and load on the same cores.

    NSQD=/path/to/nsqd benches/bars.py P2            # one bar; several may be named, `all` is all but P10
    NSQD=... benches/bars.py P3 --rounds=5 --seconds=3 --shards=1
    NSQD=... benches/bars.py P10 --backlog=10000000  # writes that many KiB twice (once without NSQD's part: --only=ringmq)

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). nsqd runs with its defaults, the node with
its own (--shards=N changes that one). Every measurement starts a fresh server on a fresh data path below --folder
(which should be on the disk that is meant), and removes it afterwards. The two take turns, the first of a round
changes, and the figures are medians over the rounds. Load: `ringmq load` against both, so its own cost is the same.

| bar | work | must be |
|---|---|---|
| P1  | PUB 100 B, 1 connection                         | p50 <= 1.8 x p50 of pwrite + fdatasync of 4 KiB |
| P2  | PUB 100 B, 64 connections                       | >= 1.0 x nsqd's rate |
| P2b | the same on 64 topics                           | >= 1.0 x nsqd's rate there, and >= 0.9 x the node's P2 |
| P3  | MPUB 200 x 100 B, 4 connections                 | >= 2 x nsqd's rate |
| P4  | MPUB 200 x 1 KiB, 4 connections                 | >= 2 x nsqd's rate, and >= 40 % of 1 MiB writes with fdatasync |
| P5  | the same over the native protocol               | >= 3 x nsqd's rate, and >= 60 % of 1 MiB writes with fdatasync |
|     | (both with one batch in flight per connection, then with 16, which nsqd gets too; on space that the node had before, | |
|     | as the raw writes have; beside it, without a bar, what the same node does before that: on new space) | |
| P6  | consume 100 B and 1 KiB, 1 and 4 connections    | >= 2 x nsqd's rate, each |
| P7  | P6 over the native protocol, ranges confirmed   | >= 5 x nsqd's rate, each |
| P8  | open loop 5,000 PUB/s and a consumer            | p99.9 below nsqd's p99: publishing, and end to end |
| P9  | CPU seconds per million messages of P3 to P7    | <= 0.5 x nsqd's; printed with those |
| P10 | backlog of 1 KiB messages, then consumed, natively | memory < 256 MiB per core; >= 60 % of the raw sequential read |

Exit code: 0 every bar held, 1 one was missed, 2 it could not be measured.
"""
import argparse, json, mmap, os, shutil, socket, statistics, subprocess, sys, tempfile, time, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
NATIVE = "--protocol=native"
WINDOW = 16  # batches that a client of P4 and P5 has in flight when it does not wait for each answer


class Server:
    """One server on a data path of its own, gone with it at the end."""

    def __init__(self, kind, args, serve=()):
        self.kind, self.args = kind, args
        self.folder = tempfile.mkdtemp(prefix=f"bars-{kind}-", dir=args.folder)
        self.port, self.http_port, self.native_port = free_port(), free_port(), free_port()
        at, http = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.http_port}"
        common = [f"--tcp-address={at}", f"--http-address={http}", f"--data-path={self.folder}"]
        if kind == "nsqd":
            command = [args.nsqd, *common]
        else:
            command = [args.ringmq, "serve", *common, f"--native-address=127.0.0.1:{self.native_port}", *([f"--shards={args.shards}"] if args.shards else []), *serve, *args.serve]
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        end = time.time() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.time() > end or self.process.poll() is not None:
                    fail(f"{' '.join(command)} does not start: {open(self.log.name).read()[-2000:]}")
                time.sleep(0.05)
        self.address = at

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.sync()  # what the kernel still had to write would be the next one's burden
        DISK.calm(self.args)

    def load(self, args, *options):
        result = os.path.join(self.folder, "load.json")
        native = "--protocol=native" in options
        address = f"127.0.0.1:{self.native_port}" if native else self.address
        command = [args.ringmq, "load", f"--address={address}", f"--server-pid={self.process.pid}",
                   "--quiet", f"--json={result}", *options]
        return run_load(command, result)

    def make_channel(self, topic="load", channel="load"):
        """As a consumer makes it; nothing is delivered to it."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as wire:
            wire.sendall(b"  V2SUB %s %s\n" % (topic.encode(), channel.encode()))
            if b"OK" not in wire.recv(100):
                fail(f"{self.kind}: SUB was refused")

    def use_space(self, seconds):
        """As much as is published in so many seconds and more, published, consumed, and kept for what comes next (--spare-bytes)."""
        backlog(self, self.args, 1024, int(seconds * 2_500_000), NATIVE, "--topic=before", "--in-flight=16")
        for action in ("create", "empty"):
            url = f"http://127.0.0.1:{self.http_port}/channel/{action}?topic=before&channel=load"
            urllib.request.urlopen(urllib.request.Request(url, data=b"")).close()
        end, folder = time.time() + 60, os.path.join(self.folder, "topics", "before", "0")
        while sum(name.endswith(".segment") for name in os.listdir(folder)) > 1:
            if time.time() > end:
                fail(f"{self.kind}: segments that are consumed are still there")
            time.sleep(0.1)
        os.sync()
        DISK.calm(self.args)

    def settle(self):
        """nsqd carries what was published from its topic to its channels in the background: not while it is measured."""
        while self.kind == "nsqd":
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/stats?format=json") as answer:
                if all(topic["depth"] == 0 for topic in json.load(answer)["topics"]):
                    break
            time.sleep(0.1)
        time.sleep(0.5)

    def busiest_cpu(self):
        """The CPU of the shard that did the work: of the threads that are pinned to one, the one that ran the most."""
        tasks = f"/proc/{self.process.pid}/task"
        ran = {}
        for task in os.listdir(tasks):
            cpus = os.sched_getaffinity(int(task))
            if len(cpus) == 1:
                with open(f"{tasks}/{task}/stat") as stat:
                    fields = stat.read().rsplit(")", 1)[1].split()
                ran[int(fields[11]) + int(fields[12])] = min(cpus)
        return ran[max(ran)] if ran else 0

    def rss_peak(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fail(text):
    print(f"{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr)
    sys.exit(2)


def run_load(command, result):
    """Runs `ringmq load`; what it wrote to --json."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    with open(result) as file:
        run = json.load(file)
    if run["errors"]:
        fail(f"{' '.join(command)}: {run['errors']}")
    return run


def raw_writes(args, cpu, size, seconds, rate=None):
    """Seconds of each pwrite + fdatasync, O_DIRECT, into a file written before, pinned to a CPU. With a rate, as many in a
    second as the disk lets, one at a time."""
    allowed = os.sched_getaffinity(0)
    path = os.path.join(args.folder, f"bars-raw-{os.getpid()}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        os.sched_setaffinity(0, {cpu})
        length = 16 * MIB
        block = mmap.mmap(-1, max(size, MIB))
        block.write(os.urandom(len(block)))
        for at in range(0, length, len(block)):
            os.pwrite(file, block, at)
        os.fsync(file)
        view, at, times = memoryview(block)[:size], 0, []
        end = time.perf_counter() + seconds
        due = time.perf_counter()
        while (begun := time.perf_counter()) < end:
            if rate:
                due = max(due + 1 / rate, begun)
                time.sleep(max(0, due - begun - 60e-6))  # a sleep ends late
                while (begun := time.perf_counter()) < due:
                    pass
            os.pwrite(file, view, at)
            os.fdatasync(file)
            times.append(time.perf_counter() - begun)
            at = (at + size) % length
        return times
    finally:
        os.close(file)
        os.unlink(path)
        os.sched_setaffinity(0, allowed)


class Disk:
    """Waits until what a removed data path leaves behind (discards of thousands of extents) no longer slows the disk."""

    def __init__(self):
        self.best = self.waited = 0

    def calm(self, args):
        begun = time.time()
        while True:
            p50 = statistics.median(raw_writes(args, min(shard_cpus(args)), 4096, 0.1))
            self.best = min(self.best or p50, p50)
            if p50 <= 1.5 * self.best or time.time() - begun > 10:
                self.waited += time.time() - begun
                return
            time.sleep(0.2)


DISK = Disk()


def shard_cpus(args):
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[: args.shards or len(cpus)]


def raw_p50_us(args, cpu):
    return statistics.median(raw_writes(args, cpu, 4096, 0.5)) * 1e6


def raw_sequential(args):
    """Bytes per second of 1 MiB writes, each with its fdatasync, on the faster core."""
    return max(MIB * len(t) / sum(t) for t in (raw_writes(args, cpu, MIB, 0.5) for cpu in shard_cpus(args)))


class Bars:
    def __init__(self, args):
        self.args, self.missed = args, 0

    def servers(self, round):
        both = ["ringmq", "nsqd"] if self.args.only is None else [self.args.only]
        return both if round % 2 == 0 else both[::-1]

    def rounds(self, measure, *more, serve=()):
        """measure(server) -> dict of figures, and more() -> dict; medians of both servers."""
        seen = {"ringmq": [], "nsqd": [], "raw": []}
        for round in range(self.args.rounds):
            for kind in self.servers(round):
                with Server(kind, self.args, serve) as server:
                    seen[kind].append(measure(server))
            for extra in more:
                seen["raw"].append(extra(self.args))
        return [medians(seen[kind]) for kind in ("ringmq", "nsqd", "raw")]

    def verdict(self, bar, text, ratio, limit, at_least=True):
        if ratio is None:
            return
        held = ratio >= limit if at_least else ratio <= limit
        self.missed += not held
        sign = ">=" if at_least else "<="
        print(f"| {bar} | {text} | {ratio:.2f} | {sign} {limit:g} | {'pass' if held else 'MISS'} |", flush=True)

    def against(self, bar, what, node, nsqd, key, limit, at_least=True, unit=""):
        if node and nsqd:
            text = f"{what}: {number(node[key])}{unit}, nsqd {number(nsqd[key])}{unit}"
            self.verdict(bar, text, node[key] / nsqd[key], limit, at_least)
        else:
            print(f"| {bar} | {what}: {node or nsqd} | | | |", flush=True)

    def publish(self, *options):
        seconds = [f"--duration={self.args.seconds}s", "--warm-up=500ms"]
        return lambda server: figures(server.load(self.args, *seconds, *options), "published")

    def p1(self):
        # no part of nsqd's; the raw loop runs beside the idle node, on the core whose shard did the work
        seen = []
        for _ in range(self.args.rounds):
            with Server("ringmq", self.args) as server:
                run = self.publish("--size=100")(server)
                cpu = server.busiest_cpu()
                seen.append({"p50": run["p50"], "raw": raw_p50_us(self.args, cpu), "cpu": cpu})
        node = medians(seen)
        text = f"PUB, 1 connection, p50: {node['p50']:.0f} us, raw {node['raw']:.0f} us (CPU {', '.join(str(s['cpu']) for s in seen)})"
        self.verdict("P1", text, node["p50"] / node["raw"], 1.8, at_least=False)

    def p2(self):
        node, nsqd, _ = self.rounds(self.publish("--size=100", "--connections=64"))
        self.against("P2", "PUB, 64 connections, per s", node, nsqd, "rate", 1.0)
        print(f"|  | p50 {node and node['p50']:.0f} us; generator busy {busy(node, nsqd)} | | | |")
        return node

    def p2b(self):
        # in the same rounds, as the disk's speed changes
        def measure(options):
            return self.publish("--size=100", "--connections=64", *options)
        seen = {"one": [], "many": [], "nsqd": []}
        for round in range(self.args.rounds):
            parts = [("one", "ringmq", []), ("many", "ringmq", ["--topics=64"]), ("nsqd", "nsqd", ["--topics=64"])]
            for name, kind, options in parts if round % 2 == 0 else parts[::-1]:
                if self.args.only in (None, kind):
                    with Server(kind, self.args) as server:
                        seen[name].append(measure(options)(server))
        one, many, nsqd = (medians(seen[name]) for name in ("one", "many", "nsqd"))
        self.against("P2b", "PUB, 64 topics, per s", many, nsqd, "rate", 1.0)
        if one:
            text = f"PUB, 64 topics: {number(many['rate'])}, one topic {number(one['rate'])}"
            self.verdict("P2b", text, many["rate"] / one["rate"], 0.9)

    def multi(self, bar, size, extra=(), native=(), limit=2.0, window=1, used=False):
        def measure(server):
            own = native if server.kind == "ringmq" else ()
            publish = self.publish(f"--size={size}", "--batch=200", "--connections=4", f"--in-flight={window}", *own)
            new = publish(server)
            if not used or server.kind == "nsqd":
                return new
            server.use_space(self.args.seconds + 1)
            publish = self.publish(f"--size={size}", "--batch=200", "--connections=4", f"--in-flight={window}", "--topic=then", *own)
            return publish(server) | {"new": new["bytes"]}
        serve = ["--spare-bytes=64GiB"] if used else []
        node, nsqd, raw = self.rounds(measure, *extra, serve=serve)
        what = f"{'native' if native else 'MPUB'} 200 x {size} B, {window} in flight, per s"
        self.against(bar, what, node, nsqd, "rate", limit)
        self.against("P9", f"{bar}: CPU s per million", node, nsqd, "cpu", 0.5, at_least=False)
        print(f"|  | generator busy {busy(node, nsqd)} | | | |")
        return node, raw

    def p3(self):
        self.multi("P3", 100)

    def of_raw(self, bar, share, **options):
        # a client that waits for each answer, and one that does not; both servers get the same
        for window in (1, WINDOW):
            node, raw = self.multi(bar, 1024, [lambda args: {"rate": raw_sequential(args)}], window=window, used=True, **options)
            if node:
                text = f"{window} in flight: {node['bytes'] / 1e6:.0f} MB/s, raw {raw['rate'] / 1e6:.0f} MB/s"
                self.verdict(bar, text, node["bytes"] / raw["rate"], share)
                print(f"|  | on new space {node['new'] / 1e6:.0f} MB/s | {node['new'] / raw['rate']:.2f} | | of raw |")

    def p4(self):
        self.of_raw("P4", 0.4)

    def p5(self):
        self.of_raw("P5", 0.6, native=[NATIVE], limit=3.0)

    def p6(self):
        self.consume("P6", 2.0)

    def p7(self):
        self.consume("P7", 5.0, NATIVE)

    def consume(self, bar, limit, *native):
        for size, messages in ((100, 800_000), (1024, 400_000)):
            for connections in (1, 4):
                def measure(server):
                    own = native if server.kind == "ringmq" else ()
                    server.make_channel()
                    backlog(server, self.args, size, messages, *own)
                    server.settle()
                    return figures(consume(server, self.args, messages, connections, *own), "delivered")
                node, nsqd, _ = self.rounds(measure)
                what = f"consume {size} B, {connections} connections"
                self.against(bar, f"{what}, per s", node, nsqd, "rate", limit)
                self.against("P9", f"{bar}: {what}: CPU s per million", node, nsqd, "cpu", 0.5, at_least=False)
                print(f"|  | generator busy {busy(node, nsqd)} | | | |")

    def p8(self):
        options = ["--mode=both", "--rate=5000", "--size=100", "--connections=16", "--consumers=1"]
        def measure(server):
            run = server.load(self.args, f"--duration={self.args.seconds}s", "--warm-up=1s", *options)
            return {f"{name} {at}": run[f"{name}_latency"][f"{at}_us"]
                    for name in ("publish", "end_to_end") for at in ("p50", "p99", "p99_9")}
        def writes(args):
            # as many as there would be if each publish had its own, and on the CPU that is the slower one
            runs = (sorted(raw_writes(args, cpu, 4096, self.args.seconds, rate=5000)) for cpu in shard_cpus(args))
            return max(({at: run[int(len(run) * share)] * 1e6 for at, share in (("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999))}
                       for run in runs), key=lambda of: of["p99_9"])
        node, nsqd, raw = self.rounds(measure, writes)
        for name in ("publish", "end_to_end"):
            if node and nsqd:
                text = (f"{name} us: p50 {node[name + ' p50']:.0f}, p99 {node[name + ' p99']:.0f}, p99.9 {node[name + ' p99_9']:.0f}; "
                        f"nsqd {nsqd[name + ' p50']:.0f}, {nsqd[name + ' p99']:.0f}, {nsqd[name + ' p99_9']:.0f}")
                self.verdict("P8", text, node[name + " p99_9"] / nsqd[name + " p99"], 1.0, at_least=False)
            else:
                print(f"| P8 | {name}: {node or nsqd} | | | |")
        text = f"one 4 KiB pwrite + fdatasync, at 5,000/s, us: p50 {raw['p50']:.0f}, p99 {raw['p99']:.0f}, p99.9 {raw['p99_9']:.0f}"
        print(f"|  | {text} | {raw['p99_9'] / nsqd['publish p99']:.2f} | | of nsqd's p99 |" if nsqd else f"|  | {text} | | | |")

    def p10(self):
        messages = self.args.backlog
        for kind in self.servers(0):
            native = [NATIVE] if kind == "ringmq" else []
            with Server(kind, self.args) as server:
                server.make_channel()
                filled = backlog(server, self.args, 1024, messages, *native)
                after_fill = server.rss_peak()
                server.settle()
                out = consume(server, self.args, messages, 4, *native)["delivered"]["megabytes_per_second"]
                peak, cores = server.rss_peak(), len(shard_cpus(self.args)) if kind == "ringmq" else 1
                text = (f"{kind}: {messages} x 1 KiB in {filled['seconds']:.0f} s, out at {out:.0f} MB/s; "
                        f"peak memory {after_fill / MIB:.0f} MiB filled, {peak / MIB:.0f} MiB drained, {cores} cores")
                if kind == "ringmq":
                    self.verdict("P10", text + " (of 256 each)", peak / cores / MIB / 256, 1.0, at_least=False)
                    raw = raw_read(self.args)
                    self.verdict("P10", f"out at {out:.0f} MB/s, raw sequential read {raw:.0f} MB/s", out / raw, 0.6)
                else:
                    print(f"| P10 | {text} | | | |")


def raw_read(args):
    """MB/s of the sequential read of `ringmq doctor --measure`."""
    folder = tempfile.mkdtemp(prefix="bars-raw-", dir=args.folder)
    try:
        result = os.path.join(folder, "raw.json")
        command = [args.ringmq, "doctor", "--measure", "--seconds=5", f"--data-path={folder}", f"--json={result}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not os.path.exists(result):
            fail(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        with open(result) as file:
            return json.load(file)["sequential"]["read"]["megabytes_per_second"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def backlog(server, args, size, messages, *options):
    run = server.load(args, f"--size={size}", "--batch=200", "--connections=4", f"--messages={messages}", "--duration=600s", *options)
    if run["published"]["messages"] != messages:
        fail(f"{server.kind}: {run['published']['messages']} of {messages} messages were published")
    return run


def consume(server, args, messages, connections, *options):
    run = server.load(args, "--mode=consume", f"--messages={messages}", f"--connections={connections}", "--duration=600s", *options)
    if run["delivered"]["messages"] != messages:
        fail(f"{server.kind}: {run['delivered']['messages']} of {messages} messages were consumed")
    return run


def figures(run, flow):
    latency = run["publish_latency"]
    return {
        "rate": run[flow]["messages_per_second"],
        "bytes": run[flow]["megabytes_per_second"] * 1e6,
        "cpu": run["server"]["cpu_seconds_per_million"],
        "busy": run["generator"]["busy"],
        "p50": latency["p50_us"] if latency else 0,
    }


def medians(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]} if runs else None


def busy(node, nsqd):
    return ", ".join(f"{name} {of['busy'] * 100:.0f} %" for name, of in (("ringmq", node), ("nsqd", nsqd)) if of)


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main():
    bars = ["P1", "P2", "P2b", "P3", "P4", "P5", "P6", "P7", "P8", "P10"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bars", nargs="+", choices=[*bars, "all"], metavar="BAR", help=" ".join(bars) + ", all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each publishing run")
    parser.add_argument("--shards", type=int, default=0, help="of the node; default: its own default, the CPUs")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages of P10; the bar is 10,000,000")
    parser.add_argument("--only", choices=["ringmq", "nsqd"], help="measure one of them, without a verdict")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the data paths; on a real disk")
    parser.add_argument("--serve", action="append", default=[], metavar="FLAG", help="a further flag for ringmq serve")
    args = parser.parse_args()
    args.nsqd = os.environ.get("NSQD", "nsqd")
    args.ringmq = os.environ.get("RINGMQ") or os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release/ringmq")
    if args.only != "ringmq" and not shutil.which(args.nsqd):
        fail(f"no nsqd at {args.nsqd}: set NSQD (docs/benchmarks.md says how it is built), or give --only=ringmq")
    if not shutil.which(args.ringmq):
        fail(f"no binary at {args.ringmq}: cargo build --release, or set RINGMQ")
    bench = Bars(args)
    os.sync()
    print("| bar | medians | ratio | bar | |\n|---|---|---|---|---|")
    for bar in [b for b in bars if b != "P10"] if "all" in args.bars else args.bars:
        getattr(bench, bar.lower())()
    print(f"\nThe disk: p50 of a 4 KiB pwrite + fdatasync {DISK.best * 1e6:.0f} us at best; {DISK.waited:.0f} s of waiting for it to calm down")
    sys.exit(1 if bench.missed else 0)


if __name__ == "__main__":
    main()
