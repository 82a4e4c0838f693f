#!/usr/bin/env python3
"""What messages that are put off cost the others: one consumer finishes 200,000 messages, or requeues every second one for 60 s and
finishes the rest, on a RingMQ node beside nsqd, in one run on one machine.

    NSQD=/path/to/nsqd benches/gaps.py             # 5 rounds
    NSQD=... benches/gaps.py --rounds=3 --messages=100000

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`); without NSQD the node is measured alone. In each round each
server starts on an empty data path below --folder, with one shard and else with its defaults. For each case, 100 B messages are published by
MPUB of 1,000 on a topic with a channel, and the clock runs from RDY 2500 until the last one was answered. This client is Python on one CPU,
and is what bounds the node's rate. `growth` is resident memory over that time.
"""
import argparse, statistics, sys, tempfile, time
from servers import Client, commands, create, publish, resident, started

CASES = {"all finished": False, "half put off": True}


def consume(client, count, half):
    """Seconds."""
    begun, got = time.monotonic(), 0
    client.wire.sendall(b"RDY 2500\n")
    while got < count:
        answers = []
        for kind, payload in client.frames():
            if kind == 2:
                put_off = int(payload[26:]) % 2 == 0 and half
                answers.append(b"REQ %s 60000\n" % payload[10:26] if put_off else b"FIN %s\n" % payload[10:26])
                got += 1
            elif payload == b"_heartbeat_":
                answers.append(b"NOP\n")
            else:
                sys.exit(f"gaps.py: unexpected: {kind} {payload[:80]}")
        client.wire.sendall(b"".join(answers))
    return time.monotonic() - begun


def measure(command, options):
    """Rate and growth of each case, of one server on an empty data path."""
    with started(command, options.folder) as server:
        found = {}
        for case, half in CASES.items():
            topic = "half" if half else "all"
            create(server.http, topic)
            publish(Client(server.tcp), topic.encode(), options.messages)
            time.sleep(1)
            client, before = Client(server.tcp), resident(server.pid)
            client.ok(b"SUB %s ch\n" % topic.encode())
            seconds = consume(client, options.messages, half)
            found[case] = (options.messages / seconds, resident(server.pid) - before)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="a multiple of 1,000")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    servers = commands()
    found = {name: [] for name in servers}
    for nth in range(options.rounds):
        for name in list(servers) if nth % 2 == 0 else reversed(list(servers)):
            found[name].append(measure(servers[name], options))
    for name, rounds in found.items():
        for case in CASES:
            rates, grown = zip(*(r[case] for r in rounds))
            print(
                f"{name:5} {case}: {statistics.median(rates):9,.0f} handed out/s ({min(rates):,.0f} to {max(rates):,.0f}), "
                f"growth {statistics.median(grown) / 2**20:.1f} MiB"
            )
        ratios = [r["half put off"][0] / r["all finished"][0] for r in rounds]
        print(f"{name:5} half put off / all finished: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


main()
