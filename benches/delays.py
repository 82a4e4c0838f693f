#!/usr/bin/env python3
"""What deferred messages cost: published with delays drawn at random, kept in memory, and handed out when a crowd of them falls due at once.

    benches/delays.py                                # 1,000,000 messages of 100 B, 5 rounds of publishing
    benches/delays.py --messages=10000000 --rounds=1
    benches/delays.py --messages=100000 --depth=1    # one DPUB at a time: each is a batch of its own
    benches/delays.py --messages=400000 --depth=1 --connections=64
    NSQD=/path/to/nsqd benches/delays.py             # nsqd in the same run (its longest delay is set to 30 days)

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`). Each server starts on an empty data path below --folder, with
one shard and else with its defaults; a consumer is connected, so that the channel has put off everything.
- publishing: DPUBs of 100 B, --depth of them at a time on each of --connections, with delays from an hour to 30 days; in turn with as many PUBs.
  `deferred/undeferred` is the ratio of the rates. This client is Python on one CPU, and bounds both.
- memory: of the process once all are put off; `growth` is per deferred message, from before the first.
- in time: --paced messages of another topic that fall due one by one over ten seconds; how late each comes.
- a crowd: --crowd messages that fall due in one second, while another topic has one message at a time go round. `late` is when the last of the
  crowd came, after its time; the other topic's round trips, measured by a process of its own, are given before and during it.
"""
import argparse, multiprocessing, os, random, statistics, struct, tempfile, time
from servers import Client, commands, create, peak, resident, started

BODY = b"x" * 100
HOUR_MS, MONTH_MS = 3_600_000, 30 * 24 * 3_600_000


def publish(clients, topic, count, depth, delay_ms, body=lambda: BODY):
    """Messages per second; `delay_ms` of None: not deferred."""
    begun, left = time.monotonic(), count
    while left:
        sent = []
        for client in clients:
            batch = []
            for _ in range(min(depth, left - sum(sent))):
                head = b"PUB %s\n" % topic if delay_ms is None else b"DPUB %s %d\n" % (topic, delay_ms())
                payload = body()
                batch.append(head + struct.pack(">i", len(payload)) + payload)
            sent.append(len(batch))
            client.wire.sendall(b"".join(batch))
        for client, owed in zip(clients, sent):
            while owed:
                for kind, payload in client.frames():
                    assert kind == 0, payload
                    owed -= payload == b"OK"
                    if payload == b"_heartbeat_":
                        client.wire.sendall(b"NOP\n")
        left -= sum(sent)
    return count / (time.monotonic() - begun)


def drain(client, count):
    """Finishes `count` messages; when the last one came."""
    while count:
        answers = []
        for kind, payload in client.frames():
            answers.append(b"FIN %s\n" % payload[10:26] if kind == 2 else b"NOP\n")
            count -= kind == 2
        client.wire.sendall(b"".join(answers))
    return time.time()


def round_trips(port, until, found, is_first):
    """Milliseconds from a PUB to the message, one after the other. A process of its own: in a thread it would wait for Python's lock."""
    if is_first:
        os.nice(-19)
    client, publisher, trips = Client(port), Client(port), []
    client.ok(b"SUB other ch\n")
    client.wire.sendall(b"RDY 1\n")
    while not until.is_set():
        begun = time.monotonic()
        publish([publisher], b"other", 1, 1, None)
        drain(client, 1)
        trips.append((time.time(), 1000 * (time.monotonic() - begun)))
        time.sleep(0.005)
    found.put(trips)


