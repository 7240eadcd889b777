-- Requests made per customer and day, for the daily cap and for metering. A
-- refused address is none. What is in flight is counted in memory before it
-- starts and written here with its result.
CREATE TABLE webhook_daily_attempts (
  customer_id TEXT    NOT NULL REFERENCES customers (customer_id),
  day         TEXT    NOT NULL, -- YYYY-MM-DD in JPINTEL_TIMEZONE
  attempts    INTEGER NOT NULL CHECK (attempts > 0),
  PRIMARY KEY (customer_id, day)
) STRICT, WITHOUT ROWID;
