"""go-nsq, nsqjs, pynsq and gnsq, as their users have them, in a cluster of three nodes with an etcd: they publish at a node that leads
nothing, and consume there or by lookup at one that survives, while the leader is killed."""

import asyncio
import logging
import time
import unittest

import gevent
import gnsq
import nsq

from remote import Refused, Remote
from server import EtcdCluster

TOPIC = "orders"
LIMIT = 60
# The libraries log every end of a connection; what matters is asserted.
logging.disable(logging.CRITICAL)


def bodies(name, count=50):
    return [b"%s %d" % (name, n) for n in range(count)]


class InACluster(unittest.TestCase):
    """A cluster whose topic has one partition: one node leads, two lead nothing."""

    def setUp(self):
        self.cluster = EtcdCluster()
        self.addCleanup(self.cluster.close)
        self.leader = self.cluster.lead_topic(TOPIC)
        self.others = [member for member in self.cluster.members if member is not self.leader]
        # One that leads nothing and is never killed: every node answers for all.
        self.lookups = [self.cluster.lookup(self.others[1])]


class Gnsq(InACluster):
    def publish(self, producer, name):
        """Those that were acknowledged; an error says that one was not, or that nobody knows."""
        acknowledged = []
        for body in bodies(name):
            try:
                producer.publish(TOPIC, body, timeout=20)
            except Exception:
                gevent.sleep(0.1)
            else:
                acknowledged.append(body)
        self.assertTrue(acknowledged, name)
        return acknowledged

    def wait_for(self, seen, wanted):
        deadline = time.monotonic() + LIMIT
        while not set(wanted) <= set(seen):
            self.assertLess(time.monotonic(), deadline, "%d of %d came" % (len(seen), len(wanted)))
            gevent.sleep(0.02)

    def over_a_failover(self, **where):
        seen = []
        consumer = gnsq.Consumer(TOPIC, "c", max_in_flight=30, max_tries=0, max_backoff_duration=1,
                                 message_handler=lambda consumer, message: seen.append(message.body), **where)
        consumer.start(block=False)
        self.addCleanup(lambda: (consumer.close(), consumer.join(timeout=5)))
        producer = gnsq.Producer([self.others[0].tcp], max_backoff_duration=1)
        producer.start()
        self.addCleanup(lambda: (producer.close(), producer.join(timeout=5)))
        acknowledged = self.publish(producer, b"before")
        self.wait_for(seen, acknowledged)
        self.leader.kill()
        acknowledged += self.publish(producer, b"meanwhile")
        self.wait_for(seen, acknowledged)
        self.leader.start()
        acknowledged += self.publish(producer, b"after")
        self.wait_for(seen, acknowledged)

    def test_publish_at_a_node_that_leads_nothing_and_consume_by_lookup(self):
        self.over_a_failover(lookupd_http_addresses=self.lookups, lookupd_poll_interval=1)

    def test_publish_and_consume_at_nodes_that_lead_nothing(self):
        self.over_a_failover(nsqd_tcp_addresses=[self.others[1].tcp])


class Pynsq(InACluster, unittest.IsolatedAsyncioTestCase):
    async def asyncTearDown(self):
        for client in self.open:
            for conn in list(client.conns.values()):
                conn.close()
        await asyncio.sleep(0.05)

    async def publish(self, writer, name):
        acknowledged = []
        for body in bodies(name):
            answer = asyncio.get_running_loop().create_future()
            try:
                writer.pub(TOPIC, body, callback=lambda conn, data: answer.done() or answer.set_result(data))
                told = await asyncio.wait_for(answer, 20)
            except Exception as error:
                told = error
            if told == b"OK":
                acknowledged.append(body)
            else:
                await asyncio.sleep(0.1)
        self.assertTrue(acknowledged, name)
        return acknowledged

    async def wait_for(self, seen, wanted):
        deadline = time.monotonic() + LIMIT
        while not set(wanted) <= set(seen):
            self.assertLess(time.monotonic(), deadline, "%d of %d came" % (len(seen), len(wanted)))
            await asyncio.sleep(0.02)

    async def over_a_failover(self, **where):
        seen = []

        def handler(message):
            seen.append(message.body)
            return True

        self.open = [nsq.Reader(TOPIC, "c", message_handler=handler, max_tries=0, max_in_flight=30, **where)]
        writer = nsq.Writer([self.others[0].tcp], reconnect_interval=0.3)
        self.open.append(writer)
        deadline = time.monotonic() + LIMIT
        while not writer.conns:
            self.assertLess(time.monotonic(), deadline, "the writer connects")
            await asyncio.sleep(0.02)
        acknowledged = await self.publish(writer, b"before")
        await self.wait_for(seen, acknowledged)
        self.leader.kill()
        acknowledged += await self.publish(writer, b"meanwhile")
        await self.wait_for(seen, acknowledged)
        self.leader.start()
        acknowledged += await self.publish(writer, b"after")
        await self.wait_for(seen, acknowledged)

    async def test_publish_at_a_node_that_leads_nothing_and_consume_by_lookup(self):
        await self.over_a_failover(lookupd_http_addresses=self.lookups, lookupd_poll_interval=1)

    async def test_publish_and_consume_at_nodes_that_lead_nothing(self):
        await self.over_a_failover(nsqd_tcp_addresses=[self.others[1].tcp])


class ByRemoteControl(InACluster):
    """Libraries in a process of their own."""

    def publish(self, library, name):
        """Those that were acknowledged. A client that an error ended is followed by another one."""
        acknowledged, producer = [], None
        for body in bodies(name):
            try:
                if producer is None:
                    producer = Remote(library)
                    producer.connect(self.others[0].tcp)
                producer.publish(TOPIC, body)
            except Refused:
                producer.close()
                producer = None
                time.sleep(0.1)
            else:
                acknowledged.append(body)
        if producer:
            producer.close()
        self.assertTrue(acknowledged, name)
        return acknowledged

    def over_a_failover(self, library, **where):
        with Remote(library) as consumer:
            consumer.subscribe(TOPIC, "c", **where)
            acknowledged = self.publish(library, b"before")
            self.wait_for(consumer, acknowledged)
            self.leader.kill()
            acknowledged += self.publish(library, b"meanwhile")
            self.wait_for(consumer, acknowledged)
            self.leader.start()
            acknowledged += self.publish(library, b"after")
            self.wait_for(consumer, acknowledged)

    def addresses(self):
        return [lookup.removeprefix("http://") for lookup in self.lookups]

    def wait_for(self, consumer, wanted):
        consumer.until(lambda: set(wanted) <= {message.body for message in consumer.messages}, "all messages", LIMIT)

    def test_go_nsq_publishes_at_a_node_that_leads_nothing_and_consumes_by_lookup(self):
        self.over_a_failover("go-nsq", lookups=self.addresses())

    def test_go_nsq_publishes_and_consumes_at_nodes_that_lead_nothing(self):
        self.over_a_failover("go-nsq", addresses=[self.others[1].tcp])

    def test_nsqjs_publishes_at_a_node_that_leads_nothing_and_consumes_by_lookup(self):
        self.over_a_failover("nsqjs", lookups=self.addresses())

    def test_nsqjs_publishes_and_consumes_at_nodes_that_lead_nothing(self):
        self.over_a_failover("nsqjs", addresses=[self.others[1].tcp])


# It has no tests of its own.
del InACluster

if __name__ == "__main__":
    unittest.main()