def paced(server, options):
    """Milliseconds by which each message came late; one that is early is below zero."""
    create(server.http, "paced")
    client, due, late = Client(server.tcp), [], []
    client.ok(b"SUB paced ch\n")
    client.wire.sendall(b"RDY 2500\n")

    def delay():
        ms = random.randrange(2_000, 12_000)
        due.append(time.time() + ms / 1000)
        return ms

    # The due time is the node's clock when the command comes: no earlier than this.
    publish([Client(server.tcp)], b"paced", options.paced, 100, delay, lambda: b"%.6f" % due[-1])
    while len(late) < options.paced:
        answers = []
        for kind, payload in client.frames():
            if kind == 2:
                late.append(1000 * (time.time() - float(payload[26:])))
            answers.append(b"FIN %s\n" % payload[10:26] if kind == 2 else b"NOP\n")
        client.wire.sendall(b"".join(answers))
    return sorted(late)


def crowd(server, options):
    create(server.http, "crowd")
    create(server.http, "other")
    client = Client(server.tcp)
    client.ok(b"SUB crowd ch\n")
    client.wire.sendall(b"RDY 2500\n")
    # Long enough for all to be published before.
    due = time.time() + 5 + options.crowd / 20_000
    publish([Client(server.tcp)], b"crowd", options.crowd, 500, lambda: int(1000 * (due - time.time() + random.random())))
    over, found = multiprocessing.Event(), multiprocessing.Queue()
    other = multiprocessing.Process(target=round_trips, args=(server.tcp, over, found, options.first))
    other.start()
    last = drain(client, options.crowd)
    time.sleep(0.1)
    over.set()
    trips = found.get()
    other.join()
    before = [ms for at, ms in trips if at < due]
    during = [ms for at, ms in trips if due <= at <= last]
    return last - due - 1, before, during


def measure(name, command, options):
    more = ["-max-req-timeout=720h"] if name == "nsqd" else []
    with started(command, options.folder, *more) as server:
        create(server.http, "later")
        create(server.http, "now")
        client = Client(server.tcp)
        client.ok(b"SUB later ch\n")
        client.wire.sendall(b"RDY 1\n")
        before, ratios, rates = resident(server.pid), [], []
        each, clients = options.messages // options.rounds, [Client(server.tcp) for _ in range(options.connections)]
        for _ in range(options.rounds):
            deferred = publish(clients, b"later", each, options.depth, lambda: random.randrange(HOUR_MS, MONTH_MS))
            undeferred = publish(clients, b"now", min(each, 200_000), options.depth, None)
            rates.append(deferred)
            ratios.append(deferred / undeferred)
        time.sleep(2)
        grown, most = resident(server.pid) - before, peak(server.pid)
        print(
            f"{name:5} published {statistics.median(rates):,.0f} deferred/s, deferred/undeferred {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}); {resident(server.pid) / 2**20:.0f} MiB, at most {most / 2**20:.0f}, "
            f"growth {grown / options.messages:.1f} B each"
        )
        if options.paced:
            late = paced(server, options)
            at = lambda share: late[min(int(share * len(late)), len(late) - 1)]
            print(f"{name:5} in time: late by {at(0.5):.1f} ms (median), {at(0.99):.1f} (99 %), {late[-1]:.1f} (most); least {late[0]:.1f}")
        if options.crowd:
            late, calm, busy = crowd(server, options)
            at = lambda ms, share: sorted(ms)[min(int(share * len(ms)), len(ms) - 1)]
            show = lambda ms: f"{at(ms, 0.5):.1f} ms (99 %: {at(ms, 0.99):.1f}, at most {max(ms):.1f})" if ms else "none"
            print(f"{name:5} crowd of {options.crowd:,}: last {late:.2f} s late; round trips of another topic {show(calm)}, then {show(busy)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=100, help="publishes that are sent before their answers are read")
    parser.add_argument("--connections", type=int, default=1, help="that publish")
    parser.add_argument("--paced", type=int, default=5_000, help="0: none")
    parser.add_argument("--crowd", type=int, default=1_000_000, help="0: none")
    parser.add_argument("--first", action="store_true", help="server and round trips go before other work of a busy machine (nice -19; needs root)")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    for name, command in commands().items():
        measure(name, ["nice", "-n", "-19"] * options.first + command, options)


main()
