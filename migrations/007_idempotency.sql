-- Calls that were made with an Idempotency-Key, for a day: the same key again
-- is answered with the first answer. Of the key there is only a hash: callers
-- choose it, and may put there what should not lie in this file.
CREATE TABLE idempotency_keys (
  key_seq       INTEGER PRIMARY KEY, -- rises: the oldest come first
  key_hash      BLOB    NOT NULL UNIQUE CHECK (length(key_hash) = 32), -- SHA-256 of the call, whose it is, and the key
  request       BLOB    NOT NULL CHECK (length(request) = 32), -- SHA-256 of what was asked for
  answer        BLOB    NOT NULL, -- JSON
  sealed        INTEGER NOT NULL CHECK (sealed IN (0, 1)), -- the answer has a secret and is sealed
  created_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX idempotency_keys_sealed ON idempotency_keys (key_seq) WHERE sealed = 1;
