-- Events: one row per committed business fact, written in the transaction of
-- the state that it reports, never changed but for its fan-out's progress.
CREATE TABLE outbox_events (
  seq            INTEGER PRIMARY KEY AUTOINCREMENT, -- commit order: there is one writer; the feed's cursor
  event_id       TEXT    NOT NULL UNIQUE,
  event_type     TEXT    NOT NULL,
  customer_id    TEXT    REFERENCES customers (customer_id), -- the one customer it is for; NULL: all
  subject_type   TEXT    NOT NULL,
  subject_id     TEXT    NOT NULL,
  occurred_at_ms INTEGER NOT NULL,
  created_at     TEXT    NOT NULL, -- as envelope v1 shows it: a later change of the time zone changes no body
  created_at_ms  INTEGER NOT NULL,
  schema_version TEXT    NOT NULL,
  correlation_id TEXT,             -- the operation or posting that caused it
  request_id     TEXT,             -- the API call that caused it
  attributes     TEXT    NOT NULL, -- JSON: what filters look at, as it was at commit
  data           BLOB    NOT NULL CHECK (length(data) <= 65536), -- JSON bytes, sent as they are
  fanout_cursor  INTEGER NOT NULL DEFAULT 0, -- subscriptions up to this one have been considered
  published_at_ms INTEGER          -- fan-out complete
) STRICT;
CREATE INDEX outbox_unpublished ON outbox_events (seq) WHERE published_at_ms IS NULL;
CREATE INDEX outbox_feed ON outbox_events (customer_id, seq);
