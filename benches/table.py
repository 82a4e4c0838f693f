#!/usr/bin/env python3
"""A table of the medians of the benches, from what `cargo bench` has left.

    cargo bench 2>&1 | tee bench.log       # or some of them: cargo bench --bench codec --bench search
    benches/table.py bench.log             # the log brings what criterion does not measure (wake)

Criterion's figures are read from CRITERION_HOME, CARGO_TARGET_DIR/criterion or target/criterion: of each function the newest run,
whenever that was. Medians of a function's samples, and the interval in which the median lies with 95 %. A bench that left nothing
has no row; with --all it has one that says so.
"""
import glob, json, os, platform, re, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A bench, how the names of its criterion groups begin, and what one figure is for.
BENCHES = [
    ("codec", ("codec, ",), "what the name says"),
    ("batch", ("batch of ",), "one batch"),
    ("channel", ("channel, ", "wheel, "), "10,000 messages, or a million"),
    ("mesh", ("mesh, ",), "one message"),
    ("log", ("log, ",), "what the name says, on the disk"),
    ("search", ("search, ",), "one search, on the disk"),
    ("wake", (), "a round trip between two cores that sleep"),
    ("shard", ("publish", "deliver"), "one message; instructions: `benches/instructions`"),
    ("latency", ("from publish to delivery",), "one message, on the disk"),
]


def criterion_folder():
    if home := os.environ.get("CRITERION_HOME"):
        return home
    return os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "criterion")


def span(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def rate(throughput, ns):
    """What criterion was told that one iteration handles."""
    (kind, number), = throughput.items() if throughput else (("", 0),)
    if kind in ("Bytes", "BytesDecimal"):
        return f"{number / ns * 1e3:,.0f} MB/s"
    if kind == "Elements" and number > 1:
        return f"{span(ns / number)} each"
    if kind == "Elements":
        return f"{1e9 / ns:,.0f} /s"
    return ""


def functions(folder):
    """(group, name, median, interval, rate, when), in the order in which they ran."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), "**", "new", "estimates.json"), recursive=True):
        with open(path) as estimates, open(os.path.join(os.path.dirname(path), "benchmark.json")) as benchmark:
            median, what = json.load(estimates)["median"], json.load(benchmark)
        name = " ".join(part for part in (what["function_id"], what["value_str"]) if part)
        between = median["confidence_interval"]
        interval = f"{span(between['lower_bound'])} to {span(between['upper_bound'])}"
        ns = median["point_estimate"]
        found.append((os.path.getmtime(path), what["group_id"], name, span(ns), interval, rate(what["throughput"], ns)))
    found.sort()
    return [(*rest, when) for when, *rest in found]


def wakes(log):
    """The lines that benches/wake.rs prints: way, p50, p99, the waker's call and the CPU of a trip, in microseconds."""
    line = re.compile(r"^\s*(eventfd|MSG_RING) \|\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$", re.M)
    for way, p50, p99, call, cpu in line.findall(log):
        yield f"{way}: round trip, p50", f"{p50} us", f"p99 {p99} us", f"CPU {cpu} us, the waker's call {call} us"


def conditions(whens):
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.split(" (")[0].strip()
    folder = criterion_folder()
    disk = subprocess.run(["stat", "-f", "-c", "%T", folder if os.path.isdir(folder) else ROOT], capture_output=True, text=True)
    day = lambda when: time.strftime("%Y-%m-%d %H:%M", time.gmtime(when))
    ran = f"run {day(min(whens))} to {day(max(whens))} UTC" if whens else "nothing of criterion's was found"
    load = " ".join(open("/proc/loadavg").read().split()[:3])
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, {disk.stdout.strip()}, {rustc}; {ran}; load when printed {load}"


def main():
    args = sys.argv[1:]
    if any(arg in ("-h", "--help") for arg in args):
        return print(__doc__)
    shows_all = "--all" in args
    log = "".join(open(path, errors="replace").read() for path in args if path != "--all")
    found = functions(criterion_folder())
    rows = []
    for bench, groups, one in BENCHES:
        # groups of two benches may begin alike, but for a name that is a whole group's
        is_its = lambda group: any(group == g if " " not in g else group.startswith(g) for g in groups)
        its = [(f"{group}: {name}", *rest) for group, name, *rest, _ in found if is_its(group)]
        its += wakes(log) if bench == "wake" else []
        if not its and shows_all:
            its = [("not run", "", "", "")]
        rows += [(f"`cargo bench --bench {bench}`: {one}" if i == 0 else "", *row) for i, row in enumerate(its)]
    if not rows:
        sys.exit(f"nothing in {criterion_folder()}: cargo bench first (--help)")
    print(conditions([when for *_, when in found]) + "\n")
    print("| command, a figure is for | what | median | with 95 % between | rate |\n|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


main()
