-- What payment providers have told us: each event once, as it first came,
-- however often it is delivered.
--   received   stored; to be worked on at next_attempt_at_ms
--   held       waits for a customer, a provisioning or a person
--   fulfilled  what it says is in the facts
--   ignored    nothing follows from it
--   failed     could not be worked on; tried again at next_attempt_at_ms, where there is one
CREATE TABLE payment_webhook_events (
  event_seq            INTEGER PRIMARY KEY,
  provider             TEXT    NOT NULL CHECK (provider = 'stripe'),
  event_id             TEXT    NOT NULL,
  event_type           TEXT    NOT NULL,
  event_created_ms     INTEGER NOT NULL, -- the provider's
  livemode             INTEGER NOT NULL CHECK (livemode IN (0, 1)),
  api_version          TEXT,
  received_at_ms       INTEGER NOT NULL,
  last_received_at_ms  INTEGER NOT NULL,
  delivery_count       INTEGER NOT NULL DEFAULT 1 CHECK (delivery_count > 0),
  payload              BLOB    NOT NULL, -- the bytes that were signed; personal data: never logged
  payload_hash         TEXT    NOT NULL, -- SHA-256 of them
  semantic_hash        TEXT    NOT NULL, -- SHA-256 of what they tell
  other_semantic_hash  TEXT,             -- of a later delivery that told something else; NULL: none has
  processing_status    TEXT    NOT NULL DEFAULT 'received' CHECK (processing_status IN ('received', 'held', 'fulfilled', 'ignored', 'failed')),
  attempt_count        INTEGER NOT NULL DEFAULT 0, -- since it was received, or an operator had it run again
  next_attempt_at_ms   INTEGER, -- NULL: nothing happens by itself
  related_customer_id  TEXT,    -- whom it names, also where there is no such customer
  related_payment_id   TEXT,
  related_operation_id TEXT    REFERENCES partner_operations (operation_id), -- that it has begun
  last_error           TEXT,    -- or why it is held or ignored
  UNIQUE (provider, event_id),
  CHECK (processing_status <> 'received' OR next_attempt_at_ms IS NOT NULL),
  CHECK (processing_status IN ('received', 'failed') OR next_attempt_at_ms IS NULL)
) STRICT;
CREATE INDEX payment_webhook_events_due ON payment_webhook_events (next_attempt_at_ms) WHERE next_attempt_at_ms IS NOT NULL;
CREATE INDEX payment_webhook_events_status ON payment_webhook_events (processing_status, event_seq);
CREATE INDEX payment_webhook_events_customer ON payment_webhook_events (related_customer_id, event_seq) WHERE related_customer_id IS NOT NULL;
CREATE INDEX payment_webhook_events_payment ON payment_webhook_events (related_payment_id, event_seq) WHERE related_payment_id IS NOT NULL;
