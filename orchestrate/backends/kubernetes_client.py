"""The official Kubernetes client, reduced to what a run needs: one HTTP request, and one command in a container.

Nothing here repeats anything: `kubernetes_api` knows what may be asked twice. The client is imported when a connection
is made, because its models take most of a second. Objects are the API's own JSON.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from orchestrate.errors import BackendError, UnsatisfiableError

__all__ = ["NO_ANSWER", "ApiError", "ClientTransport", "Exit", "Transport", "connect"]

NO_ANSWER = 0
"""The status of a request that was not answered: refused, reset, or out of time. It may have acted all the same."""

_TRANSIENT = frozenset({NO_ANSWER, 408, 429, 500, 502, 503, 504})
_CONNECT_S = 5.0
_CREDENTIALS_S = 60.0
"""How long the kubeconfig's credential plugin may take; a person may have to press a button."""

_Made = TypeVar("_Made")


class ApiError(Exception):
    """The API server refused, or did not answer.

    Attributes:
        status: the HTTP status, `NO_ANSWER` where there was none.
        reason: the API's word for it: `NotFound`, `AlreadyExists`, `Conflict`, `Expired`.
        message: the API's sentence.
        retry_after_s: how long the server asks us to wait.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"no answer ({reason}): {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_transient(self) -> bool:
        """Whether asking again can help."""
        return self.status in _TRANSIENT

    @property
    def may_have_acted(self) -> bool:
        """Whether a request that changes something may have done so: only a clear refusal says that it has not."""
        return self.status in {NO_ANSWER, 408, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command in a container ended."""

    code: int
    stderr: str


class Transport(Protocol):
    """A connection to one API server."""

    server: str
    context: str
    namespace: str

    def send(self, method: str, path: str, query: Mapping[str, str], body: Any, timeout_s: float) -> str:
        """The body of a good answer; `ApiError` otherwise."""

    def run(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        write: Callable[[bytes], None],
        timeout_s: float,
    ) -> Exit:
        """Run `command` in a container; its standard output goes to `write`. `ApiError` where it could not be run."""


def connect(context: str | None, environ: Mapping[str, str] | None) -> ClientTransport:
    """A connection by the kubeconfig that `environ` names (the client's default for None), or from inside a pod.

    Raises `UnsatisfiableError` when neither says how to reach a cluster, plain `BackendError` when the kubeconfig's
    credential plugin fails or does not end. Nothing is asked of the server.
    """
    from kubernetes import client, config  # noqa: PLC0415  # most of a second, and only this backend needs it
    from urllib3 import Retry  # noqa: PLC0415  # comes with the client
    from yaml import YAMLError  # noqa: PLC0415

    configuration = client.Configuration()
    configuration.retries = Retry(total=False)  # what may be repeated is decided here, not in the pool
    file = None if environ is None else environ.get("KUBECONFIG") or None

    def load() -> Any:
        contexts = config.list_kube_config_contexts(config_file=file)
        config.load_kube_config(
            config_file=file, context=context, client_configuration=configuration, persist_config=False
        )
        return contexts

    try:
        with _said_by_the_client() as said:
            contexts, active = _within(_CREDENTIALS_S, "the kubeconfig's credential plugin", load)
    except ApiError as error:
        raise BackendError(error.message, remedy=_BY_HAND) from error
    except (config.ConfigException, OSError, YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        if context is None:
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                pass
            else:
                return ClientTransport(configuration, "in-cluster", _pod_namespace())
        raise UnsatisfiableError(
            f"no Kubernetes cluster is configured here: {_words(error)}",
            remedy="point KUBECONFIG at a kubeconfig, and give --context if it has several",
        ) from error
    if said and not configuration.api_key and not configuration.cert_file:
        # The client goes on without credentials, and the server would speak of the rights of an unknown person.
        raise BackendError(f"the kubeconfig's credential plugin failed: {said[-1][:300]}", remedy=_BY_HAND)
    chosen = next((each for each in contexts if each["name"] == context), active) or {}
    namespace = (chosen.get("context") or {}).get("namespace") or "default"
    return ClientTransport(configuration, str(chosen.get("name") or ""), namespace)


_BY_HAND = "log in again, or run the plugin that the kubeconfig names by hand; `kubectl get pods` has to work here"


class ClientTransport:
    """A `Transport` through the official client."""

    def __init__(self, configuration: Any, context: str, namespace: str) -> None:
        from kubernetes import client  # noqa: PLC0415

        self._configuration = configuration
        self._api = client.ApiClient(configuration)
        self.server = str(configuration.host)
        self.context = context
        self.namespace = namespace

    def send(self, method: str, path: str, query: Mapping[str, str], body: Any, timeout_s: float) -> str:
        """One request, never repeated."""
        end = time.monotonic() + timeout_s
        headers, said = _within(timeout_s, "the kubeconfig's credential plugin", self._headers)
        left = max(0.1, end - time.monotonic())
        try:
            if method == "POST":  # left alone after its time it might still create something
                return self._send(method, path, query, body, headers, left)
            return _within(left + _GRACE_S, "an answer", lambda: self._send(method, path, query, body, headers, left))
        except ApiError as error:
            if error.status == _UNAUTHORIZED and said:
                raise ApiError(error.status, error.reason, f"{error.message}; {said[-1][:300]}") from error
            raise

    def _headers(self) -> tuple[dict[str, str], list[str]]:
        """The headers of a request, with a fresh token where the old one has expired; and what was said about that."""
        headers = {"Accept": "application/json", "Content-Type": "application/json", **self._api.default_headers}
        with _said_by_the_client() as said:
            self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers, said

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, headers: dict[str, str], timeout_s: float
    ) -> str:
        from kubernetes.client import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            answer = self._api.request(
                method,
                f"{self.server}{path}",
                query_params=list(query.items()),
                headers=headers,
                body=body,
                _request_timeout=(min(_CONNECT_S, timeout_s), timeout_s),
            )
        except ApiException as error:
            raise _refusal(error) from error
        except UnicodeDecodeError as error:  # a log holds whatever the payload printed
            return bytes(error.object).decode("utf-8", "replace")
        except (HTTPError, OSError) as error:
            raise ApiError(NO_ANSWER, type(error).__name__, _words(error)) from error
        return str(answer.data)

    def run(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        write: Callable[[bytes], None],
        timeout_s: float,
    ) -> Exit:
        """One command over a websocket; the library connects without any limit of its own."""
        end = time.monotonic() + timeout_s
        work = lambda: self._run(namespace, pod, container, command, write, end)  # noqa: E731
        return _within(timeout_s + _GRACE_S, f"a command in pod {pod}", work)

    def _run(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        write: Callable[[bytes], None],
        end: float,
    ) -> Exit:
        from kubernetes import client  # noqa: PLC0415
        from kubernetes.stream import stream  # noqa: PLC0415

        # `stream` replaces a method of the ApiClient while it connects: it gets one of its own.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        try:
            connection = stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                namespace,
                container=container,
                command=list(command),
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except client.ApiException as error:
            raise _refusal(error) from error
        try:
            return _read_channels(connection.sock, write, end, pod)
        finally:
            connection.close()


