"""The same over TLS, as every real cluster is asked: requests and commands, with the cluster's own authority."""

import base64
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest
import yaml

from orchestrate.backends.kubernetes_api import Api
from orchestrate.backends.kubernetes_client import ApiError, connect


class TlsFront:
    """Ends TLS in front of a plain server; sends what it reads in one record where it can."""

    def __init__(self, certificate, key, port):
        self.port = port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain):
        with (
            suppress(OSError),
            self.context.wrap_socket(plain, server_side=True) as front,
            socket.create_connection(("127.0.0.1", self.port)) as back,
        ):
            threading.Thread(target=self._copy, args=(front, back), daemon=True).start()
            self._copy(back, front)

    @staticmethod
    def _copy(source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def secured(site, bed, tmp_path):
    """A kubeconfig that leads to the bed over TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bed",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    front = TlsFront(certificate, key, int(bed.url.rpartition(":")[2]))
    tree = yaml.safe_load(bed.kubeconfig.read_text())
    tree["clusters"][0]["cluster"] = {
        "server": front.url,
        "certificate-authority-data": base64.b64encode(certificate.read_bytes()).decode(),
    }
    path = tmp_path / "tls.kubeconfig"
    path.write_text(yaml.safe_dump(tree))
    yield path
    front.close()


@pytest.fixture
def over_tls(site, secured, monkeypatch):
    monkeypatch.setattr(type(site), "environ", {"KUBECONFIG": str(secured)})
    return site


def test_a_run_over_tls_brings_its_evidence_home(over_tls):
    backend, request = over_tls.started('(evidence / "big").write_bytes(os.urandom(3_000_000))\nsys.exit(0)')
    status, progress = over_tls.ended(backend)
    assert (status.exit_code, status.fault) == (0, None)
    assert [event["event"] for event in progress] == ["node-started"]
    assert backend.collect(request).problem is None
    assert (request.evidence / "big").stat().st_size == 3_000_000
    backend.release()
    assert backend.census().is_clean


def test_a_server_with_another_authority_is_not_believed(secured):
    tree = yaml.safe_load(secured.read_text())
    del tree["clusters"][0]["cluster"]["certificate-authority-data"]
    secured.write_text(yaml.safe_dump(tree))
    api = Api(connect(None, {"KUBECONFIG": str(secured)}), sleep=lambda _seconds: None)
    with pytest.raises(ApiError, match="certificate"):
        api.get("/version", api.budget(10))
