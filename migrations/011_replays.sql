-- What subscriptions have missed: the stretches of the feed that were committed,
-- or not fanned out yet, while they were disabled. Recovering shortens them, so
-- nothing is recovered twice.
CREATE TABLE webhook_missed_ranges (
  sub_seq  INTEGER NOT NULL REFERENCES webhook_subscriptions (sub_seq),
  from_seq INTEGER NOT NULL, -- events later than this one …
  to_seq   INTEGER CHECK (to_seq > from_seq), -- … up to this one; NULL: it is disabled still
  PRIMARY KEY (sub_seq, from_seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX webhook_missed_ranges_open ON webhook_missed_ranges (sub_seq) WHERE to_seq IS NULL;
-- Of those that are disabled already, only what comes from now on is known.
INSERT INTO webhook_missed_ranges (sub_seq, from_seq)
SELECT sub_seq, (SELECT COALESCE(MAX(seq), 0) FROM outbox_events) FROM webhook_subscriptions
WHERE disabled_at_ms IS NOT NULL AND deleted_at_ms IS NULL;

-- Jobs that replay many deliveries, or recover what was missed, in steps.
--   running  until it has come to the end of what it walks, over days if the daily cap wants it
--   done     it has come to the end
--   stopped  the subscription was disabled or deleted
CREATE TABLE webhook_replays (
  replay_seq     INTEGER PRIMARY KEY,
  job_id         TEXT    NOT NULL UNIQUE,
  sub_seq        INTEGER NOT NULL REFERENCES webhook_subscriptions (sub_seq),
  status         TEXT    NOT NULL CHECK (status IN ('success', 'failed', 'dead_letter', 'missed')), -- what it replays
  since_ms       INTEGER NOT NULL, -- of the delivery's creation, of missed ones the event's
  until_ms       INTEGER NOT NULL, -- exclusive
  state          TEXT    NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped')),
  cursor         INTEGER NOT NULL DEFAULT 0, -- up to which delivery, or event, it has come
  matched        INTEGER NOT NULL DEFAULT 0,
  queued         INTEGER NOT NULL DEFAULT 0,
  skipped        INTEGER NOT NULL DEFAULT 0,
  created_at_ms  INTEGER NOT NULL,
  finished_at_ms INTEGER,
  CHECK ((state = 'running') = (finished_at_ms IS NULL)),
  CHECK (matched = queued + skipped)
) STRICT;
CREATE UNIQUE INDEX webhook_replays_running ON webhook_replays (sub_seq, status) WHERE state = 'running';
CREATE INDEX webhook_replays_due ON webhook_replays (replay_seq) WHERE state = 'running';
CREATE INDEX webhook_replays_finished ON webhook_replays (sub_seq, finished_at_ms);