@contextmanager
def _said_by_the_client() -> Iterator[list[str]]:
    """What the client tells its log alone: that a credential plugin failed."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield said
    finally:
        root.removeHandler(handler)


def _within(seconds: float, what: str, work: Callable[[], _Made]) -> _Made:
    """`work()` in a thread, left alone when the time is over: a plugin, or an answer that trickles, has no limit."""
    made: list[_Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:  # noqa: BLE001  # handed to the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not made:
        raise ApiError(NO_ANSWER, "Timeout", f"{what} did not end within {seconds:g}s")
    return made[0]


def _read_channels(socket: Any, write: Callable[[bytes], None], end: float, pod: str) -> Exit:
    """Read frames until the server closes.

    The client's own loop waits for the bare socket, and misses a frame that TLS has already decrypted.
    """
    from websocket import ABNF, WebSocketException  # noqa: PLC0415  # comes with the client

    stderr, status = bytearray(), bytearray()
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise ApiError(NO_ANSWER, "Timeout", f"a command in pod {pod} did not end in time")
        socket.settimeout(left)
        try:
            kind, frame = socket.recv_data_frame(True)
        except (WebSocketException, OSError) as error:
            if status:
                break
            raise ApiError(NO_ANSWER, type(error).__name__, _words(error)) from error
        if kind == ABNF.OPCODE_CLOSE:
            break
        if kind not in {ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT} or not frame.data:
            continue
        channel, data = frame.data[0], frame.data[1:]
        if channel == _STDOUT and data:
            write(data)
        elif channel == _STDERR and len(stderr) < _STDERR_BYTES:
            stderr += data
        elif channel == _STATUS:
            status += data
    return Exit(_exit_code(bytes(status), pod), stderr.decode("utf-8", "replace"))


_GRACE_S = 0.5
_UNAUTHORIZED = 401
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_STDERR_BYTES = 1 << 16


def _exit_code(status: bytes, pod: str) -> int:
    """The exit code in the `Status` of the error channel; a stream without one was cut."""
    try:
        tree = json.loads(status)
        if tree["status"] == "Success":
            return 0
        causes = tree.get("details", {}).get("causes") or ()
        code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), None)
        if code is not None:
            return int(code)
        message = str(tree.get("message"))
    except (ValueError, TypeError, KeyError) as error:
        raise ApiError(NO_ANSWER, "Cut", f"the stream of a command in pod {pod} ended early") from error
    raise ApiError(int(tree.get("code") or 500), str(tree.get("reason") or "InternalError"), message[:500])


def _refusal(error: Any) -> ApiError:
    """The client's exception as ours. A failed websocket handshake tells its status only in its text."""
    status = int(error.status or 0)
    reason, message = " ".join(str(error.reason or "").split()), ""
    handshake = re.search(r"Handshake status (\d{3}) ([^-\n]*)", reason)
    if not status and handshake:
        status, reason, message = int(handshake[1]), handshake[2].strip(), reason[:500]
    try:
        tree = json.loads(error.body or "{}")
    except (ValueError, TypeError):
        tree = {}
    if isinstance(tree, dict):
        reason, message = str(tree.get("reason") or reason), str(tree.get("message") or message)
    headers = {str(name).lower(): value for name, value in dict(error.headers or {}).items()}
    try:
        retry_after = min(max(0.0, float(headers["retry-after"])), 86400.0)
    except (KeyError, ValueError):
        retry_after = None
    if not status:
        return ApiError(NO_ANSWER, "Tls" if "SSL" in reason else "Stream", reason[:300])
    return ApiError(status, reason, (message or reason)[:1000], retry_after)


def _words(error: BaseException) -> str:
    """What went wrong, without the request's URL: its selector names the run's token."""
    text = " ".join(str(error.__cause__ or error).split())
    return re.sub(r"(?i)\b(with )?url: \S+", "", text)[:300]


def _pod_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip() or "default"
    except OSError:
        return "default"
