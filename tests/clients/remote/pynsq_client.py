"""pynsq by remote control; README.md has the protocol."""

import asyncio
import base64
import json
import sys
import threading

import nsq

import control
from control import Held, tell


def config(request):
    return control.config(request.get("options", {}), str, "msg_timeout")


class Client:
    def __init__(self):
        self.held = Held(lambda message, delay_ms: message.requeue(backoff=False, time_ms=delay_ms))

    async def connect(self, request):
        self.writer = nsq.Writer([request["address"]], **config(request))
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
            self.held.take(message, request.get("finishes"))

        self.reader = nsq.Reader(
            request["topic"], request["channel"], message_handler=take, max_tries=0, max_in_flight=request["in_flight"],
            nsqd_tcp_addresses=request.get("addresses", []), lookupd_poll_interval=1, lookupd_poll_jitter=0.0,
            lookupd_http_addresses=["http://" + lookup for lookup in request.get("lookups", [])], **config(request))

    async def do(self, request):
        what = request["do"]
        if what in ("connect", "publish", "subscribe"):
            await getattr(self, what)(request)
        elif what == "leave":
            self.reader.close()
        else:
            self.held.answer(request)


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
