"""The connection itself: a kubeconfig whose credentials can not be had, and answers that never end."""

import json
import socket
import threading

import pytest
import yaml

from orchestrate.backends import kubernetes_client
from orchestrate.backends.kubernetes_api import Api
from orchestrate.backends.kubernetes_client import NO_ANSWER, ApiError, connect
from orchestrate.backends.kubernetes_preflight import refused_by
from orchestrate.errors import BackendError, UnsatisfiableError


@pytest.fixture
def environ(tmp_path):
    """`environ(user)` names a kubeconfig of a server with such a user."""

    def make(user, server="http://127.0.0.1:9"):
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))  # fmt: skip
        return {"KUBECONFIG": str(path)}

    return make


def plugin(script):
    """A user whose token a program gives."""
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": "/bin/sh", "args": ["-c", script], "interactiveMode": "Never"}}


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo the session is over, log in >&2; exit 1", "the session is over, log in"), ("echo hello", "decode")],
)
def test_a_credential_plugin_that_fails_is_said_in_its_own_words_and_nobody_is_asked(environ, script, words):
    with pytest.raises(BackendError, match=words) as caught:
        connect(None, environ(plugin(script)))
    assert not isinstance(caught.value, UnsatisfiableError)
    assert "log in" in caught.value.remedy


def test_a_credential_plugin_that_hangs_is_not_waited_for(environ, monkeypatch):
    monkeypatch.setattr(kubernetes_client, "_CREDENTIALS_S", 0.3)
    with pytest.raises(BackendError, match="did not end within"):
        connect(None, environ(plugin("exec sleep 20")))


def test_a_token_that_can_not_be_renewed_is_said_beside_the_refusal(environ, tmp_path, site):
    """The plugin gives a token that has expired already, and then fails."""
    status = {"token": "old", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    once = f"mkdir {tmp_path}/asked 2>/dev/null || {{ echo no session >&2; exit 1; }}; echo '{answer}'"
    transport = connect(None, environ(plugin(once), site.bed.url))
    with pytest.raises(ApiError, match="no session") as caught:
        transport.send("GET", "/api/v1/nodes", {}, None, 10)
    assert caught.value.status == 401
    assert "log in again" in refused_by(caught.value, {}, "here").remedy


@pytest.mark.parametrize("text", ["- a\n- b\n", "a", "kind: Config\ncurrent-context: c\ncontexts: 3\n"])
def test_a_kubeconfig_of_another_shape_is_said_with_its_remedy(tmp_path, text):
    (tmp_path / "config").write_text(text)
    with pytest.raises(UnsatisfiableError, match="no Kubernetes cluster is configured") as caught:
        connect(None, {"KUBECONFIG": str(tmp_path / "config")})
    assert "KUBECONFIG" in caught.value.remedy


def test_an_answer_that_trickles_for_ever_is_not_waited_for(environ):
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not over.wait(0.1):
                    peer.sendall(b" ")

        thread = threading.Thread(target=serve)
        thread.start()
        transport = connect(None, environ({"token": "t"}, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        try:
            with pytest.raises(ApiError, match="did not end within") as caught:
                Api(transport).get("/version", Api(transport).budget(1), tries=1)
        finally:
            over.set()
            thread.join()
    assert caught.value.status == NO_ANSWER


@pytest.mark.parametrize(("header", "seconds"), [("-5", 0.0), ("nan", 0.0), ("inf", 86400.0), ("7", 7.0)])
def test_a_wish_to_wait_is_a_time_that_can_be_waited(header, seconds):
    class Refusal:
        status, reason, body, headers = 429, "Too Many Requests", "", {"Retry-After": header}

    assert kubernetes_client._refusal(Refusal()).retry_after_s == seconds
