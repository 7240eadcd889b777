-- What customers have used of models, as the upstream tells it request by
-- request. SQL never adds or compares amounts.

-- A usage record: what of one day is closed together. Number 1 is the day's; what
-- is told when that is closed goes into the next number.
CREATE TABLE usage_records (
  customer_id   TEXT    NOT NULL REFERENCES customers (customer_id),
  day           TEXT    NOT NULL, -- YYYY-MM-DD in JPINTEL_TIMEZONE
  record_no     INTEGER NOT NULL CHECK (record_no > 0),
  currency      TEXT    NOT NULL CHECK (length(currency) = 3),
  cost          TEXT    NOT NULL CHECK (cost NOT GLOB '*[^0-9.]*' AND length(cost) BETWEEN 1 AND 32), -- of all its requests so far
  requests      INTEGER NOT NULL CHECK (requests > 0),
  open          INTEGER NOT NULL CHECK (open BETWEEN 0 AND requests), -- of which the cost may still change
  start_ms      INTEGER NOT NULL, -- of the day
  end_ms        INTEGER NOT NULL, -- exclusive
  changed_at_ms INTEGER NOT NULL,
  closed_at_ms  INTEGER,          -- with its journal entry and its event
  PRIMARY KEY (customer_id, day, record_no),
  CHECK (closed_at_ms IS NULL OR open = 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_records_open ON usage_records (end_ms) WHERE closed_at_ms IS NULL;
CREATE TRIGGER usage_records_closed BEFORE UPDATE ON usage_records WHEN OLD.closed_at_ms IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a closed usage record stays as it is'); END;
CREATE TRIGGER usage_records_keep BEFORE DELETE ON usage_records
BEGIN SELECT RAISE(ABORT, 'usage records are never deleted'); END;

-- The requests themselves: no more of them than it takes to count each once and
-- to know what is not final. They go when nobody asks for their time any more.
CREATE TABLE usage_requests (
  request_id    TEXT    PRIMARY KEY, -- the upstream's
  customer_id   TEXT    NOT NULL,
  day           TEXT    NOT NULL,
  record_no     INTEGER NOT NULL,
  cost          TEXT    NOT NULL CHECK (cost NOT GLOB '*[^0-9.]*' AND length(cost) BETWEEN 1 AND 32),
  made_at_ms    INTEGER NOT NULL,    -- by the upstream's clock
  next_look_ms  INTEGER,             -- NULL: its cost is final
  FOREIGN KEY (customer_id, day, record_no) REFERENCES usage_records (customer_id, day, record_no)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_requests_look ON usage_requests (customer_id, next_look_ms) WHERE next_look_ms IS NOT NULL;
CREATE INDEX usage_requests_age ON usage_requests (made_at_ms);

-- How far a customer's requests have been read.
--   head   what is new: at_ms is the instant up to which everything was read
--   sweep  the last days again, once a day, for what has come late
CREATE TABLE usage_passes (
  customer_id TEXT    NOT NULL REFERENCES customers (customer_id),
  pass        TEXT    NOT NULL CHECK (pass IN ('head', 'sweep')),
  at_ms       INTEGER NOT NULL, -- read up to here
  until_ms    INTEGER NOT NULL, -- where it ends
  PRIMARY KEY (customer_id, pass),
  CHECK (at_ms <= until_ms)
) STRICT, WITHOUT ROWID;

-- Sums that limits are held against.
CREATE TABLE meters (
  customer_id TEXT NOT NULL REFERENCES customers (customer_id),
  meter       TEXT NOT NULL, -- model_spend
  period      TEXT NOT NULL, -- of model_spend: YYYY-MM in JPINTEL_TIMEZONE
  value       TEXT NOT NULL CHECK (value NOT GLOB '*[^0-9.]*' AND length(value) BETWEEN 1 AND 32),
  PRIMARY KEY (customer_id, meter, period)
) STRICT, WITHOUT ROWID;

-- What a webhook attempt costs, from a day on: a statement of a past month comes
-- out the same when the price has changed.
CREATE TABLE attempt_prices (
  from_day TEXT PRIMARY KEY, -- YYYY-MM-DD in JPINTEL_TIMEZONE; the first one is 0000-01-01
  price    TEXT NOT NULL CHECK (price NOT GLOB '*[^0-9.]*' AND length(price) BETWEEN 1 AND 32) -- JPY
) STRICT, WITHOUT ROWID;
