"""Verifies the signature of a webhook. It needs Python 3 and nothing else.

Copy the first part into your receiver and call verify() before you look at
anything else. The last part is for tests: python3 verify.py cases.json
"""

import base64
import hashlib
import hmac
import json
import re
import sys
import time

SIGNATURE = "x-jpintel-signature"  # in lower case; another brand has another name
TOLERANCE = 5 * 60  # seconds, in both directions


def verify(headers, body, secret, now=None):
    """Reports whether a request comes from us, unchanged and just now.

    headers: names to values; the names in any case
    body:    the raw bytes as they came, before any parser has touched them
    secret:  the signing secret as it was shown to you, "whsec_" included
    now:     unix seconds; left out: this machine's clock

    A request carries two kinds of signatures, made with the same secret. Each
    kind that is there has to be right, and at least one has to be there.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    now = time.time() if now is None else now
    verdicts = []
    if SIGNATURE in headers:
        verdicts.append(_verify_jpintel(headers, body, secret, now))
    if "webhook-signature" in headers:
        verdicts.append(_verify_standard(headers, body, secret, now))
    return bool(verdicts) and all(verdicts)


def _verify_jpintel(headers, body, secret, now):
    """t=<seconds>,v1=<hex>[,v1=<hex>…], in any order; others are ignored."""
    timestamp, given = "", []
    for element in headers[SIGNATURE].split(","):
        name, _, value = element.strip().partition("=")
        if name == "t":
            timestamp = value
        elif name == "v1":
            given.append(value)
    if not _is_recent(timestamp, now):
        return False
    mac = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return _is_any(mac.hexdigest(), given)


def _verify_standard(headers, body, secret, now):
    """Standard Webhooks: v1,<base64>[ v1,<base64>…]; others are ignored."""
    event_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    given = [s[3:] for s in headers["webhook-signature"].split() if s.startswith("v1,")]
    if not _is_recent(timestamp, now):
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return _is_any(base64.b64encode(mac.digest()).decode(), given)


def _is_recent(timestamp, now):
    if not re.fullmatch("[0-9]{1,12}", timestamp):
        return False
    return abs(now - int(timestamp)) <= TOLERANCE


def _is_any(expected, given):
    """Tries every signature: while a secret is replaced there are several."""
    return any(hmac.compare_digest(expected.encode(), s.encode()) for s in given)


# --- for tests ---


def main():
    """Reads a case, or a list of them, and prints a verdict for each."""
    with open(sys.argv[1], encoding="utf-8") if len(sys.argv) > 1 else sys.stdin as file:
        cases = json.load(file)
    for case in cases if isinstance(cases, list) else [cases]:
        ok = verify(case["headers"], case["body"].encode(), case["secret"], case["now"])
        print("accepted" if ok else "rejected", case["name"])


if __name__ == "__main__":
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8")
    main()
