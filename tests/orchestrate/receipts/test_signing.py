import base64
import json
import shutil

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrate.commands import sign, verify
from orchestrate.errors import ReceiptError, UsageError
from orchestrate.receipts.signing import check_signatures, private_signer, public_key, sign_closure
from orchestrate.receipts.verify import verify_run


@pytest.fixture
def signed(builder, tmp_path, write_key):
    """A run, signed; its directory, the envelope, and both halves of the key."""
    run = builder().build()
    private, public = write_key(tmp_path / "key.pem")
    envelope = sign_closure(run, verify_run(run).closure_sha256, private_signer(private))
    return run, envelope, private, public


def test_a_signed_run_holds_for_its_key_and_says_so(signed):
    run, _, _, public = signed
    found = verify_run(run, require_signatures=[public_key(public)])
    assert found.holds, found.problems
    assert "is signed by" in found.does_not_prove[0]
    assert found.uncovered == ()


def test_an_unsigned_run_does_not_hold_where_a_signature_is_required(builder, tmp_path, write_key):
    run = builder().build()
    _, public = write_key(tmp_path / "key.pem")
    found = verify_run(run, require_signatures=[public_key(public)])
    assert not found.holds
    assert "is not signed by the required key" in found.problems[0]


def test_another_key_is_not_the_required_one(signed, tmp_path, write_key):
    run, _, _, _ = signed
    _, other = write_key(tmp_path / "other.pem")
    assert not verify_run(run, require_signatures=[public_key(other)]).holds


def test_both_of_two_required_keys_must_have_signed(signed, tmp_path, write_key):
    run, _, _, public = signed
    private, second = write_key(tmp_path / "other.pem")
    keys = [public_key(public), public_key(second)]
    assert not verify_run(run, require_signatures=keys).holds
    sign_closure(run, verify_run(run).closure_sha256, private_signer(private))
    assert verify_run(run, require_signatures=keys).holds


def test_signing_again_gives_the_same_envelope(signed):
    run, envelope, private, _ = signed
    before = envelope.read_bytes()
    assert sign_closure(run, verify_run(run).closure_sha256, private_signer(private)) == envelope
    assert envelope.read_bytes() == before


def forge_payload(tree):
    tree["payload"] = base64.b64encode(b"{}").decode()


def forge_type(tree):
    tree["payloadType"] = "text/plain"


def forge_bit(tree):
    signature = bytearray(base64.b64decode(tree["signatures"][0]["sig"]))
    signature[0] ^= 1
    tree["signatures"][0]["sig"] = base64.b64encode(signature).decode()


def forge_key_id(tree):
    tree["signatures"][0]["keyid"] = "0" * 64


def no_signature(tree):
    tree["signatures"] = []


@pytest.mark.parametrize("forge", [forge_payload, forge_type, forge_bit, forge_key_id, no_signature])
def test_a_forged_envelope_is_no_signature(signed, forge):
    run, envelope, _, public = signed
    tree = json.loads(envelope.read_text())
    forge(tree)
    envelope.write_text(json.dumps(tree))
    assert not verify_run(run, require_signatures=[public_key(public)]).holds


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[" * 100000, b'{"payload": 1}', b"\xff\xfe"])
def test_a_damaged_envelope_is_named(signed, data):
    run, envelope, _, public = signed
    envelope.write_bytes(data)
    found = verify_run(run, require_signatures=[public_key(public)])
    assert any("is damaged" in problem for problem in found.problems)


def test_the_envelope_of_another_run_is_none_of_this_one(signed, run_builder, tmp_path):
    run, envelope, _, public = signed
    other = run_builder(tmp_path / "other", run_id="r20260102-030405-ffffff").build()
    closure = verify_run(other).closure_sha256
    (other / "signatures").mkdir()
    shutil.copy(envelope, other / "signatures" / f"{closure}-0000.json")
    assert check_signatures(other, closure, [public_key(public)]).signed_by == ()
    assert verify_run(run, require_signatures=[public_key(public)]).holds


def test_a_linked_envelope_is_not_followed(signed, tmp_path):
    run, envelope, _, public = signed
    shutil.move(envelope, tmp_path / "elsewhere.json")
    envelope.symlink_to(tmp_path / "elsewhere.json")
    assert not verify_run(run, require_signatures=[public_key(public)]).holds


def test_a_later_closure_needs_a_signature_of_its_own(builder, tmp_path, write_key):
    made = builder()
    run = made.build()
    private, public = write_key(tmp_path / "key.pem")
    first = verify_run(run).closure_sha256
    sign_closure(run, first, private_signer(private))
    made.close("somebody looked again", supersedes=first)
    assert verify_run(run).closure_sha256 != first
    assert not verify_run(run, require_signatures=[public_key(public)]).holds
    sign_closure(run, verify_run(run).closure_sha256, private_signer(private))
    assert verify_run(run, require_signatures=[public_key(public)]).holds


@pytest.mark.parametrize("make", ["garbage", "ecdsa", "encrypted", "absent"])
def test_what_is_no_ed25519_key_is_refused_by_name(tmp_path, make, write_key):
    path = tmp_path / "key.pem"
    match make:
        case "garbage":
            path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        case "ecdsa":
            write_key(path, ec.generate_private_key(ec.SECP256R1()))
        case "encrypted":
            path.write_bytes(
                Ed25519PrivateKey.generate().private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(b"secret"),
                )
            )
    with pytest.raises(UsageError, match=r"key\.pem"):
        public_key(path)


def test_the_command_signs_what_holds_and_nothing_else(builder, tmp_path, write_key):
    run = builder().build()
    private, public = write_key(tmp_path / "key.pem")
    signed = CliRunner(mix_stderr=False).invoke(
        sign.command, [str(run), "--sign-key", str(private), "--json"], standalone_mode=False
    )
    answer = json.loads(signed.stdout)
    assert public_key(public).id[:16] in answer["file"]
    checked = CliRunner().invoke(verify.command, [str(run), "--require-signature", str(public)], standalone_mode=False)
    assert checked.return_value == 0
    rows = next((run / "evidence").rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes() + b"{}\n")
    refused = CliRunner().invoke(sign.command, [str(run), "--sign-key", str(private)], standalone_mode=False)
    assert isinstance(refused.exception, ReceiptError)
