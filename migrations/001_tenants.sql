-- The control row: what every process on this file must agree on.
CREATE TABLE control (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  version    INTEGER NOT NULL,  -- bumped by every change that a process other than the server makes
  epoch      TEXT    NOT NULL,  -- names this history of the file; a restore changes it, old feed cursors then end
  kill_switch INTEGER NOT NULL DEFAULT 0 CHECK (kill_switch IN (0, 1)), -- no request to customers' URLs
  key_check  BLOB,              -- a sealed constant: tells a wrong master key at start, before it can do harm
  salt_check BLOB,              -- HMAC of a constant: tells a wrong salt at start
  created_at_ms INTEGER NOT NULL
) STRICT;

-- The tenant.
CREATE TABLE customers (
  customer_id   TEXT    PRIMARY KEY CHECK (length(customer_id) BETWEEN 1 AND 64),
  tier          TEXT    NOT NULL CHECK (tier IN ('free', 'paid')),
  email         TEXT,                     -- the owner's contact for notices
  beta          INTEGER NOT NULL DEFAULT 0 CHECK (beta IN (0, 1)),
  daily_limit   INTEGER CHECK (daily_limit > 0), -- API calls a day; NULL: no limit
  opted_out_at_ms INTEGER,                -- "stop all webhooks" since then
  created_at_ms INTEGER NOT NULL
) STRICT;

-- Keys of this service's API. The key itself is never stored.
CREATE TABLE api_keys (
  key_id          TEXT    PRIMARY KEY,
  customer_id     TEXT    NOT NULL REFERENCES customers (customer_id),
  key_hash        BLOB    NOT NULL UNIQUE CHECK (length(key_hash) = 32), -- HMAC-SHA256(key, salt)
  created_at_ms   INTEGER NOT NULL,
  last_used_at_ms INTEGER,
  revoked_at_ms   INTEGER
) STRICT;
CREATE INDEX api_keys_customer ON api_keys (customer_id);
