"""`orchestrate sign`: put a signature beside the closure of a run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.errors import ReceiptError
from orchestrate.receipts.signing import public_key, sign_closure
from orchestrate.receipts.verify import verify_run

__all__ = ["command"]


@click.command("sign")
@click.argument("run", metavar="RUN_OR_DIR")
@click.option("--sign-key", "key", type=click.Path(path_type=Path), required=True, metavar="KEY",
              help="The ed25519 private key, an unencrypted PEM file.")  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: str, key: Path, runs_dir: Path, *, as_json: bool) -> int:
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
    directory = locate_run(run, runs_dir)
    found = verify_run(directory)
    if not found.holds or found.closure_sha256 is None:
        raise ReceiptError(
            f"the receipts of {directory.name} do not hold: {found.problems[0]}",
            remedy="`orchestrate verify` lists all that is wrong; what does not hold is not signed",
        )
    signer = public_key(key)
    path = sign_closure(directory, found.closure_sha256, key)
    if as_json:
        say(
            json.dumps(
                {
                    "run_id": found.run_id,
                    "closure_sha256": found.closure_sha256,
                    "key_id": signer.id,
                    "file": str(path),
                    "exit_code": 0,
                },
                sort_keys=True,
            )
        )
    say(f"signed the closure {found.closure_sha256} with the key {signer.id}", err=as_json)
    return 0
