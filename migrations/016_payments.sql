-- Payments as the payment provider tells of them: facts, in whatever order they
-- come. What follows from them is operations, and is never written here.
--   awaiting_payment   begun, not paid
--   failed             will not be paid
--   paid               paid: credit follows what is paid and not taken back
--   held               paid, and credit waits: hold_reason says for what
--   mismatch           paid, and events contradict each other: nothing more is credited
-- Once paid, a payment stays so: only a refund or a dispute takes it back.
CREATE TABLE payments (
  payment_seq           INTEGER PRIMARY KEY,
  payment_id            TEXT    NOT NULL UNIQUE,
  provider              TEXT    NOT NULL CHECK (provider = 'stripe'),
  payment_ref           TEXT,    -- the payment intent's id; NULL: only the checkout session is known
  session_ref           TEXT,    -- the checkout session's id
  charge_ref            TEXT,    -- the charge that was told last; payment_charges has all
  customer_id           TEXT,    -- whom the payment names: there may be no such customer
  currency              TEXT,    -- as it was told; NULL: not yet
  amount_minor          INTEGER NOT NULL CHECK (amount_minor >= 0), -- in minor units
  state                 TEXT    NOT NULL CHECK (state IN ('awaiting_payment', 'failed', 'paid', 'held', 'mismatch')),
  hold_reason           TEXT,
  paid_at_ms            INTEGER, -- when the provider made the event that told so
  first_event_id        TEXT,    -- that event: a part of the top-up's Idempotency-Key
  ledger_entry_id       TEXT    UNIQUE, -- of the top-up: it follows from payment_ref
  version               INTEGER NOT NULL, -- rises with each change
  last_event_created_ms INTEGER NOT NULL, -- of the event whose word counts while it is not paid: the newest,
  last_event_rank       INTEGER NOT NULL, -- and of two at a time the one that is further
  created_at_ms         INTEGER NOT NULL,
  updated_at_ms         INTEGER NOT NULL,
  UNIQUE (provider, payment_ref),
  CHECK (payment_ref IS NOT NULL OR session_ref IS NOT NULL),
  CHECK ((payment_ref IS NULL) = (ledger_entry_id IS NULL)),
  CHECK ((paid_at_ms IS NULL) = (state IN ('awaiting_payment', 'failed'))),
  CHECK ((paid_at_ms IS NULL) = (first_event_id IS NULL)),
  CHECK ((hold_reason IS NULL) = (state NOT IN ('held', 'mismatch')))
) STRICT;
CREATE INDEX payments_session ON payments (session_ref) WHERE session_ref IS NOT NULL;
CREATE INDEX payments_customer ON payments (customer_id, payment_seq) WHERE customer_id IS NOT NULL;
CREATE INDEX payments_held ON payments (customer_id, payment_seq) WHERE state = 'held';

-- Which charge belongs to which payment: refunds and disputes may name only the
-- one.
CREATE TABLE payment_charges (
  provider    TEXT NOT NULL CHECK (provider = 'stripe'),
  charge_ref  TEXT NOT NULL,
  payment_ref TEXT NOT NULL,
  PRIMARY KEY (provider, charge_ref)
) STRICT, WITHOUT ROWID;

-- What takes a payment back, wholly or in part. A fact may be here before its
-- payment is known.
CREATE TABLE payment_reversals (
  provider              TEXT    NOT NULL CHECK (provider = 'stripe'),
  reversal_ref          TEXT    NOT NULL, -- the refund's or dispute's id
  kind                  TEXT    NOT NULL CHECK (kind IN ('refund', 'dispute')),
  payment_ref           TEXT,    -- NULL: not known yet
  charge_ref            TEXT,
  amount_minor          INTEGER NOT NULL CHECK (amount_minor >= 0),
  currency              TEXT,    -- NULL: not told
  status                TEXT    NOT NULL, -- the provider's
  effective             INTEGER NOT NULL CHECK (effective IN (0, 1)), -- the money is gone
  withdrawn_at_ms       INTEGER, -- a dispute: when the provider last told that it has taken the money,
  reinstated_at_ms      INTEGER, -- and when that it has given it back
  last_event_created_ms INTEGER NOT NULL, -- newest wins, and of two at a time the higher rank
  last_event_rank       INTEGER NOT NULL,
  last_event_id         TEXT    NOT NULL,
  created_at_ms         INTEGER NOT NULL,
  updated_at_ms         INTEGER NOT NULL,
  PRIMARY KEY (provider, reversal_ref),
  CHECK (kind = 'dispute' OR withdrawn_at_ms IS NULL AND reinstated_at_ms IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX payment_reversals_payment ON payment_reversals (payment_ref) WHERE payment_ref IS NOT NULL;
CREATE INDEX payment_reversals_unlinked ON payment_reversals (charge_ref) WHERE payment_ref IS NULL;
