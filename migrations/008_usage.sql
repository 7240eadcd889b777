-- Calls per customer and day, as they are reported, for the daily quota.
CREATE TABLE usage_days (
  customer_id TEXT    NOT NULL REFERENCES customers (customer_id),
  day         TEXT    NOT NULL, -- YYYY-MM-DD in JPINTEL_TIMEZONE
  calls       INTEGER NOT NULL CHECK (calls >= 0),
  PRIMARY KEY (customer_id, day)
) STRICT, WITHOUT ROWID;

-- Which daily_limit it is: a threshold is crossed once for each.
ALTER TABLE customers ADD COLUMN limit_version INTEGER NOT NULL DEFAULT 1;

-- Thresholds that were crossed, each with the event that told of it: there is
-- one for a customer, meter, period, limit version and threshold, for good.
CREATE TABLE threshold_crossings (
  customer_id   TEXT    NOT NULL REFERENCES customers (customer_id),
  meter         TEXT    NOT NULL,
  period        TEXT    NOT NULL, -- of daily_calls: the day
  limit_version INTEGER NOT NULL,
  percent       INTEGER NOT NULL,
  event_id      TEXT    NOT NULL UNIQUE, -- events are kept for a while only
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (customer_id, meter, period, limit_version, percent)
) STRICT, WITHOUT ROWID;
