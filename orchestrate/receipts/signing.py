"""Signatures over closures: DSSE envelopes by securesystemslib, with an ed25519 key or an identity of sigstore's.

A closure names the digest of every other receipt, and those name every evidence file: who signs the closure signs the
run. An envelope lies beside the receipts, `signatures/<closure>-<key>.json`, holds the closure's own bytes, and is
checked against them, so that a signature of another run or of an older state is none of this one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.errors import ReceiptError, UsageError
from orchestrate.receipts.files import list_files, read_file
from orchestrate.receipts.store import MAX_RECEIPT_BYTES, write_durably

__all__ = [
    "PAYLOAD_TYPE",
    "SIGNATURES",
    "PublicKey",
    "SignatureCheck",
    "check_signatures",
    "identity_key",
    "identity_signer",
    "opened_envelope",
    "private_signer",
    "public_key",
    "sign_closure",
    "signed_envelope",
]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
SIGNATURES = "signatures"
"""The folder of a run directory that the envelopes lie in. It is made new by each signature and binds itself."""

_MAX_ENVELOPE_BYTES = 2 * MAX_RECEIPT_BYTES
_MAX_SIGNATURES = 256
_INSTALL = "pip install 'orchestrate[sign]'"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What to check with, a `Key` of securesystemslib; `id` is its digest, the `keyid` in an envelope."""

    key: Any

    @property
    def id(self) -> str:
        """The key's id: 64 hex digits."""
        return str(self.key.keyid)

    @property
    def name(self) -> str:
        """For people: the identity, or how the key's id begins."""
        return str(self.key.keyval.get("identity") or self.id[:16])


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """Which of the required keys signed a closure, and what is wrong with the rest."""

    signed_by: tuple[str, ...]
    problems: tuple[str, ...]


def public_key(path: Path) -> PublicKey:
    """The key in a PEM file: a public one, or the public half of a private one.

    Raises:
        UsageError: the file holds no ed25519 key, or the library for signatures is not installed.
    """
    return public_key_in(_read(path), path)


def public_key_in(data: bytes, path: Path) -> PublicKey:
    """The key in the text of a PEM file; `path` says where it is from. Raises as `public_key`."""
    signer = _library()
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an optional dependency
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an optional dependency
        Ed25519PublicKey,
    )

    try:
        if b"PRIVATE KEY" in data:
            return PublicKey(signer.SSlibKey.from_crypto(_private(data, path).public_key()))
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise _no_key(path) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path)
    return PublicKey(signer.SSlibKey.from_crypto(key))


def identity_key(identity: str, issuer: str) -> PublicKey:
    """Whoever `issuer` says is `identity`, as sigstore's certificates name them; needs no key and no network.

    Raises:
        UsageError: the library for signatures is not installed.
    """
    return PublicKey(_library().SigstoreSigner.import_(identity, issuer)[1])


def identity_signer(token: Any, name: str) -> Any:
    """The signer with a token of sigstore's, an `IdentityToken`, that certifies `name`."""
    return _library().SigstoreSigner(token, identity_key(name, token.issuer).key)


def private_signer(path: Path) -> Any:
    """The signer with the private key in a PEM file. The key reaches no file, no environment and no argument list.

    Raises:
        UsageError: the file holds no unencrypted ed25519 private key, or the library is not installed.
    """
    return _library().CryptoSigner(_private(_read(path), path))


def sign_closure(run_dir: Path, closure_sha256: str, signer: Any) -> Path:
    """Sign a closure of a run with a `Signer` of securesystemslib; returns the envelope's path.

    Signing twice with one key keeps the first envelope; a damaged one in its place is replaced.

    Raises:
        ReceiptError: the closure is not there, or the envelope can not be written.
    """
    payload = _closure(run_dir, closure_sha256)
    path = run_dir / SIGNATURES / f"{closure_sha256}-{signer.public_key.keyid[:16]}.json"
    if path.exists() and check_signatures(run_dir, closure_sha256, [PublicKey(signer.public_key)]).signed_by:
        return path
    envelope = signed_envelope(payload, signer)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_durably(path, envelope)
    except OSError as error:
        raise ReceiptError(
            f"the signature of {closure_sha256[:12]} can not be written: {error.strerror}",
            remedy="make room or rights, then `orchestrate sign`",
        ) from error
    return path


