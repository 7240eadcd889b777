-- Mails to customers, written in the transaction of what they report.
--   pending  waits for next_attempt_at_ms; an attempt sets the time of the next one before it begins
--   sent     the SMTP server has taken it
--   failed   the SMTP server has refused it for good, or the attempts are exhausted (last_error)
--   logged   there was no address to send it to, or no SMTP server: the log has it
CREATE TABLE mails (
  mail_seq        INTEGER PRIMARY KEY,
  mail_id         TEXT    NOT NULL UNIQUE, -- names it in its Message-ID
  customer_id     TEXT    NOT NULL REFERENCES customers (customer_id),
  subscription_id TEXT,                    -- what it is about, where that is a subscription
  kind            TEXT    NOT NULL,
  recipient       TEXT,                    -- NULL: the customer had no address
  subject         TEXT    NOT NULL,
  body            TEXT    NOT NULL,
  state           TEXT    NOT NULL CHECK (state IN ('pending', 'sent', 'failed', 'logged')),
  attempts        INTEGER NOT NULL DEFAULT 0,
  last_error      TEXT    NOT NULL DEFAULT '', -- the step and the server's code, never its words: those may hold the address
  next_attempt_at_ms INTEGER,
  created_at_ms   INTEGER NOT NULL,
  finished_at_ms  INTEGER,
  CHECK ((state = 'pending') = (next_attempt_at_ms IS NOT NULL)),
  CHECK ((state = 'pending') = (finished_at_ms IS NULL)),
  CHECK (state <> 'sent' OR recipient IS NOT NULL)
) STRICT;
CREATE INDEX mails_due ON mails (next_attempt_at_ms) WHERE state = 'pending';
CREATE INDEX mails_finished ON mails (finished_at_ms) WHERE finished_at_ms IS NOT NULL;

-- Since when a subscription has had nothing but failures: the first one after
-- its last success, or after it was enabled. NULL: its last result was none.
ALTER TABLE webhook_subscriptions ADD COLUMN failing_since_ms INTEGER;
-- When its owner was warned of that.
ALTER TABLE webhook_subscriptions ADD COLUMN failing_warned_at_ms INTEGER CHECK (failing_warned_at_ms IS NULL OR failing_since_ms IS NOT NULL);
CREATE INDEX webhook_subscriptions_failing ON webhook_subscriptions (failing_since_ms)
  WHERE failing_since_ms IS NOT NULL AND failing_warned_at_ms IS NULL AND disabled_at_ms IS NULL;
