-- The same states, in words that cost less: for a list of more than two values
-- SQLite fills a table of its own each time that it checks a row. The check is
-- all that changes and no row is touched, so the text is exchanged in its place,
-- as SQLite's manual has it for this.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
  'CHECK (status IN (''pending'', ''success'', ''failed'', ''dead_letter''))',
  'CHECK (status = ''pending'' OR status = ''success'' OR status = ''failed'' OR status = ''dead_letter'')')
WHERE type = 'table' AND name = 'webhook_deliveries';
PRAGMA writable_schema = RESET;
