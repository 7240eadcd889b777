-- One row per (event, subscription) pair.
--   pending      waits for next_attempt_at_ms, or is being sent: that is in memory only, so a crash leaves it pending
--   success      a 2xx was received
--   dead_letter  the attempts are exhausted
--   failed       given up because the subscription was disabled, deleted or no longer entitled (reason)
CREATE TABLE webhook_deliveries (
  delivery_seq   INTEGER PRIMARY KEY,
  delivery_id    TEXT    NOT NULL UNIQUE,
  event_seq      INTEGER NOT NULL REFERENCES outbox_events (seq),
  sub_seq        INTEGER NOT NULL REFERENCES webhook_subscriptions (sub_seq),
  generation     INTEGER NOT NULL, -- the subscription's when this was made
  envelope       TEXT    NOT NULL CHECK (envelope IN ('v1', 'v2')),
  status         TEXT    NOT NULL CHECK (status IN ('pending', 'success', 'failed', 'dead_letter')),
  reason         TEXT,             -- of failed
  attempt_count  INTEGER NOT NULL DEFAULT 0,
  schedule_base  INTEGER NOT NULL DEFAULT 0, -- attempts made before the present schedule began
  next_attempt_at_ms  INTEGER,
  last_status         INTEGER,
  last_latency_ms     INTEGER,
  last_error_category TEXT,
  created_at_ms  INTEGER NOT NULL,
  finished_at_ms INTEGER,
  UNIQUE (event_seq, sub_seq),
  CHECK ((status = 'pending') = (next_attempt_at_ms IS NOT NULL)),
  CHECK ((status = 'pending') = (finished_at_ms IS NULL)),
  CHECK ((status = 'failed') = (reason IS NOT NULL))
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (sub_seq, next_attempt_at_ms) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_list ON webhook_deliveries (sub_seq, delivery_seq);

-- One row per HTTP request, written with the delivery's new state.
CREATE TABLE webhook_attempts (
  delivery_seq     INTEGER NOT NULL REFERENCES webhook_deliveries (delivery_seq),
  attempt          INTEGER NOT NULL, -- from 1
  started_at_ms    INTEGER NOT NULL,
  duration_ms      INTEGER NOT NULL,
  status           INTEGER,          -- HTTP; NULL: no answer
  error_category   TEXT    NOT NULL DEFAULT '',
  error_detail     TEXT    NOT NULL DEFAULT '', -- in words
  response_excerpt TEXT    NOT NULL DEFAULT '', -- the first 512 bytes, masked
  remote_addr      TEXT    NOT NULL DEFAULT '',
  PRIMARY KEY (delivery_seq, attempt)
) STRICT, WITHOUT ROWID;

-- Outcomes per subscription and five minutes: success rates without scanning.
CREATE TABLE webhook_rates (
  sub_seq   INTEGER NOT NULL REFERENCES webhook_subscriptions (sub_seq),
  bucket_ms INTEGER NOT NULL,
  ok        INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  PRIMARY KEY (sub_seq, bucket_ms)
) STRICT, WITHOUT ROWID;

-- How many deliveries are in each state, as they are written down: gauges and
-- pages read these and count nothing.
CREATE TABLE webhook_totals (
  status     TEXT    PRIMARY KEY CHECK (status IN ('pending', 'success', 'failed', 'dead_letter')),
  deliveries INTEGER NOT NULL CHECK (deliveries >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO webhook_totals (status, deliveries) VALUES ('pending', 0), ('success', 0), ('failed', 0), ('dead_letter', 0);
