"""`orchestrate sign`: put a signature beside the closure of a run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.commands.signing import check_sign_key, sign_run

__all__ = ["command"]


@click.command("sign")
@click.argument("run", metavar="RUN_OR_DIR")
@click.option("--sign-key", "key", required=True, metavar="KEY",
              help="Ed25519 private key, unencrypted PEM; or `sigstore:`, the identity of a runner.")  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: str, key: str, runs_dir: Path, *, as_json: bool) -> int:
    """Sign the newest closure of a run, and with it every receipt and evidence file that it names.

    Only receipts that hold are signed: what `orchestrate verify` refuses gets no signature. The envelope (DSSE) lies in
    the run's folder `signatures`; `orchestrate verify --require-signature KEY` checks it. A later closure needs a
    signature of its own.

    \b
    Example:
      openssl genpkey -algorithm ed25519 -out key.pem
      orchestrate sign latest --sign-key key.pem
      openssl pkey -in key.pem -pubout -out key.pub
      orchestrate verify latest --require-signature key.pub
    """
    check_sign_key(key)
    path, found = sign_run(locate_run(run, runs_dir), key)
    if as_json:
        answer = {
            "run_id": found.run_id,
            "closure_sha256": found.closure_sha256,
            "file": str(path),
            "exit_code": 0,
        }
        say(json.dumps(answer, sort_keys=True))
    say(f"signed the closure {found.closure_sha256}: {path}", err=as_json)
    return 0
