"""What the Python libraries under remote control share: the lines that are printed, the options, messages that are held."""

import base64
import json
import logging
import ssl

logging.disable(logging.CRITICAL)


def tell(**line):
    print(json.dumps(line), flush=True)


def config(options, auth, timeout):
    """The library's keywords for the options of a request. `auth`: makes its secret of a text; `timeout`: its word for the message timeout."""
    asked = {"snappy": options.get("snappy", False)}
    if "deflate" in options:
        asked.update(deflate=True, deflate_level=options["deflate"])
    if "auth" in options:
        asked["auth_secret"] = auth(options["auth"])
    if "timeout_ms" in options:
        asked[timeout] = options["timeout_ms"]
    if "tls" in options:
        files = options["tls"]
        asked.update(tls_v1=True, tls_options={
            "ca_certs": files["ca"], "cert_reqs": ssl.CERT_REQUIRED, "certfile": files["cert"], "keyfile": files["key"]})
    return asked


class Held:
    """Messages that came and are not answered, by id. `requeue`: what the library does for a message and a delay."""

    def __init__(self, requeue):
        self.requeue, self.messages = requeue, {}

    def take(self, message, finishes):
        message.enable_async()
        name = message.id.decode()
        self.messages[name] = message
        tell(message=name, attempts=message.attempts, body=base64.b64encode(message.body).decode())
        if finishes:
            self.answer({"do": "finish", "id": name})

    def answer(self, request):
        if request["do"] == "touch":
            return self.messages[request["id"]].touch()
        message = self.messages.pop(request["id"])
        if request["do"] == "finish":
            message.finish()
        else:
            self.requeue(message, request.get("delay_ms", 0))
