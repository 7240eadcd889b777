-- The sweeps: once a day each of them holds what the outside world says against
-- this file.
--   audit     what was changed at the upstream, and by whom
--   accounts  each customer's credit, limit, state and keys there
--   events    the payment provider's events that never arrived
CREATE TABLE sweeps (
  sweep            TEXT    PRIMARY KEY CHECK (sweep IN ('audit', 'accounts', 'events')),
  done_until_ms    INTEGER, -- up to here everything was read; NULL: nothing yet
  position         TEXT,    -- in the round under way: the last customer that is done; NULL: at the beginning
  started_at_ms    INTEGER, -- the last try
  succeeded_at_ms  INTEGER, -- the last round that came to its end
  next_at_ms       INTEGER, -- NULL: not planned
  checked          INTEGER NOT NULL DEFAULT 0, -- what the last try has looked at: events, or customers
  failures         INTEGER NOT NULL DEFAULT 0, -- since the last success
  failing_since_ms INTEGER,
  last_error       TEXT,    -- a code
  lock_token       INTEGER NOT NULL DEFAULT 0, -- rises with each claim: who has an older one has lost it
  locked_until_ms  INTEGER,
  CHECK ((failures = 0) = (failing_since_ms IS NULL)),
  CHECK ((failures = 0) = (last_error IS NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO sweeps (sweep) VALUES ('audit'), ('accounts'), ('events');

-- Every change at the upstream that was read of, once.
--   ours       an operation has asked for it
--   foreign    something of a customer's was changed, and not by us
--   unmatched  it is about nothing that we know
--   undecided  an operation that is still open may have asked for it: judged again later
CREATE TABLE upstream_audit_seen (
  audit_seq      INTEGER PRIMARY KEY,
  audit_id       TEXT    NOT NULL UNIQUE,
  request_id     TEXT,
  action         TEXT    NOT NULL,
  target_type    TEXT    NOT NULL,
  target_id      TEXT    NOT NULL, -- '': it has not said
  external_ref   TEXT    NOT NULL, -- '': none
  source_ip      TEXT    NOT NULL, -- '': it has not said
  metadata       TEXT    NOT NULL, -- JSON: what of it is text
  occurred_at_ms INTEGER NOT NULL, -- by the upstream's clock
  seen_at_ms     INTEGER NOT NULL,
  classified     TEXT    NOT NULL CHECK (classified IN ('ours', 'foreign', 'unmatched', 'undecided')),
  operation_id   TEXT    REFERENCES partner_operations (operation_id),
  customer_id    TEXT    REFERENCES customers (customer_id),
  CHECK ((classified = 'ours') = (operation_id IS NOT NULL)),
  CHECK (classified <> 'foreign' OR customer_id IS NOT NULL),
  CHECK (classified <> 'unmatched' OR customer_id IS NULL)
) STRICT;
CREATE INDEX upstream_audit_seen_undecided ON upstream_audit_seen (audit_seq) WHERE classified = 'undecided';
CREATE INDEX upstream_audit_seen_operation ON upstream_audit_seen (operation_id) WHERE operation_id IS NOT NULL;

-- Where the outside world and this file disagree. What goes on is one row, and
-- what is over is resolved. What has happened (a foreign change) is never over:
-- somebody acknowledges it.
CREATE TABLE sweep_findings (
  finding_seq        INTEGER PRIMARY KEY,
  finding_id         TEXT    NOT NULL UNIQUE,
  kind               TEXT    NOT NULL CHECK (kind IN ('foreign_change', 'unmatched_change', 'failed_but_done', 'done_twice', 'money_differs', 'limit_differs',
                               'state_differs', 'keys_differ', 'unreadable', 'missed_events', 'refused_events', 'sweep_failing')),
  subject            TEXT    NOT NULL, -- an audit event, an operation, a group or a sweep, by the kind
  customer_id        TEXT    REFERENCES customers (customer_id),
  detail             TEXT    NOT NULL, -- JSON, by the kind
  first_seen_at_ms   INTEGER NOT NULL,
  last_seen_at_ms    INTEGER NOT NULL,
  alarmed_at_ms      INTEGER, -- NULL: no line of the log has counted it yet
  resolved_at_ms     INTEGER,
  acknowledged_at_ms INTEGER,
  acknowledged_by    TEXT    CHECK (acknowledged_by <> ''),
  note               TEXT    CHECK (note <> ''), -- of whoever has acknowledged it
  CHECK ((acknowledged_at_ms IS NULL) = (acknowledged_by IS NULL)),
  CHECK ((acknowledged_at_ms IS NULL) = (note IS NULL))
) STRICT;
CREATE UNIQUE INDEX sweep_findings_open ON sweep_findings (kind, subject) WHERE resolved_at_ms IS NULL;
CREATE INDEX sweep_findings_customer ON sweep_findings (customer_id, finding_seq) WHERE customer_id IS NOT NULL;
CREATE INDEX sweep_findings_silent ON sweep_findings (finding_seq) WHERE alarmed_at_ms IS NULL;

-- A stored answer says which request it was first given to: the one that audit
-- events name.
ALTER TABLE operation_attempts ADD COLUMN original_request_id TEXT;
CREATE INDEX operation_attempts_request ON operation_attempts (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX operation_attempts_original ON operation_attempts (original_request_id) WHERE original_request_id IS NOT NULL;
CREATE INDEX partner_operations_request ON partner_operations (request_path, external_ref) WHERE request_path IS NOT NULL;
