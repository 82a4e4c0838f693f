"""A CA, a node's certificate and a client's, made by openssl."""

import os
import shutil
import subprocess
import tempfile


# With a certificate a node listens on the one default port for HTTPS, unless it is told otherwise.
ANY_HTTPS_PORT = ["--https-address=127.0.0.1:0"]


class Pki:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="pki-", dir=os.environ["RINGMQ_TEST_FOLDER"])
        self._run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
                  "-subj", "/CN=test CA")
        for name, usage in (("node", "serverAuth"), ("client", "clientAuth")):
            with open(self.path(name + ".ext"), "w") as file:
                file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%s\n" % usage)
            self.renew(name)

    def renew(self, name):
        """Another key and certificate of that name, in the same files."""
        self._run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key", "-out", name + ".csr",
                  "-subj", "/CN=the %s" % name)
        self._run("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                  "-out", name + ".pem", "-days", "2", "-extfile", name + ".ext")

    def _run(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def flags(self):
        return ["--tls-cert=" + self.path("node.pem"), "--tls-key=" + self.path("node.key"),
                "--tls-root-ca-file=" + self.path("ca.pem")]

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
