-- Programs as they were last ingested.
CREATE TABLE programs (
  program_seq     INTEGER PRIMARY KEY,
  unified_id      TEXT    NOT NULL UNIQUE,
  source          TEXT    NOT NULL, -- the source fields in canonical JSON
  checksum        TEXT    NOT NULL CHECK (length(checksum) = 64), -- hex SHA-256 of source
  level_derived   INTEGER NOT NULL CHECK (level_derived IN (0, 1)), -- authority_level follows from prefectures
  created_at_ms   INTEGER NOT NULL,
  updated_at_ms   INTEGER NOT NULL
) STRICT;

-- Adoption records that were announced. The program need not be known here.
CREATE TABLE adoptions (
  adoption_id   TEXT    PRIMARY KEY,
  program_id    TEXT    NOT NULL,
  year          INTEGER NOT NULL,
  count_added   INTEGER NOT NULL CHECK (count_added >= 0),
  evidence_url  TEXT    NOT NULL, -- '': not known
  created_at_ms INTEGER NOT NULL
) STRICT;

-- Two programs that exclude each other.
CREATE TABLE exclusion_rules (
  rule_id       TEXT    PRIMARY KEY,
  program_a     TEXT    NOT NULL,
  program_b     TEXT    NOT NULL,
  kind          TEXT    NOT NULL,
  severity      TEXT    NOT NULL,
  created_at_ms INTEGER NOT NULL
) STRICT;

-- Who was told of a rule: once per customer, whichever side it tracks.
CREATE TABLE exclusion_rule_events (
  rule_id     TEXT NOT NULL REFERENCES exclusion_rules (rule_id),
  customer_id TEXT NOT NULL REFERENCES customers (customer_id),
  event_id    TEXT NOT NULL,
  PRIMARY KEY (rule_id, customer_id)
) STRICT, WITHOUT ROWID;

-- Customers' filters, which new programs are matched against. Never changed:
-- a filter is added or deleted.
CREATE TABLE saved_filters (
  filter_seq    INTEGER PRIMARY KEY AUTOINCREMENT, -- matching walks in this order
  filter_id     TEXT    NOT NULL UNIQUE,
  customer_id   TEXT    NOT NULL REFERENCES customers (customer_id),
  filter        TEXT    NOT NULL, -- JSON: attribute → any of
  created_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX saved_filters_customer ON saved_filters (customer_id, filter_seq);

-- What matched, for good: it outlives the filter, since a program is new once.
CREATE TABLE filter_matches (
  filter_id  TEXT NOT NULL,
  unified_id TEXT NOT NULL,
  PRIMARY KEY (filter_id, unified_id)
) STRICT, WITHOUT ROWID;

-- Programs that a customer wants to hear rules about; they need not be known yet.
CREATE TABLE tracked_programs (
  track_seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- fan-out walks in this order
  customer_id   TEXT    NOT NULL REFERENCES customers (customer_id),
  unified_id    TEXT    NOT NULL,
  created_at_ms INTEGER NOT NULL,
  UNIQUE (customer_id, unified_id)
) STRICT;
CREATE INDEX tracked_programs_list ON tracked_programs (customer_id, track_seq);
CREATE INDEX tracked_programs_program ON tracked_programs (unified_id, track_seq);

-- Work that is left, written with the state that causes it, gone when done.
--   match_filters   a new program against saved filters; subject: its program.created event
--   exclusion_rule  a new rule to those who track its programs; subject: the rule
CREATE TABLE program_jobs (
  job_seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the oldest goes first
  kind    TEXT    NOT NULL CHECK (kind IN ('match_filters', 'exclusion_rule')),
  subject TEXT    NOT NULL,
  cursor  INTEGER NOT NULL DEFAULT 0, -- filter_seq or track_seq up to which it is done
  last    INTEGER NOT NULL,           -- the last one that existed when the state was committed
  UNIQUE (kind, subject)
) STRICT;
