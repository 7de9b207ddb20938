"""Signing by the options of the commands. Sigstore's servers are played: its package's names, with an ed25519 key."""

import base64
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrate.commands import sign, verify
from orchestrate.commands.signing import check_sign_key
from orchestrate.errors import BackendError, UsageError

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "o/r/.github/workflows/gate.yml@refs/heads/main"
IDENTITY = f"https://github.com/{WORKFLOW}"


class Sigstore:
    """The names of the package that securesystemslib and we use, over one key and one certified name."""

    def __init__(self, monkeypatch):
        self.key = Ed25519PrivateKey.generate()
        self.reachable = True
        self.certified = (IDENTITY, ISSUER)
        claims = base64.urlsafe_b64encode(json.dumps({"iss": ISSUER, "job_workflow_ref": WORKFLOW}).encode())
        self.token = f"head.{claims.decode().rstrip('=')}.canary-of-the-oidc-token"
        verification_error = type("VerificationError", (Exception,), {})
        for name, members in {
            "sigstore": {},
            "sigstore.errors": {"VerificationError": verification_error},
            "sigstore.oidc": {
                "detect_credential": lambda: self.token,
                "IdentityToken": lambda token: SimpleNamespace(issuer=ISSUER, identity="sub of the job"),
            },
            "sigstore.models": {
                "ClientTrustConfig": SimpleNamespace(production=lambda: None),
                "Bundle": SimpleNamespace(from_json=json.loads),
            },
            "sigstore.sign": {"SigningContext": SimpleNamespace(from_trust_config=lambda _: self)},
            "sigstore.verify": {"Verifier": SimpleNamespace(production=self.verifier)},
            "sigstore.verify.policy": {"Identity": lambda identity, issuer: (identity, issuer)},
        }.items():
            module = ModuleType(name)
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, name, module)
        self.error = verification_error

    def signer(self, token):
        return self

    def __enter__(self):
        if not self.reachable:
            raise ConnectionError(f"bearer {self.token} was refused")
        return self

    def __exit__(self, *_):
        return None

    def sign_artifact(self, payload):
        signature = base64.b64encode(self.key.sign(payload)).decode()
        bundle = {"messageSignature": {"signature": signature}, "certified": list(self.certified)}
        return SimpleNamespace(to_json=lambda: json.dumps(bundle))

    def verifier(self):
        if not self.reachable:
            raise ConnectionError("no trust root")
        return self

    def verify_artifact(self, data, bundle, identity):
        try:
            self.key.public_key().verify(base64.b64decode(bundle["messageSignature"]["signature"]), data)
        except InvalidSignature as error:
            raise self.error("bad") from error
        if tuple(bundle["certified"]) != identity:
            raise self.error("another name")


@pytest.fixture
def sigstore(monkeypatch):
    return Sigstore(monkeypatch)


def invoke(command, *arguments):
    return CliRunner(mix_stderr=False).invoke(command, [str(each) for each in arguments], standalone_mode=False)


def signed_by(run, identity=IDENTITY, issuer=ISSUER):
    return invoke(verify.command, run, "--require-signature", "sigstore:", "--identity", identity, "--issuer", issuer)


def test_a_runner_signs_by_its_identity_and_only_that_identity_is_its_signer(builder, sigstore):
    run = builder().build()
    done = invoke(sign.command, run, "--sign-key", "sigstore:")
    assert done.return_value == 0, done.exception
    assert signed_by(run).return_value == 0
    assert signed_by(run, identity=IDENTITY.replace("o/r", "o/fork")).return_value == 1
    assert signed_by(run, issuer="https://elsewhere").return_value == 1
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"canary-of-the-oidc-token" not in written


def test_a_bundle_under_the_name_of_another_identity_is_no_signature_of_it(builder, sigstore):
    run = builder().build()
    sigstore.certified = ("https://github.com/o/fork/x.yml@refs/heads/main", ISSUER)
    invoke(sign.command, run, "--sign-key", "sigstore:")
    assert signed_by(run).return_value == 1


def test_a_bundle_of_another_closure_is_none(builder, sigstore):
    made = builder()
    run = made.build()
    invoke(sign.command, run, "--sign-key", "sigstore:")
    made.close("again")
    assert signed_by(run).return_value == 1


def test_several_runs_hold_only_where_each_is_signed(builder, sigstore):
    first, second = builder().build(), builder("r20260102-030405-0a1b2d", run_id="r20260102-030405-0a1b2d").build()
    invoke(sign.command, first, "--sign-key", "sigstore:")
    both = (verify.command, first, second, "--require-signature", "sigstore:", "--identity", IDENTITY)
    assert invoke(*both).return_value == 1
    invoke(sign.command, second, "--sign-key", "sigstore:")
    assert invoke(*both).return_value == 0


def test_servers_that_are_away_are_no_signature_and_quote_no_token(builder, sigstore):
    run = builder().build()
    sigstore.reachable = False
    failed = invoke(sign.command, run, "--sign-key", "sigstore:").exception
    assert isinstance(failed, BackendError)
    assert "canary" not in failed.cause + failed.remedy
    sigstore.reachable = True
    invoke(sign.command, run, "--sign-key", "sigstore:")
    sigstore.reachable = False
    answer = signed_by(run)
    assert answer.return_value == 1
    assert "could not be checked: ConnectionError" in answer.stdout, answer.stdout


def test_without_the_package_or_an_identity_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore.oidc", None)
    with pytest.raises(UsageError, match="needs the package sigstore"):
        check_sign_key("sigstore:")
    Sigstore(monkeypatch).token = None
    with pytest.raises(UsageError, match="no identity here"):
        check_sign_key("sigstore:")


def test_an_identity_and_its_word_go_together(builder):
    run = builder().build()
    for arguments in (("--require-signature", "sigstore:"), ("--identity", IDENTITY)):
        assert isinstance(invoke(verify.command, run, *arguments).exception, UsageError)


def test_a_damaged_envelope_does_not_keep_a_run_from_being_signed(builder, tmp_path, write_key):
    run = builder().build()
    key, public = write_key(tmp_path / "key.pem")
    invoke(sign.command, run, "--sign-key", key)
    (envelope,) = (run / "signatures").iterdir()
    envelope.write_text("{}")
    invoke(sign.command, run, "--sign-key", key)
    assert invoke(verify.command, run, "--require-signature", public).return_value == 0
