"""Signing and requiring signatures, as options of several commands: a key by its file, or the runner's own identity."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from orchestrate.errors import BackendError, OrchestrateError, ReceiptError, UsageError
from orchestrate.gate.policy import GatePolicy
from orchestrate.receipts.signing import (
    PublicKey,
    identity_key,
    identity_signer,
    private_signer,
    public_key,
    public_key_in,
    sign_closure,
    signed_envelope,
)
from orchestrate.receipts.verify import Verification, verify_run

__all__ = [
    "SIGN_KEY_OPTION",
    "check_sign_key",
    "policy_keys",
    "required_keys",
    "sign_closure_of",
    "sign_run",
    "signature_options",
    "signed",
]

_T = TypeVar("_T")

SIGSTORE = "sigstore:"
"""In place of a key's file: the identity that the runner has (securesystemslib's own scheme)."""

_GITHUB = "https://token.actions.githubusercontent.com"
_INSTALL = "pip install 'orchestrate[sigstore]'"

SIGN_KEY_OPTION = click.option(
    "--sign-key", metavar="KEY",
    help="Sign the closure as it is made: file of an ed25519 private key (PEM), or `sigstore:` for the identity that a "
    "CI runner has.",
)  # fmt: skip


def signature_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say by whom a run must be signed; `required_keys` reads them."""
    options = (
        click.option("--require-signature", "keys", multiple=True, metavar="KEY",
                     help="The newest closure must be signed by this ed25519 key (PEM, public half), or, "
                     f"`{SIGSTORE}`, by --identity.  [may be repeated]"),
        click.option("--identity", metavar="ID",
                     help=f"With `--require-signature {SIGSTORE}`: who must have signed, as the certificate says it: "
                     "for GitHub https://github.com/OWNER/REPOSITORY/.github/workflows/FILE@REF."),
        click.option("--issuer", default=_GITHUB, show_default=True, metavar="URL",
                     help="With --identity: who says that it is that one."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def required_keys(keys: Sequence[str], identity: str | None, issuer: str) -> tuple[PublicKey, ...]:
    """The keys to check with; `UsageError` where one is none, or an identity is asked for and not named."""
    if (SIGSTORE in keys) != (identity is not None):
        raise UsageError(
            f"`--require-signature {SIGSTORE}` and --identity go together", remedy="name who must have signed"
        )
    return tuple(identity_key(str(identity), issuer) if key == SIGSTORE else public_key(Path(key)) for key in keys)


def policy_keys(policy: GatePolicy) -> tuple[PublicKey, ...]:
    """The keys that a gate's policy demands; `UsageError` where one of its texts is none."""
    return tuple(public_key_in(text.encode(), Path("the policy's signed_by")) for text in policy.signed_by)


def check_sign_key(key: str | None) -> None:
    """Whether that can sign, found out before anything is asked for; `UsageError` where not. None is nothing to do."""
    if key == SIGSTORE:
        _runner_token()
    elif key is not None:
        private_signer(Path(key))


def sign_run(run_dir: Path, key: str) -> tuple[Path, Verification]:
    """Sign the newest closure of a run whose receipts hold; the envelope, and what was verified of the run.

    Raises:
        ReceiptError: the receipts do not hold.
        UsageError: the key can not be used.
        BackendError: the runner's identity could not be turned into a signature.
    """
    found = verify_run(run_dir)
    if not found.holds or found.closure_sha256 is None:
        why = found.problems[0] if found.problems else "there is no closure"
        raise ReceiptError(
            f"the receipts of {run_dir.name} do not hold: {why}",
            remedy="`orchestrate verify` lists all that is wrong; what does not hold is not signed",
        )
    return sign_closure_of(run_dir, found.closure_sha256, key), found


def sign_closure_of(run_dir: Path, closure_sha256: str, key: str) -> Path:
    """Sign that closure, whatever else is wrong with its run: an audit signs its own finding. Raises as `sign_run`."""
    return _by(key, lambda signer: sign_closure(run_dir, closure_sha256, signer))


def signed(statement: bytes, key: str) -> bytes:
    """The DSSE envelope of a statement. Raises as `sign_run`."""
    return _by(key, lambda signer: signed_envelope(statement, signer))


def _by(key: str, sign: Callable[[Any], _T]) -> _T:
    if key != SIGSTORE:
        return sign(private_signer(Path(key)))
    try:
        return sign(_runner_signer(_runner_token()))
    except OrchestrateError:
        raise
    except Exception as error:  # the library's own errors have no common base, and texts that may quote an answer
        raise BackendError(
            f"sigstore gave no signature: {type(error).__name__}",
            remedy="its servers must be reachable from here; `orchestrate sign` signs a closed run later",
        ) from error


def _runner_token() -> str:
    """What the runner's platform says of it, a short-lived token that goes nowhere but to sigstore."""
    try:
        from sigstore.oidc import detect_credential  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise UsageError(f"`{SIGSTORE}` needs the package sigstore", remedy=_INSTALL) from error
    try:
        token = detect_credential()
    except Exception as error:
        raise _no_identity(type(error).__name__) from error
    if not token:
        raise _no_identity("no platform that sigstore knows")
    return str(token)


def _runner_signer(token: str) -> Any:
    """A signer of securesystemslib under exactly the name that the certificate will have."""
    from sigstore.oidc import IdentityToken  # noqa: PLC0415 - an optional dependency

    identity = IdentityToken(token)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    workflow = claims.get("job_workflow_ref")
    name = f"https://github.com/{workflow}" if identity.issuer == _GITHUB and workflow else identity.identity
    return identity_signer(identity, name)


def _no_identity(why: str) -> UsageError:
    return UsageError(
        f"there is no identity here to sign with ({why})",
        remedy="in a GitHub job give `permissions: {id-token: write}`; elsewhere sign with the file of a key",
    )
