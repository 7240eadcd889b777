-- What billing knows of a customer, beside the tenant.
CREATE TABLE billing_accounts (
  customer_id    TEXT    PRIMARY KEY REFERENCES customers (customer_id),
  currency       TEXT    NOT NULL CHECK (length(currency) = 3),
  signup_version INTEGER NOT NULL CHECK (signup_version > 0),
  group_id       TEXT    UNIQUE, -- the upstream's; NULL: not made yet
  spend_status   TEXT    NOT NULL DEFAULT 'active' CHECK (spend_status IN ('active', 'frozen')),
  version        INTEGER NOT NULL DEFAULT 0, -- rises with each change
  created_at_ms  INTEGER NOT NULL
) STRICT;

-- Every change of the outside world, recorded before the first byte of it
-- leaves. What identifies one never changes, and none is ever deleted.
--   pending                 waits for its turn
--   succeeded               done, with the object that it made or changed
--   failed_retryable        sent, and to be sent again, the same bytes under the same key
--   failed_final            judged and refused, superseded, or known not to have happened
--   reconciling             it may have happened: the upstream is asked before anything else
--   reconciliation_needed   a person has to decide
-- A provision_customer is a parent: it sends nothing itself.
CREATE TABLE partner_operations (
  operation_seq           INTEGER PRIMARY KEY,
  operation_id            TEXT    NOT NULL UNIQUE,
  parent_operation_id     TEXT    REFERENCES partner_operations (operation_id),
  customer_id             TEXT    NOT NULL REFERENCES customers (customer_id),
  action                  TEXT    NOT NULL CHECK (action IN ('provision_customer', 'create_group', 'create_key', 'set_initial_limit', 'set_limit',
                                    'top_up_credit', 'debit_credit', 'revoke_key', 'freeze_group', 'thaw_group', 'delete_group', 'read_wallet')),
  intent                  TEXT    NOT NULL, -- what of the customer it is about: with action and version, the business intent
  intent_version          INTEGER NOT NULL CHECK (intent_version > 0),
  compensates_operation_id TEXT   REFERENCES partner_operations (operation_id),
  supersedes_operation_id TEXT    REFERENCES partner_operations (operation_id),
  approved_by             TEXT,
  next_action             TEXT    CHECK (next_action = 'create_key'), -- what its success begins: a key in place of the revoked one
  idempotency_key         TEXT    UNIQUE CHECK (length(idempotency_key) BETWEEN 1 AND 200),
  key_text                TEXT,   -- the key in full, where it was too long to be sent
  request_method          TEXT,
  request_path            TEXT,
  request_body            BLOB,   -- the bytes that are sent; NULL: none
  request_fingerprint     TEXT,
  template_version        TEXT,   -- what rendered them
  external_ref            TEXT,   -- the reference by which the upstream's object is found
  status                  TEXT    NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed_retryable', 'failed_final', 'reconciling', 'reconciliation_needed')),
  phase                   TEXT    CHECK (phase IN ('pending_create_group', 'group_created_key_pending', 'key_created_limit_pending', 'provisioned',
                                    'key_created_local_save_failed', 'blocked')),
  send_state              TEXT    NOT NULL DEFAULT 'not_sent' CHECK (send_state IN ('not_sent', 'maybe_sent', 'answered')),
  unknown_count           INTEGER NOT NULL DEFAULT 0, -- sends that may have happened without our knowing
  replayed_5xx            INTEGER NOT NULL DEFAULT 0, -- stored failures that came back
  attempt_count           INTEGER NOT NULL DEFAULT 0, -- sends that count; a refused key of ours does not
  first_sent_at_ms        INTEGER,
  replay_deadline_ms      INTEGER, -- until then the upstream knows the key for sure
  next_attempt_at_ms      INTEGER NOT NULL,
  reconciling_since_ms    INTEGER, -- while it is reconciling
  reconciled_at_ms        INTEGER, -- when the upstream was last asked and knew nothing of it
  model_gate_request_id   TEXT,
  target_public_id        TEXT,
  amount                  TEXT    CHECK (amount NOT GLOB '*[^0-9.-]*' AND length(amount) BETWEEN 1 AND 32),
  currency                TEXT    CHECK (length(currency) = 3),
  hold_reason             TEXT,
  last_error_code         TEXT,
  last_error_message      TEXT,
  lock_token              INTEGER NOT NULL DEFAULT 0, -- rises with each claim: who has an older one has lost it
  locked_by               TEXT,
  locked_until_ms         INTEGER,
  created_at_ms           INTEGER NOT NULL,
  updated_at_ms           INTEGER NOT NULL,
  finished_at_ms          INTEGER,
  UNIQUE (customer_id, action, intent, intent_version),
  CHECK ((action = 'provision_customer') = (idempotency_key IS NULL)),
  CHECK ((action = 'provision_customer') = (phase IS NOT NULL)),
  CHECK ((action = 'provision_customer') = (request_fingerprint IS NULL)),
  CHECK ((status IN ('succeeded', 'failed_final')) = (finished_at_ms IS NOT NULL)),
  CHECK ((status = 'reconciling') = (reconciling_since_ms IS NOT NULL)),
  CHECK (status <> 'succeeded' OR target_public_id IS NOT NULL),
  CHECK ((send_state = 'not_sent') = (first_sent_at_ms IS NULL)),
  CHECK ((first_sent_at_ms IS NULL) = (replay_deadline_ms IS NULL)),
  CHECK ((locked_by IS NULL) = (locked_until_ms IS NULL)),
  CHECK (hold_reason IS NULL OR status IN ('pending', 'failed_retryable', 'reconciling')),
  CHECK ((amount IS NULL) = (currency IS NULL))
) STRICT;
CREATE INDEX partner_operations_due ON partner_operations (next_attempt_at_ms) WHERE status IN ('pending', 'failed_retryable', 'reconciling');
CREATE INDEX partner_operations_customer ON partner_operations (customer_id, operation_seq);
CREATE INDEX partner_operations_status ON partner_operations (status, operation_seq);
CREATE INDEX partner_operations_parent ON partner_operations (parent_operation_id) WHERE parent_operation_id IS NOT NULL;
CREATE INDEX partner_operations_locked ON partner_operations (customer_id, locked_until_ms) WHERE locked_until_ms IS NOT NULL;
CREATE INDEX partner_operations_held ON partner_operations (hold_reason) WHERE hold_reason IS NOT NULL;
CREATE UNIQUE INDEX partner_operations_target ON partner_operations (action, target_public_id)
  WHERE target_public_id IS NOT NULL AND action IN ('create_group', 'create_key', 'top_up_credit', 'debit_credit');

