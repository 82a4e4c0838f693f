"""gnsq by remote control; README.md has the protocol."""

import gevent.monkey

gevent.monkey.patch_all()

import base64
import json
import sys

import gnsq
from gevent.fileobject import FileObject

import control
from control import Held, tell


def config(request):
    return control.config(request.get("options", {}), str.encode, "message_timeout")


class Client:
    def __init__(self):
        self.held = Held(lambda message, delay_ms: message.requeue(delay_ms, backoff=False))

    def connect(self, request):
        # Not its Producer, which takes the OK of a layer for the answer to a publish.
        host, port = request["address"].split(":")
        self.producer = gnsq.NsqdTCPClient(host, int(port), **config(request))
        self.producer.connect()
        # with AUTH, where the node asks for it
        self.producer.identify()

    def expect_ok(self):
        data = b"_heartbeat_"
        while data == b"_heartbeat_":
            kind, data = self.producer.read_response()
        if kind != gnsq.protocol.FRAME_TYPE_RESPONSE or data != b"OK":
            raise RuntimeError(repr(data))

    def publish(self, request):
        topic, bodies = request["topic"], [base64.b64decode(body) for body in request["bodies"]]
        if len(bodies) == 1:
            self.producer.publish(topic, bodies[0], request.get("delay_ms"))
        else:
            self.producer.multipublish(topic, bodies)
        self.expect_ok()

    def subscribe(self, request):
        def take(consumer, message):
            self.held.take(message, request.get("finishes"))

        self.consumer = gnsq.Consumer(
            request["topic"], request["channel"], request.get("addresses", []),
            ["http://" + lookup for lookup in request.get("lookups", [])], max_tries=0, max_in_flight=request["in_flight"],
            lookupd_poll_interval=1, lookupd_poll_jitter=0, message_handler=take, **config(request))
        self.consumer.start(block=False)

    def do(self, request):
        what = request["do"]
        if what in ("connect", "publish", "subscribe"):
            getattr(self, what)(request)
        elif what == "leave":
            self.consumer.close()
            self.consumer.join(timeout=5)
        else:
            self.held.answer(request)


client = Client()
for line in FileObject(sys.stdin.buffer, "rb"):
    try:
        client.do(json.loads(line))
        tell(ok=True)
    except Exception as error:
        tell(error=repr(error))
