"""pynsq, as its users have it, against the node."""

import asyncio
import itertools
import logging
import time
import unittest

import nsq

from server import Cluster, Server

NUMBERS = itertools.count()
MSG_TIMEOUT = 1.5
# The library logs every end of a connection as an error; what matters is asserted.
logging.disable(logging.CRITICAL)


async def until(condition, what, limit=20):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %s s: %s" % (limit, what))
        await asyncio.sleep(0.02)


class Seen:
    """Readers of a channel and what came to them."""

    def __init__(self, server, topic, channel, handler=None, **options):
        self.messages = []  # (body, attempts, time)
        self.handler = handler
        options.setdefault("max_in_flight", 50)
        self.reader = nsq.Reader(
            topic, channel, message_handler=self._handle, nsqd_tcp_addresses=[server.tcp], max_tries=0,
            lookupd_poll_interval=1, **options)

    def _handle(self, message):
        self.messages.append((message.body, message.attempts, time.monotonic()))
        return self.handler(message) if self.handler else True

    def bodies(self):
        return [body for body, _, _ in self.messages]

    async def expect(self, bodies, what="all messages", limit=20):
        await until(lambda: len(self.messages) >= len(bodies), what, limit)
        if sorted(self.bodies()) != sorted(bodies):
            raise AssertionError("%s: %r" % (what, self.bodies()))