CREATE TRIGGER partner_operations_identity BEFORE UPDATE ON partner_operations WHEN
  OLD.operation_id IS NOT NEW.operation_id OR OLD.parent_operation_id IS NOT NEW.parent_operation_id OR OLD.action IS NOT NEW.action
  OR OLD.customer_id IS NOT NEW.customer_id OR OLD.intent IS NOT NEW.intent OR OLD.intent_version IS NOT NEW.intent_version
  OR OLD.created_at_ms IS NOT NEW.created_at_ms OR OLD.amount IS NOT NEW.amount OR OLD.currency IS NOT NEW.currency
  OR OLD.idempotency_key IS NOT NEW.idempotency_key OR OLD.external_ref IS NOT NEW.external_ref OR OLD.next_action IS NOT NEW.next_action
  OR (OLD.request_fingerprint IS NOT NULL AND (OLD.request_fingerprint IS NOT NEW.request_fingerprint OR OLD.request_body IS NOT NEW.request_body
    OR OLD.request_method IS NOT NEW.request_method OR OLD.request_path IS NOT NEW.request_path))
  OR (OLD.first_sent_at_ms IS NOT NULL AND (OLD.first_sent_at_ms IS NOT NEW.first_sent_at_ms OR OLD.replay_deadline_ms IS NOT NEW.replay_deadline_ms))
BEGIN SELECT RAISE(ABORT, 'what identifies an operation never changes'); END;
CREATE TRIGGER partner_operations_terminal BEFORE UPDATE OF status ON partner_operations WHEN OLD.status = 'succeeded' AND NEW.status <> 'succeeded'
BEGIN SELECT RAISE(ABORT, 'a succeeded operation stays so'); END;
CREATE TRIGGER partner_operations_keep BEFORE DELETE ON partner_operations
BEGIN SELECT RAISE(ABORT, 'operations are never deleted'); END;

-- One row per request that was about to be sent, committed before its first byte.
CREATE TABLE operation_attempts (
  operation_id        TEXT    NOT NULL REFERENCES partner_operations (operation_id),
  attempt_no          INTEGER NOT NULL CHECK (attempt_no > 0),
  lock_token          INTEGER NOT NULL, -- of the claim that it was made under
  kind                TEXT    NOT NULL CHECK (kind IN ('send', 'replay', 'reconcile')), -- reconcile: a replay that is to tell what has happened
  started_at_ms       INTEGER NOT NULL,
  finished_at_ms      INTEGER,          -- NULL: under way, or this program died
  wrote_request       INTEGER CHECK (wrote_request IN (0, 1)),
  outcome             TEXT,             -- the class of what came of it
  http_status         INTEGER,
  error_code          TEXT,
  request_id          TEXT,             -- the upstream's
  idempotent_replayed INTEGER CHECK (idempotent_replayed IN (0, 1)),
  retry_after_raw     TEXT,
  server_date_ms      INTEGER,
  response_sha256     TEXT,
  response_excerpt    TEXT,             -- masked; none of an answer with a secret
  PRIMARY KEY (operation_id, attempt_no),
  CHECK ((finished_at_ms IS NULL) = (outcome IS NULL))
) STRICT, WITHOUT ROWID;
CREATE TRIGGER operation_attempts_keep BEFORE DELETE ON operation_attempts
BEGIN SELECT RAISE(ABORT, 'attempts are never deleted'); END;