def signed_envelope(payload: bytes, signer: Any) -> bytes:
    """The DSSE envelope of an in-toto statement, signed by a `Signer` of securesystemslib, as JSON."""
    from securesystemslib.dsse import Envelope  # noqa: PLC0415 - an optional dependency

    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    signature = envelope.sign(signer)
    if "bundle" in signature.unrecognized_fields:  # sigstore's is base64, where an envelope of theirs wants hex
        plain = base64.b64decode(signature.signature).hex()
        envelope.signatures[signature.keyid] = _library().Signature(
            signature.keyid, plain, signature.unrecognized_fields
        )
    return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def opened_envelope(data: bytes, required: Sequence[PublicKey], *, what: str) -> tuple[bytes, tuple[str, ...]]:
    """What is in a DSSE envelope, and which of the `required` keys did not sign it, in words.

    Raises:
        ReceiptError: it is no envelope.
        UsageError: the library for signatures is not installed.
    """
    _library()
    try:
        envelope = _envelope(data)
        payload = bytes(envelope.payload)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReceiptError(f"{what} is in no signed envelope", remedy="name the file that was signed") from error
    reasons = ((key, _why_not_signed(envelope, payload, key)) for key in required)
    return payload, tuple(
        f"{what} is not signed by the required key {key.name}{f' ({reason})' if reason else ''}"
        for key, reason in reasons
        if reason is not None
    )


def check_signatures(run_dir: Path, closure_sha256: str, required: Sequence[PublicKey]) -> SignatureCheck:
    """Whether each of the `required` keys signed exactly this closure. Raises nothing for what it finds."""
    signed: list[str] = []
    problems: list[str] = []
    try:
        payload = _closure(run_dir, closure_sha256)
        folder = run_dir / SIGNATURES
        listed = list_files(folder, limit=_MAX_SIGNATURES) if folder.is_dir() else None
    except (ReceiptError, OSError) as error:
        return SignatureCheck((), (f"the signatures can not be read: {error}",))
    names = [name for name in listed.files if name.startswith(f"{closure_sha256}-")] if listed else []
    envelopes = []
    for name in names:
        try:
            envelopes.append(_envelope(read_file(run_dir, f"{SIGNATURES}/{name}", limit=_MAX_ENVELOPE_BYTES)))
        except (ReceiptError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problems.append(f"the signature {name[:80]} is damaged: {type(error).__name__}")
    for key in required:
        reasons = [_why_not_signed(envelope, payload, key) for envelope in envelopes]
        if None in reasons:
            signed.append(key.id)
        else:
            why = next((f" ({reason})" for reason in reasons if reason), "")
            problems.append(f"the closure {closure_sha256[:12]} is not signed by the required key {key.name}{why}")
    return SignatureCheck(tuple(signed), tuple(problems))


def _why_not_signed(envelope: Any, payload: bytes, key: PublicKey) -> str | None:
    """None where `key` signed exactly this; else why that can not be told, empty where it just did not."""
    from securesystemslib.exceptions import (  # noqa: PLC0415 - an optional dependency
        UnverifiedSignatureError,
        VerificationError,
    )

    signature = envelope.signatures.get(key.id)
    if envelope.payload != payload or envelope.payload_type != PAYLOAD_TYPE or signature is None:
        return ""
    try:
        key.key.verify_signature(signature, envelope.pae())
    except VerificationError as error:  # sigstore needs its package, and its trust root once from the network
        cause = error.__cause__
        return "" if cause is None else f"could not be checked: {type(cause).__name__}"
    except UnverifiedSignatureError:  # the base of the one above
        return ""
    return None


def _envelope(data: bytes) -> Any:
    from securesystemslib.dsse import Envelope  # noqa: PLC0415 - an optional dependency

    tree = json.loads(data)
    if not isinstance(tree, dict) or set(tree) != {"payload", "payloadType", "signatures"}:
        raise ValueError("not an envelope")
    return Envelope.from_dict(tree)


def _closure(run_dir: Path, sha256: str) -> bytes:
    try:
        return read_file(run_dir, f"receipts/{sha256}.json", limit=MAX_RECEIPT_BYTES)
    except FileNotFoundError as error:
        raise ReceiptError(
            f"there is no closure {sha256[:12]}", remedy="`orchestrate verify` names the newest"
        ) from error


def _private(data: bytes, path: Path) -> Any:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an optional dependency
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an optional dependency
        Ed25519PrivateKey,
    )

    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise _no_key(path) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path)
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()[: 1 << 16]
    except OSError as error:
        raise UsageError(f"the key {path} can not be read: {error.strerror}", remedy="name a PEM file") from error


def _no_key(path: Path) -> UsageError:
    return UsageError(
        f"{path} holds no ed25519 key in an unencrypted PEM file",
        remedy="make one with `openssl genpkey -algorithm ed25519 -out key.pem`, and its public half with "
        "`openssl pkey -in key.pem -pubout -out key.pub`",
    )


def _library() -> Any:
    try:
        from securesystemslib import signer  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise UsageError("signatures need the package securesystemslib", remedy=_INSTALL) from error
    return signer
