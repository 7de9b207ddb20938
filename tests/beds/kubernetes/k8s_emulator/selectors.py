"""Label and field selectors."""

import re

from k8s_emulator.answers import ApiError


def label_filter(text):
    """A predicate over a dict of labels: `a=b,c!=d,e in (f,g),h notin (i),j,!k`."""
    tests = [_label_test(term.strip()) for term in re.split(r",(?![^(]*\))", text or "") if term.strip()]
    return lambda labels: all(test(labels) for test in tests)


def field_filter(text):
    """A predicate over an object: `metadata.name=a,status.phase!=Failed`."""
    tests = []
    for term in filter(None, (text or "").split(",")):
        match = re.fullmatch(r"([A-Za-z.]+)(==|!=|=)(.*)", term)
        if match is None:
            raise ApiError(400, f"invalid field selector {term!r}")
        tests.append((match[1].split("."), match[2] == "!=", match[3]))

    def holds(tree):
        for path, negated, value in tests:
            found = tree
            for part in path:
                found = (found or {}).get(part)
            if (str(found or "") == value) is negated:
                return False
        return True

    return holds


def _label_test(term):
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, negated, values = match[1], match[2] == "notin", {value.strip() for value in match[3].split(",")}
        return lambda labels: (labels.get(key) in values) is not negated
    if match := re.fullmatch(r"([^=!\s]+)\s*(==|!=|=)\s*([^=!\s]*)", term):
        key, negated, value = match[1], match[2] == "!=", match[3]
        return lambda labels: (labels.get(key) == value) is not negated
    if match := re.fullmatch(r"(!?)([^=!\s()]+)", term):
        key, absent = match[2], bool(match[1])
        return lambda labels: (key in labels) is not absent
    raise ApiError(400, f"unable to parse requirement: {term!r}")
