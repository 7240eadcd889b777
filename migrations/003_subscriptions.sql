CREATE TABLE webhook_subscriptions (
  sub_seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- fan-out walks in this order
  subscription_id  TEXT    NOT NULL UNIQUE,
  customer_id      TEXT    NOT NULL REFERENCES customers (customer_id),
  url              TEXT    NOT NULL,                  -- canonical form
  events           TEXT    NOT NULL,                  -- JSON list of types
  filter           TEXT    NOT NULL DEFAULT '{}',     -- JSON: attribute → any of
  envelope         TEXT    NOT NULL CHECK (envelope IN ('v1', 'v2')),
  description      TEXT    NOT NULL DEFAULT '',
  since_seq        INTEGER NOT NULL,                  -- only later events match: it was active when they were committed
  generation       INTEGER NOT NULL DEFAULT 1,        -- rises when it is disabled; deliveries of an older one are failed
  sweep            INTEGER NOT NULL DEFAULT 0 CHECK (sweep IN (0, 1)), -- pending deliveries of an older generation are to be written down as failed
  failures_streak  INTEGER NOT NULL DEFAULT 0,
  probation        INTEGER NOT NULL DEFAULT 1 CHECK (probation IN (0, 1)), -- new, or the last outcome was a timeout or no connection
  last_dns         INTEGER NOT NULL DEFAULT 0 CHECK (last_dns IN (0, 1)), -- the last outcome was a failed look-up: the next one counts in the streak
  dead_letters     INTEGER NOT NULL DEFAULT 0,        -- since it was last enabled
  last_delivery_at_ms INTEGER,                        -- the last attempt's end
  last_success_at_ms  INTEGER,
  last_status      INTEGER,                           -- the last attempt's HTTP status; NULL: no answer
  created_at_ms    INTEGER NOT NULL,
  disabled_at_ms   INTEGER,
  disabled_reason  TEXT    CHECK (disabled_reason IN ('4xx_streak', '410_gone', 'cost_cap', 'dead_letter_overflow', 'failing', 'tier', 'user', 'user_opt_out')),
  deleted_at_ms    INTEGER CHECK (deleted_at_ms IS NULL OR disabled_at_ms IS NOT NULL),
  CHECK ((disabled_at_ms IS NULL) = (disabled_reason IS NULL))
) STRICT;
CREATE INDEX webhook_subscriptions_customer ON webhook_subscriptions (customer_id, sub_seq);
CREATE INDEX webhook_subscriptions_active ON webhook_subscriptions (sub_seq) WHERE disabled_at_ms IS NULL;
CREATE INDEX webhook_subscriptions_sweep ON webhook_subscriptions (sub_seq) WHERE sweep = 1;

-- Signing secrets, sealed. The newest version has no end; replaced ones sign
-- beside it until theirs.
CREATE TABLE webhook_secrets (
  sub_seq             INTEGER NOT NULL REFERENCES webhook_subscriptions (sub_seq),
  version             INTEGER NOT NULL,
  signing_secret_hash BLOB    NOT NULL, -- HMAC-SHA256(secret, salt): identification and audit
  sealed              BLOB    NOT NULL, -- AES-256-GCM under the master key
  created_at_ms       INTEGER NOT NULL,
  expires_at_ms       INTEGER,
  PRIMARY KEY (sub_seq, version)
) STRICT, WITHOUT ROWID;
