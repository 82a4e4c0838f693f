"""gnsq by remote control; README.md has the protocol."""

import gevent.monkey

gevent.monkey.patch_all()

import base64
import json
import logging
import ssl
import sys

import gnsq
from gevent.fileobject import FileObject

logging.disable(logging.CRITICAL)


def tell(**line):
    print(json.dumps(line), flush=True)


def config(options):
    asked = {"snappy": options.get("snappy", False)}
    if "deflate" in options:
        asked.update(deflate=True, deflate_level=options["deflate"])
    if "auth" in options:
        asked["auth_secret"] = options["auth"].encode()
    if "timeout_ms" in options:
        asked["message_timeout"] = options["timeout_ms"]
    if "tls" in options:
        files = options["tls"]
        asked.update(tls_v1=True, tls_options={
            "ca_certs": files["ca"], "cert_reqs": ssl.CERT_REQUIRED, "certfile": files["cert"], "keyfile": files["key"]})
    return asked


class Client:
    def __init__(self):
        self.held = {}

    def connect(self, request):
        # Not its Producer, which takes the OK of a layer for the answer to a publish.
        host, port = request["address"].split(":")
        self.producer = gnsq.NsqdTCPClient(host, int(port), **config(request.get("options", {})))
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
            message.enable_async()
            name = message.id.decode()
            self.held[name] = message
            tell(message=name, attempts=message.attempts, body=base64.b64encode(message.body).decode())
            if request.get("finishes"):
                self.answer({"do": "finish", "id": name})

        self.consumer = gnsq.Consumer(
            request["topic"], request["channel"], request.get("addresses", []),
            ["http://" + lookup for lookup in request.get("lookups", [])], max_tries=0, max_in_flight=request["in_flight"],
            lookupd_poll_interval=1, lookupd_poll_jitter=0, message_handler=take, **config(request.get("options", {})))
        self.consumer.start(block=False)

    def answer(self, request):
        message = self.held[request["id"]]
        if request["do"] == "touch":
            return message.touch()
        del self.held[request["id"]]
        if request["do"] == "finish":
            message.finish()
        else:
            message.requeue(request.get("delay_ms", 0), backoff=False)

    def do(self, request):
        what = request["do"]
        if what in ("connect", "publish", "subscribe"):
            getattr(self, what)(request)
        elif what == "leave":
            self.consumer.close()
            self.consumer.join(timeout=5)
        else:
            self.answer(request)


client = Client()
for line in FileObject(sys.stdin.buffer, "rb"):
    try:
        client.do(json.loads(line))
        tell(ok=True)
    except Exception as error:
        tell(error=repr(error))
