-- Double entry: every movement of money, once and for good. The lines of an
-- entry add up to zero, which is checked before they are written and whenever
-- somebody asks (jpintel ledger verify). SQL never adds them.
CREATE TABLE journal_entries (
  entry_seq         INTEGER PRIMARY KEY,
  entry_id          TEXT    NOT NULL UNIQUE,
  kind              TEXT    NOT NULL CHECK (kind <> ''), -- top_up, refund, dispute, usage, correction
  customer_id       TEXT    NOT NULL REFERENCES customers (customer_id),
  payment_id        TEXT,   -- that it is about
  source_id         TEXT    CHECK (source_id <> ''), -- what the customer is told that it is about
  operation_id      TEXT    UNIQUE REFERENCES partner_operations (operation_id), -- that it is the consequence of
  reverses_entry_id TEXT    UNIQUE REFERENCES journal_entries (entry_id),
  currency          TEXT    NOT NULL CHECK (length(currency) = 3),
  balance_after     TEXT    NOT NULL CHECK (balance_after NOT GLOB '*[^0-9.-]*' AND length(balance_after) BETWEEN 1 AND 32), -- the customer's credit in that currency
  correlation_id    TEXT    NOT NULL,
  occurred_at_ms    INTEGER NOT NULL, -- out there
  created_at_ms     INTEGER NOT NULL, -- here
  memo              TEXT    NOT NULL
) STRICT;
CREATE INDEX journal_entries_customer ON journal_entries (customer_id, entry_seq);
CREATE INDEX journal_entries_currency ON journal_entries (customer_id, currency, entry_seq);
CREATE INDEX journal_entries_payment ON journal_entries (payment_id, entry_seq) WHERE payment_id IS NOT NULL;

CREATE TABLE journal_lines (
  entry_id   TEXT    NOT NULL REFERENCES journal_entries (entry_id),
  line_no    INTEGER NOT NULL CHECK (line_no > 0),
  account    TEXT    NOT NULL CHECK (account <> ''),
  amount     TEXT    NOT NULL CHECK (amount NOT GLOB '*[^0-9.-]*' AND length(amount) BETWEEN 1 AND 32),
  amount_raw TEXT    NOT NULL CHECK (amount_raw NOT GLOB '*[^0-9.-]*' AND length(amount_raw) BETWEEN 1 AND 32), -- as it was received; the amount where it was computed
  PRIMARY KEY (entry_id, line_no)
) STRICT, WITHOUT ROWID;
CREATE INDEX journal_lines_account ON journal_lines (account);

CREATE TRIGGER journal_entries_fixed BEFORE UPDATE ON journal_entries
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_entries_keep BEFORE DELETE ON journal_entries
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_lines_fixed BEFORE UPDATE ON journal_lines
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_lines_keep BEFORE DELETE ON journal_lines
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