-- What the upstream was asked, and what followed from its answer.
CREATE TABLE reconcile_evidence (
  evidence_seq INTEGER PRIMARY KEY,
  operation_id TEXT    NOT NULL REFERENCES partner_operations (operation_id),
  at_ms        INTEGER NOT NULL,
  surface      TEXT    NOT NULL, -- groups, keys, limits, transactions, audit, late_result
  query        TEXT    NOT NULL,
  http_status  INTEGER,
  matched      INTEGER NOT NULL, -- how many objects
  match_ids    TEXT    NOT NULL, -- their ids, comma
  verdict      TEXT    NOT NULL,
  sha256       TEXT    NOT NULL  -- of what was read
) STRICT;
CREATE INDEX reconcile_evidence_operation ON reconcile_evidence (operation_id, evidence_seq);

-- What people decided, on the same record; and what the program did that people
-- may have to account for (who is system).
CREATE TABLE operator_notes (
  note_seq     INTEGER PRIMARY KEY,
  operation_id TEXT    NOT NULL REFERENCES partner_operations (operation_id),
  at_ms        INTEGER NOT NULL,
  who          TEXT    NOT NULL CHECK (who <> ''),
  action       TEXT    NOT NULL,
  note         TEXT    NOT NULL
) STRICT;
CREATE INDEX operator_notes_operation ON operator_notes (operation_id, note_seq);

-- The upstream's keys that customers use models with.
CREATE TABLE model_keys (
  key_id        TEXT    PRIMARY KEY, -- the upstream's
  customer_id   TEXT    NOT NULL REFERENCES customers (customer_id),
  operation_id  TEXT    NOT NULL UNIQUE REFERENCES partner_operations (operation_id), -- that made it
  purpose       TEXT    NOT NULL,
  key_version   INTEGER NOT NULL,    -- of that purpose
  status        TEXT    NOT NULL CHECK (status IN ('active', 'frozen', 'revoked')),
  version       INTEGER NOT NULL,    -- rises with each change of status
  created_at_ms INTEGER NOT NULL,
  UNIQUE (customer_id, purpose, key_version)
) STRICT;
CREATE UNIQUE INDEX model_keys_usable ON model_keys (customer_id, purpose) WHERE status <> 'revoked';

-- Their secrets, sealed in the transaction that learned of them.
CREATE TABLE key_secrets (
  operation_id   TEXT    PRIMARY KEY REFERENCES partner_operations (operation_id),
  key_id         TEXT    NOT NULL UNIQUE,
  sealed         BLOB,               -- NULL: it was shown, and is kept no longer
  created_at_ms  INTEGER NOT NULL,
  revealed_at_ms INTEGER,
  CHECK ((sealed IS NULL) = (revealed_at_ms IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- Answers that came when their sender had lost its claim: whoever has it now
-- reads them first.
CREATE TABLE late_results (
  late_seq     INTEGER PRIMARY KEY,
  operation_id TEXT    NOT NULL REFERENCES partner_operations (operation_id),
  lock_token   INTEGER NOT NULL,
  at_ms        INTEGER NOT NULL,
  http_status  INTEGER NOT NULL,
  sealed_body  BLOB    NOT NULL,
  read_at_ms   INTEGER
) STRICT;
CREATE INDEX late_results_unread ON late_results (operation_id) WHERE read_at_ms IS NULL;

-- Every spend limit that a customer was to have, by version.
CREATE TABLE limit_policies (
  customer_id    TEXT    NOT NULL REFERENCES customers (customer_id),
  policy_version INTEGER NOT NULL CHECK (policy_version > 0),
  spend_limit    TEXT    NOT NULL CHECK (spend_limit NOT GLOB '*[^0-9.]*' AND length(spend_limit) BETWEEN 1 AND 32),
  currency       TEXT    NOT NULL CHECK (length(currency) = 3),
  period         TEXT    NOT NULL,
  approved_by    TEXT    NOT NULL CHECK (approved_by <> ''),
  created_at_ms  INTEGER NOT NULL,
  PRIMARY KEY (customer_id, policy_version)
) STRICT, WITHOUT ROWID;

-- Idempotency-Keys of the operator's calls that begin operations: for ever. Of
-- the key there is only a hash.
CREATE TABLE billing_calls (
  key_hash      BLOB    PRIMARY KEY CHECK (length(key_hash) = 32),
  request       BLOB    NOT NULL CHECK (length(request) = 32), -- SHA-256 of what was asked for
  operation_id  TEXT    NOT NULL REFERENCES partner_operations (operation_id),
  created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
