#!/usr/bin/env python3
"""What statistics of many topics cost: the time of an answer, and what publishers notice of it.

    benches/scrape.py                       # 1,000 topics with 3 channels each, 20 answers of each kind

The binary is RINGMQ, or else target/release/ringmq (`cargo build --release`); it starts on an empty data path below --folder, with two
shards and else with its defaults. `publish` is one PUB at a time on one connection, first alone, then while /metrics is asked for without a
pause. `stalls` are turns of a core longer than --stall-log.
"""
import argparse, http.client, json, statistics, tempfile, threading, time
from servers import Client, commands, create, started


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse().read()
    return answer


def times(connection, path, count):
    found = []
    for _ in range(count):
        begun = time.monotonic()
        length = len(ask(connection, path))
        found.append(1000 * (time.monotonic() - begun))
        time.sleep(0.05)
    return length, found


def publishes(client, count):
    found = []
    for _ in range(count):
        begun = time.monotonic()
        client.ok(b"PUB t0\n\0\0\0\3abc")
        found.append(1000 * (time.monotonic() - begun))
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    with started(commands()["node"], options.folder, "--shards=2") as server:
        for topic in range(options.topics):
            for channel in range(options.channels):
                create(server.http, f"t{topic}", f"c{channel}")
        connection = http.client.HTTPConnection("127.0.0.1", server.http)
        for path in ("/metrics", "/stats?format=json", "/stats"):
            length, found = times(connection, path, options.answers)
            print(f"{path:19} {length:9,} B, median {statistics.median(found):5.1f} ms ({min(found):.1f} to {max(found):.1f})")
        client, over = Client(server.tcp), threading.Event()

        def scrape():
            other = http.client.HTTPConnection("127.0.0.1", server.http)
            while not over.is_set():
                ask(other, "/metrics")

        calm = publishes(client, 500)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        busy = publishes(client, 500)
        over.set()
        scraper.join()
        show = lambda found: f"median {found[250]:.2f} ms, 99 % {found[495]:.2f}, most {found[-1]:.2f}"
        print(f"publish: {show(calm)}; while /metrics is asked for: {show(busy)}")
        cores = json.loads(ask(connection, "/stats?format=json"))["cores"]
        print(f"stalls {sum(core['turns']['stalls'] for core in cores)}, longest turn {max(core['turns']['max_us'] for core in cores) / 1000:.1f} ms")


main()
