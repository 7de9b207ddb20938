"""A provider that refuses as it is told, and keeps what it was asked for in a folder that every process sees.

`$PRETEND_CLOUD/script.json` maps each namespace to the answers of one `acquire` after the other (the last one stays);
`*` is every other namespace. A request lies in `$PRETEND_CLOUD/things` until it is released. What is granted runs as a
local run does.
"""

import json
import threading
from dataclasses import replace
from pathlib import Path

from orchestrate.backends.catalogue import PROVIDERS
from orchestrate.backends.local import LocalBackend, LocalSettings
from orchestrate.backends.protocol import Answer, Outcome, Resource, Step
from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError

PROVIDERS["k8s"] = replace(PROVIDERS["k8s"], census_patience_s=3.0)


def open_backend(ownership, settings, place):
    local = LocalSettings(place.temp_base, place.environ, payload=place.payload, adopts_orphans=place.adopts_orphans)
    return PretendBackend(ownership, local, Path(place.environ["PRETEND_CLOUD"]), settings.get("namespace", "here"))


class PretendBackend(LocalBackend):
    name = "k8s"
    teardown_reserve_s = 20.0

    def __init__(self, ownership, local, cloud, namespace):
        super().__init__(ownership, local)
        self.cloud = cloud
        self.namespace = namespace
        self.thing = cloud / "things" / f"{namespace}.{ownership.token}"

    def preflight(self, request):
        if self.script(self.namespace) == ["no-such-place"]:
            raise UnsatisfiableError(f"there is no {self.namespace}", remedy="name another")
        return super().preflight(request)

    def acquire(self, request, *, budget_s, pause):
        asked = self.cloud / "asked.jsonl"
        before = [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []
        count = sum(each["namespace"] == self.namespace for each in before)
        with asked.open("a") as stream:
            stream.write(json.dumps({
                "namespace": self.namespace, "budget_s": budget_s, "there": self.there(),
                "cells": list(request.cells), "deadline_s": request.deadline_s,
            }) + "\n")  # fmt: skip
        answers = self.script(self.namespace)
        match answers[min(count, len(answers) - 1)]:
            case "grant":
                return super().acquire(request, budget_s=budget_s, pause=pause)
            case "capacity":
                self.leave()
                pause(0)
                raise CapacityError("nothing is free", remedy="wait", case=self.case(Reason.NOTHING_FREE))
            case "unsatisfiable":
                raise UnsatisfiableError("it never fits", remedy="ask less", case=self.case(Reason.NEVER_FITS))
            case "outage":
                raise BackendError("no answer", remedy="look at it", case=self.case(Reason.UNREACHABLE))
            case "bug":
                self.leave()
                raise ZeroDivisionError("a bug of the backend")
            case "wait":
                self.leave()
                while True:
                    pause(0.05)
            case "hang":
                self.leave()
                while True:
                    threading.Event().wait()
            case "stay":
                self.leave()
                self.thing.with_suffix(".stays").touch()
                raise CapacityError("nothing is free", remedy="wait", case=self.case(Reason.NOTHING_FREE))

    def release(self):
        steps = super().release()
        if not self.thing.exists():
            return (*steps, Step("withdraw", self.namespace, Outcome.NOTHING_THERE, to_wire(utc_now())))
        if not self.thing.with_suffix(".stays").exists():
            self.thing.unlink()
        return (*steps, Step("withdraw", self.namespace, Outcome.DONE, to_wire(utc_now())))

    def census(self):
        look = super().census()
        there = self.there()
        asked = (*look.asked, Answer("requests", f"{len(there)} there"))
        return replace(look, asked=asked, remaining=(*look.remaining, *(Resource("request", name) for name in there)))

    def there(self):
        return [path.name for path in self.thing.parent.glob(f"*.{self._ownership.token}")]

    def leave(self):
        self.thing.parent.mkdir(exist_ok=True)
        self.thing.touch()

    def script(self, namespace):
        script = json.loads((self.cloud / "script.json").read_text())
        return script.get(namespace, script.get("*"))

    def case(self, reason):
        offer = Offer(self.namespace, "H200:4", reason, Basis.STRUCTURE, "as the script says", to_wire(utc_now()))
        return Case({"accelerators": "H200:4"}, (offer,), (Availability(self.namespace, "H200", 8, 0, "script"),))
