-- Lists and the feed cost what they show, whatever else is in the file. What is
-- rare has an index of its own, which a delivery that succeeds never touches.
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (sub_seq, status, delivery_seq) WHERE status = 'failed' OR status = 'dead_letter';
CREATE INDEX webhook_deliveries_ended_all ON webhook_deliveries (status, delivery_seq) WHERE status = 'failed' OR status = 'dead_letter';
CREATE INDEX outbox_types ON outbox_events (event_type, customer_id, seq);

-- What retention has deleted from the feed: which cursors have lost events. A
-- row says that events up to seq were deleted, by the deletion that its version
-- numbers; rows that a later one of the same customer covers are gone. A cursor
-- bears the version at which it was given out, so what had been deleted before
-- that is not held against it.
CREATE TABLE feed_deletions (
  version     INTEGER PRIMARY KEY,
  customer_id TEXT    NOT NULL, -- whose events these were; '': for all
  seq         INTEGER NOT NULL  -- the last one
) STRICT;
CREATE INDEX feed_deletions_customer ON feed_deletions (customer_id, version, seq);
CREATE INDEX feed_deletions_seq ON feed_deletions (seq);
