"""pynsq by remote control; README.md has the protocol."""

import asyncio
import base64
import json
import logging
import ssl
import sys
import threading

import nsq

logging.disable(logging.CRITICAL)


def tell(**line):
    print(json.dumps(line), flush=True)


def config(options):
    asked = {"snappy": options.get("snappy", False)}
    if "deflate" in options:
        asked.update(deflate=True, deflate_level=options["deflate"])
    if "auth" in options:
        asked["auth_secret"] = options["auth"]
    if "timeout_ms" in options:
        asked["msg_timeout"] = options["timeout_ms"]
    if "tls" in options:
        files = options["tls"]
        asked.update(tls_v1=True, tls_options={
            "ca_certs": files["ca"], "cert_reqs": ssl.CERT_REQUIRED, "certfile": files["cert"], "keyfile": files["key"]})
    return asked


class Client:
    def __init__(self):
        self.held = {}

    async def connect(self, request):
        self.writer = nsq.Writer([request["address"]], **config(request.get("options", {})))
        for _ in range(250):
            if any(conn.state == "CONNECTED" for conn in self.writer.conns.values()):
                return
            await asyncio.sleep(0.02)
        raise RuntimeError("not connected within 5 s")

    async def publish(self, request):
        topic, bodies = request["topic"], [base64.b64decode(body) for body in request["bodies"]]
        done = asyncio.get_running_loop().create_future()

        def callback(conn, data):
            if not done.done():
                done.set_result(data)

        if "delay_ms" in request:
            self.writer.dpub(topic, request["delay_ms"], bodies[0], callback=callback)
        elif len(bodies) == 1:
            self.writer.pub(topic, bodies[0], callback=callback)
        else:
            self.writer.mpub(topic, bodies, callback=callback)
        answer = await asyncio.wait_for(done, 10)
        if answer != b"OK":
            raise RuntimeError(repr(answer))

    async def subscribe(self, request):
        def take(message):
            message.enable_async()
            name = message.id.decode()
            self.held[name] = message
            tell(message=name, attempts=message.attempts, body=base64.b64encode(message.body).decode())
            if request.get("finishes"):
                self.answer({"do": "finish", "id": name})

        self.reader = nsq.Reader(
            request["topic"], request["channel"], message_handler=take, max_tries=0, max_in_flight=request["in_flight"],
            nsqd_tcp_addresses=request.get("addresses", []), lookupd_poll_interval=1, lookupd_poll_jitter=0.0,
            lookupd_http_addresses=["http://" + lookup for lookup in request.get("lookups", [])], **config(request.get("options", {})))

    def answer(self, request):
        message = self.held[request["id"]]
        if request["do"] == "touch":
            return message.touch()
        del self.held[request["id"]]
        if request["do"] == "finish":
            message.finish()
        else:
            message.requeue(backoff=False, time_ms=request.get("delay_ms", 0))

    async def do(self, request):
        what = request["do"]
        if what in ("connect", "publish", "subscribe"):
            await getattr(self, what)(request)
        elif what == "leave":
            self.reader.close()
        else:
            self.answer(request)


async def main():
    client, loop, lines = Client(), asyncio.get_running_loop(), asyncio.Queue()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        try:
            await client.do(json.loads(line))
            tell(ok=True)
        except Exception as error:
            tell(error=repr(error))


asyncio.run(main())
