"""A small receiver that does all that a receiver has to do: it verifies, stores
the event under its id before it answers, and works afterwards. It needs Python 3
and nothing else.

    JPINTEL_WEBHOOK_SECRETS=whsec_… python3 receiver.py --port 8787 --db inbox.db

While a secret is being replaced give both, separated by a comma. In production
something that speaks HTTPS stands in front of it.
"""

import argparse
import http.server
import json
import os
import sqlite3
import sys
import threading

from verify import verify

MAX_BODY = 128 * 1024  # an event's data has 64 KiB at most

SCHEMA = """
CREATE TABLE IF NOT EXISTS inbox (
    event_id TEXT PRIMARY KEY,  -- the same on every attempt, retry and replay
    body     TEXT NOT NULL,
    done     INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS to_read (
    unified_id TEXT PRIMARY KEY -- programs to read anew
);
CREATE TABLE IF NOT EXISTS model_keys (
    key_id  TEXT PRIMARY KEY,
    status  TEXT NOT NULL,
    version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS bookings (
    source_id TEXT PRIMARY KEY, -- what caused it: one booking for each, whatever comes twice
    amount    TEXT NOT NULL,    -- a decimal, never a float
    currency  TEXT NOT NULL
);
"""


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            return self.answer(413)
        body = self.rfile.read(length)
        # 1. Verify, on the raw bytes, with each secret that may be in use.
        if not any(verify(self.headers, body, secret) for secret in self.server.secrets):
            return self.answer(401)
        # 2. Store, under a unique id. The commit is on the disk when this returns.
        event_id = json.loads(body)["event_id"]
        try:
            db = connect(self.server.database)
            with db:
                db.execute("INSERT OR IGNORE INTO inbox (event_id, body) VALUES (?, ?)", (event_id, body.decode()))
            db.close()
        except sqlite3.Error:
            return self.answer(503)  # it will come again
        # 3. Answer. A repeated event is accepted, too: it is stored already.
        self.answer(204)
        # 4. Work afterwards.
        self.server.wake.set()

    def answer(self, status):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def connect(database):
    return sqlite3.connect(database, timeout=5)


def work(database, wake):
    """Applies what is in the inbox, each event once, for ever."""
    db = connect(database)
    while True:
        wake.clear()
        for event_id, body in db.execute("SELECT event_id, body FROM inbox WHERE done = 0 ORDER BY rowid").fetchall():
            with db:  # the effect and its mark are one transaction
                apply(db, json.loads(body))
                db.execute("UPDATE inbox SET done = 1 WHERE event_id = ?", (event_id,))
            print("applied", event_id, flush=True)
        wake.wait()


def apply(db, event):
    """What an event means to you. It must not matter in which order events come."""
    data = event["data"]
    kind = event.get("event_type") or event["type"]  # envelope v1, v2
    if kind in ("program.created", "program.updated"):
        # It says that something changed. What it is now, read from the API.
        db.execute("INSERT OR IGNORE INTO to_read (unified_id) VALUES (?)", (data["unified_id"],))
    elif kind == "key.status_changed":
        # Only what is newer: an older event may come later.
        db.execute(
            "INSERT INTO model_keys (key_id, status, version) VALUES (?, ?, ?) ON CONFLICT (key_id) DO UPDATE"
            " SET status = excluded.status, version = excluded.version WHERE excluded.version > version",
            (data["key_id"], data["current_status"], data["version"]),
        )
    elif kind == "credit.adjustment_posted":
        # Keyed by what caused it, not by the event.
        db.execute(
            "INSERT OR IGNORE INTO bookings (source_id, amount, currency) VALUES (?, ?, ?)",
            (data["source_id"], data["amount"], data["currency"]),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--port", type=int, default=8787, help="where to listen; 0 picks a free port")
    parser.add_argument("--db", default="inbox.db", help="where to keep the events")
    options = parser.parse_args()
    secrets = [s.strip() for s in os.environ.get("JPINTEL_WEBHOOK_SECRETS", "").split(",") if s.strip()]
    if not secrets:
        sys.exit("JPINTEL_WEBHOOK_SECRETS is not set: give the signing secret, whsec_ included")
    with connect(options.db) as db:
        db.executescript(SCHEMA)
    db.close()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Receiver)
    server.secrets, server.database, server.wake = secrets, options.db, threading.Event()
    threading.Thread(target=work, args=(options.db, server.wake), daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
