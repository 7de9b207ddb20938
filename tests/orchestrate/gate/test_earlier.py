"""The look for an earlier pass, asked of a server that answers as GitHub's API documents it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

LATER = "2099-01-01T00:00:00Z"


class Api:
    """Artifacts and workflow runs of one repository; `answer`, where set, is what every request gets."""

    def __init__(self):
        self.artifacts, self.paths, self.asked, self.answer = [], {7: ".github/workflows/gate.yml"}, [], None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                api.asked.append((url.path, self.headers["Authorization"]))
                status, body, headers = api.answer or (200, json.dumps(api.found(url)).encode(), {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def found(self, url):
        if url.path.endswith("/actions/artifacts"):
            (name,) = parse_qs(url.query)["name"]
            return {"artifacts": [each for each in self.artifacts if each["name"] == name]}
        return {"path": self.paths[int(url.path.rpartition("/")[2])]}

    def add(self, github, run, *, expired=False, expires=LATER, path=".github/workflows/gate.yml", **origin):
        self.paths[run] = path
        self.artifacts.append({
            "name": f"gpu-gate-passed-{github.head}-{github.base}", "expired": expired, "expires_at": expires,
            "workflow_run": {"id": run, "repository_id": 1, "head_repository_id": 1, "head_branch": "change",
                             "head_sha": github.head, **origin},
        })  # fmt: skip


@pytest.fixture
def api(github, monkeypatch):
    made = Api()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    github.change()
    monkeypatch.setenv("GITHUB_API_URL", made.url)
    monkeypatch.setenv("GITHUB_TOKEN", "of-the-job")
    yield made
    made.server.shutdown()
    made.server.server_close()


def outputs(github):
    """What the last `classify` told GitHub."""
    path = github.root / "output"
    path.unlink(missing_ok=True)
    code, _ = github.step("classify")
    assert code == 0
    lines = path.read_text().splitlines()
    return {lines[n].partition("<<")[0]: lines[n + 1] for n in range(0, len(lines), 3)}


def test_the_newest_pass_of_the_same_change_is_named_with_its_end(api, github):
    api.add(github, 5)
    api.add(github, 4)
    found = outputs(github)
    assert (found["earlier-run"], found["earlier-expires"]) == ("5", LATER)
    assert found["key"] == f"{github.head}-{github.base}"
    assert {token for _, token in api.asked} == {"Bearer of-the-job"}


def test_a_branch_may_stand_behind_the_path_of_a_workflow(api, github):
    api.add(github, 5, path=".github/workflows/gate.yml@refs/heads/change")
    assert outputs(github)["earlier-run"] == "5"


@pytest.mark.parametrize(
    "made",
    [
        {"expired": True},
        {"expires": "2026-01-01T00:00:00Z"},
        {"expires": "soon"},
        {"expires": None},
        {"head_sha": "ab" * 20},
        {"head_branch": "other"},
        {"head_repository_id": 2},
        {"repository_id": None, "head_repository_id": None},
        {"path": ".github/workflows/other.yml"},
        {"id": "5"},
    ],
    ids=str,
)
def test_what_only_looks_like_one_is_passed_over(api, github, made):
    api.add(github, 5, **made)
    assert "earlier-run" not in outputs(github)
    api.add(github, 4)
    assert outputs(github)["earlier-run"] == "4"


@pytest.mark.parametrize(
    "answer",
    [
        (403, b"{}", {}),
        (500, b"oops", {}),
        (200, b"", {}),
        (200, b"[]", {}),
        (200, b"{}", {}),
        (200, b'{"artifacts": 1}', {}),
        (200, b"[" * 100_000, {}),
        (302, b"", {"Location": "http://127.0.0.1:1/"}),
    ],
    ids=lambda answer: f"{answer[0]}-{answer[1][:14].decode()}",
)
def test_without_a_usable_answer_there_is_no_earlier_pass_and_the_change_is_tested(api, github, answer):
    api.answer = answer
    found = outputs(github)
    assert "earlier-run" not in found
    assert found["needed"] == "true"


def test_a_server_that_is_not_there_keeps_no_change_from_being_tested(api, github, monkeypatch):
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert outputs(github)["needed"] == "true"


def test_nobody_is_asked_without_a_token_or_where_no_gpu_is_needed(api, github, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN")
    outputs(github)
    monkeypatch.setenv("GITHUB_TOKEN", "of-the-job")
    github.base = github.head
    github.git("checkout", "-q", "change")
    github.tested = github.head
    github.announce()
    assert outputs(github)["needed"] == "false"
    assert api.asked == []
