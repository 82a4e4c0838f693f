"""The suites that the client libraries' own projects ship, against the stock nsqd and nsqlookupd and then against ours by the same names.

A test that fails with the stock programs too tells nothing of ours. Each suite runs in a network namespace of its own, since they use
nsqd's fixed ports, and finds `nsqd` and `nsqlookupd` first in its PATH. pynsq's package has no tests.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

SUITES = pathlib.Path(os.environ["RINGMQ_SUITES"])
STOCK = pathlib.Path(os.environ["RINGMQ_STOCK"])
LIMIT_S = 240

# Why a test fails that closes its producer when its consumer has the message.
EARLY = "delivery and OK come from two cores, in either order, and the test ends its producer at the delivery"

# Tests that pass with nsqd and fail here, always or now and then, each with the reason.
ONLY_OURS = {
    "nsqjs": {
        "integration end to end should send and receive a string": EARLY,
        "integration end to end should send and receive a String object": EARLY,
    },
    "gnsq": {
        "test_nsqd_http.test_publish": "an unread deferred message of a channel without a consumer is in depth, not in deferred_count",
    },
}

# Brings the loopback device of the namespace up, without needing iproute2, and becomes the command.
IN_NAMESPACE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Run:
    """A suite's run with one kind of programs: its results by the tests' names, and what it printed."""

    def __init__(self, kind, suite):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="suite-%s-%s-" % (suite, kind), dir=os.environ["RINGMQ_TEST_FOLDER"]))
        programs = self.folder / "programs"
        programs.mkdir()
        for name in ("nsqd", "nsqlookupd"):
            (programs / name).symlink_to(os.environ["RINGMQ_BINARY"] if kind == "ours" else STOCK / name)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        path = "%s:%s" % (programs, os.environ["PATH"])
        self.environment = dict(os.environ, PATH=path, TMPDIR=str(self.temporary), PYTHONDONTWRITEBYTECODE="1")
        self.output = ""

    def call(self, *command, cwd):
        """Runs the command in the namespace; its exit code says no more than the results do."""
        # With the namespace of processes all that the suite started ends.
        namespace = ["unshare", "--map-root-user", "--net", "--pid", "--kill-child", "python3", "-c", IN_NAMESPACE]
        done = subprocess.run(
            [*namespace, *map(str, command)], cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=LIMIT_S, text=True, errors="replace",
        )
        self.output += done.stdout
        return done.stdout


def go_nsq(run):
    """As its test.sh does; the servers end with the shell."""
    module = (SUITES / "go-nsq.folder").read_text().strip()
    script = """
        trap 'kill $(jobs -p); wait' EXIT
        nsqlookupd >"$TMPDIR/nsqlookupd.log" 2>&1 &
        nsqd --data-path="$TMPDIR" --lookupd-tcp-address=127.0.0.1:4160 --tls-cert=./test/server.pem --tls-key=./test/server.key \
            --tls-root-ca-file=./test/ca.pem >"$TMPDIR/nsqd.log" 2>&1 &
        for i in $(seq 100); do
            (exec 3<>/dev/tcp/127.0.0.1/4150 && exec 3<>/dev/tcp/127.0.0.1/4161) 2>/dev/null && break
            sleep 0.1
        done
        "$0" -test.v -test.timeout=120s
    """
    output = run.call("bash", "-c", script, SUITES / "go-nsq.test", cwd=module)
    return {name: word == "PASS" for word, name in re.findall(r"^--- (PASS|FAIL): (\S+)", output, re.M)}


def nsqjs(run):
    package = SUITES / "node_modules" / "nsqjs"
    report = run.folder / "mocha.json"
    mocha = SUITES / "node_modules" / "mocha" / "bin" / "mocha"
    run.call("node", mocha, "--exit", "--timeout=10000", "--reporter=json", "--reporter-option=output=%s" % report, "test", cwd=package)
    results = {}
    for test in json.loads(report.read_text())["tests"]:
        name = test["fullTitle"]
        while name in results:  # two tests of one title
            name += " (again)"
        results[name] = not test["err"]
        if test["err"]:
            run.output += "%s: %s\n" % (name, test["err"].get("stack"))
    return results


def gnsq(run):
    report = run.folder / "pytest.xml"
    tests = SUITES / "gnsq" / "tests"
    python = SUITES / "venv" / "bin" / "python"
    run.call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=%s" % report, tests, cwd=run.folder)
    results = {}
    for case in xml.parse(report).iter("testcase"):
        failed = any(child.tag in ("failure", "error") for child in case)
        results["%s.%s" % (case.get("classname").split(".")[-1], case.get("name"))] = not failed
    return results


def results(suite, kind):
    """What passed, and all that was printed."""
    run = Run(kind, suite.__name__)
    try:
        passed = suite(run)
    finally:
        shutil.rmtree(run.folder, ignore_errors=True)
    if len(passed) < 10:
        raise AssertionError("%s with %s:\n%s" % (suite.__name__, kind, run.output))
    return passed, run.output


class TheirOwnSuites(unittest.TestCase):
    def compare(self, suite):
        stock, _ = results(suite, "stock")
        ours, output = results(suite, "ours")
        known = ONLY_OURS.get(suite.__name__, {})

        def fails_here_alone():
            return sorted(name for name in stock if stock[name] and not ours.get(name, False))

        if set(fails_here_alone()) - set(known):
            print(output)
            # Their tests have short time limits: what is broken fails twice.
            again, output = results(suite, "ours")
            ours = {name: passed or ours.get(name, False) for name, passed in again.items()}
        print("%s: %d of %d tests pass with ours, %d with nsqd" % (suite.__name__, sum(ours.values()), len(stock), sum(stock.values())))
        both = sorted(name for name in stock if not stock[name] and not ours.get(name, False))
        nsqd_alone = sorted(name for name in stock if not stock[name] and ours.get(name, False))
        for what, names in (("both", both), ("ours alone", fails_here_alone()), ("nsqd alone", nsqd_alone)):
            for name in names:
                print("  fails with %s: %s%s" % (what, name, ": %s" % known[name] if name in known else ""))
        self.assertEqual(sorted(set(fails_here_alone()) - set(known)), [], "they pass with nsqd:\n%s" % output)

    def test_go_nsq(self):
        self.compare(go_nsq)

    def test_nsqjs(self):
        self.compare(nsqjs)

    def test_gnsq(self):
        self.compare(gnsq)


if __name__ == "__main__":
    unittest.main()