class Pynsq(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--msg-timeout=%dms" % (MSG_TIMEOUT * 1000))

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    async def asyncSetUp(self):
        self.topic = "pynsq-%d" % next(NUMBERS)
        self.open = []

    async def asyncTearDown(self):
        for client in self.open:
            for conn in list(client.conns.values()):
                conn.close()
        await asyncio.sleep(0.05)

    def reader(self, channel="c", handler=None, server=None, topic=None, **options):
        seen = Seen(server or self.server, topic or self.topic, channel, handler, **options)
        self.open.append(seen.reader)
        return seen

    async def writer(self, server=None, **options):
        options.setdefault("reconnect_interval", 0.3)
        writer = nsq.Writer([(server or self.server).tcp], **options)
        self.open.append(writer)
        await until(lambda: writer.conns, "the writer connects")
        return writer

    @staticmethod
    async def send(method, *args):
        done = asyncio.get_running_loop().create_future()
        method(*args, callback=lambda conn, data: done.done() or done.set_result(data))
        return await asyncio.wait_for(done, 20)

    async def test_publish_and_consume(self):
        writer = await self.writer()
        bodies = [b"message %d" % n for n in range(100)] + [bytes(range(256)) * 1000]
        for body in bodies:
            self.assertEqual(await self.send(writer.pub, self.topic, body), b"OK")
        await self.reader().expect(bodies)
        await until(lambda: self.server.channels(self.topic)["c"]["depth"] == 0, "the channel is empty")

    async def test_multi_publish(self):
        writer = await self.writer()
        bodies = [b"m%d" % n for n in range(500)]
        self.assertEqual(await self.send(writer.mpub, self.topic, bodies), b"OK")
        await self.reader(max_in_flight=200).expect(bodies)

    async def test_http_publish(self):
        self.assertEqual(self.server.post("/pub?topic=" + self.topic, b"one"), "OK")
        self.assertEqual(self.server.post("/mpub?topic=" + self.topic, b"two\nthree\n"), "OK")
        await self.reader().expect([b"one", b"two", b"three"])

    async def test_requeue(self):
        def handler(message):
            if message.attempts == 1:
                message.requeue(time_ms=500, backoff=False)
                return None
            return True

        seen = self.reader(handler=handler)
        writer = await self.writer()
        await self.send(writer.pub, self.topic, b"again")
        await until(lambda: len(seen.messages) == 2, "it comes again")
        (first, second) = seen.messages
        self.assertEqual((first[:2], second[:2]), ((b"again", 1), (b"again", 2)))
        self.assertGreaterEqual(second[2] - first[2], 0.49)
        await until(lambda: self.server.channels(self.topic)["c"]["requeue_count"] == 1, "it is counted")

    async def test_timeout(self):
        kept = []

        def handler(message):
            if message.attempts == 1:
                message.enable_async()
                kept.append(message)
                return None
            return True

        seen = self.reader(handler=handler)
        writer = await self.writer()
        await self.send(writer.pub, self.topic, b"slow")
        await until(lambda: len(seen.messages) == 2, "it comes again after its timeout")
        (first, second) = seen.messages
        self.assertEqual(second[:2], (b"slow", 2))
        self.assertGreaterEqual(second[2] - first[2], MSG_TIMEOUT - 0.02)
        self.assertGreaterEqual(self.server.channels(self.topic)["c"]["timeout_count"], 1)

    async def test_touch(self):
        def handler(message):
            message.enable_async()

            async def work():
                for _ in range(5):
                    await asyncio.sleep(MSG_TIMEOUT * 0.5)
                    message.touch()
                message.finish()

            self.work = asyncio.ensure_future(work())
            return None

        seen = self.reader(handler=handler)
        writer = await self.writer()
        await self.send(writer.pub, self.topic, b"touched")
        await until(lambda: seen.messages, "it comes")
        await self.work
        await asyncio.sleep(MSG_TIMEOUT + 0.5)
        self.assertEqual([m[:2] for m in seen.messages], [(b"touched", 1)])
        self.assertEqual(self.server.channels(self.topic)["c"]["timeout_count"], 0)

    async def test_heartbeats(self):
        seen = self.reader(heartbeat_interval=1)
        writer = await self.writer(heartbeat_interval=1)
        beats = {"reader": 0, "writer": 0}
        await until(lambda: seen.reader.conns, "the reader connects")
        conns = (list(seen.reader.conns.values())[0], list(writer.conns.values())[0])
        conns[0].on("heartbeat", lambda conn: beats.update(reader=beats["reader"] + 1))
        conns[1].on("heartbeat", lambda conn: beats.update(writer=beats["writer"] + 1))
        await asyncio.sleep(4)
        self.assertTrue(3 <= beats["reader"] <= 5 and 3 <= beats["writer"] <= 5, beats)
        self.assertEqual((list(seen.reader.conns.values())[0], list(writer.conns.values())[0]), conns)
        await self.send(writer.pub, self.topic, b"alive")
        await seen.expect([b"alive"])

    async def test_two_channels_each_get_all(self):
        left, right = self.reader("left"), self.reader("right")
        await until(lambda: len(self.server.channels(self.topic)) == 2, "both channels are there")
        writer = await self.writer()
        bodies = [b"%d" % n for n in range(50)]
        await self.send(writer.mpub, self.topic, bodies)
        await left.expect(bodies)
        await right.expect(bodies)

    async def test_two_readers_share_a_channel(self):
        one, two = self.reader(max_in_flight=5), self.reader(max_in_flight=5)
        await until(lambda: one.reader.conns and two.reader.conns, "both are there")
        writer = await self.writer()
        bodies = [b"%d" % n for n in range(400)]
        await self.send(writer.mpub, self.topic, bodies)
        await until(lambda: len(one.messages) + len(two.messages) >= 400, "all messages")
        self.assertEqual(sorted(one.bodies() + two.bodies()), sorted(bodies))
        self.assertTrue(one.messages and two.messages)

    async def test_ephemeral_channel(self):
        seen = self.reader("gone#ephemeral")
        writer = await self.writer()
        await self.send(writer.pub, self.topic, b"x")
        await seen.expect([b"x"])
        self.assertIn("gone#ephemeral", self.server.channels(self.topic))
        seen.reader.close()
        for conn in list(seen.reader.conns.values()):
            conn.close()
        await until(lambda: not self.server.channels(self.topic), "the channel goes with its last client")

    async def test_sample(self):
        seen = self.reader(sample_rate=20, max_in_flight=200)
        await until(lambda: seen.reader.conns, "the reader connects")
        writer = await self.writer()
        for _ in range(4):
            await self.send(writer.mpub, self.topic, [b"s"] * 500)
        await until(lambda: self.server.channels(self.topic)["c"]["depth"] == 0, "the channel is empty")
        await asyncio.sleep(0.5)
        self.assertTrue(200 <= len(seen.messages) <= 700, "%d of 2000 at 20 percent" % len(seen.messages))

    async def test_errors_are_told(self):
        writer = await self.writer()
        answer = await self.send(writer.pub, "bad*name", b"x")
        self.assertIsInstance(answer, nsq.Error)
        self.assertIn("E_BAD_TOPIC", str(answer))

    async def test_kill_and_reconnect(self):
        server = Server("--msg-timeout=5s")
        try:
            seen = self.reader(server=server, topic="kill")
            writer = await self.writer(server)
            before = [b"before %d" % n for n in range(20)]
            for body in before:
                self.assertEqual(await self.send(writer.pub, "kill", body), b"OK")
            await seen.expect(before)
            await asyncio.sleep(0.3)  # the last FINs are durable after at most fin-sync-interval
            server.kill()
            await until(lambda: not writer.conns, "the writer notices")
            server.start()
            await until(lambda: writer.conns, "the writer is back")
            after = [b"after %d" % n for n in range(20)]
            for body in after:
                self.assertEqual(await self.send(writer.pub, "kill", body), b"OK")
            # pynsq's reader waits 15 s before it connects again.
            await seen.expect(before + after, limit=40)
            for client in self.open:
                for conn in list(client.conns.values()):
                    conn.close()
        finally:
            server.close()

    async def test_deferred_publishes_over_a_kill(self):
        server = Server()
        try:
            writer = await self.writer(server)
            due, bodies = {}, [b"deferred %d" % n for n in range(20)]
            for n, body in enumerate(bodies):
                delay_ms = (0, 500, 2000, 4000)[n % 4]
                due[body] = time.time() + delay_ms / 1000
                self.assertEqual(await self.send(writer.dpub, "later", delay_ms, body), b"OK")
            server.kill()
            await until(lambda: not writer.conns, "the writer notices")
            server.start()
            early = []

            def handler(message):
                early.extend([message.body] if time.time() < due[message.body] else [])
                return True

            seen = self.reader(server=server, topic="later", handler=handler)
            await seen.expect(bodies, limit=40)
            self.assertEqual(early, [])
            for client in self.open:
                for conn in list(client.conns.values()):
                    conn.close()
        finally:
            server.close()

    async def test_leader_change(self):
        cluster = Cluster("orders", "--follower-limit=1s", "--replica-write-limit=2s")
        self.addCleanup(cluster.close)
        acknowledged, seen = [], []

        def handler(message):
            seen.append(message.body)
            return True

        # pynsq comes back to a node 15 s after it was refused there.
        self.open.append(nsq.Reader(
            "orders", "c", message_handler=handler, nsqd_tcp_addresses=cluster.addresses(), max_tries=0, max_in_flight=30))

        async def publish(leader, bodies):
            writer = nsq.Writer([cluster.members[leader].tcp], reconnect_interval=0.3)
            self.open.append(writer)
            await until(lambda: writer.conns, "the writer connects")
            for body in bodies:
                self.assertEqual(await self.send(writer.pub, "orders", body), b"OK")
                acknowledged.append(body)

        await publish("a", [b"before %d" % n for n in range(50)])
        await until(lambda: set(acknowledged) <= set(seen), "all that a acknowledged", 60)
        cluster.members["a"].kill()
        cluster.lead("b", "bc")
        cluster.wait_leader("b")
        await publish("b", [b"after %d" % n for n in range(50)])
        await until(lambda: set(acknowledged) <= set(seen), "all, at the next leader", 60)
        self.assertLessEqual(set(seen), set(acknowledged))


if __name__ == "__main__":
    unittest.main()
