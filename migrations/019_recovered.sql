-- When this file was restored from a backup: what was accepted before may be
-- known to the partner API although nothing here says so. NULL: never.
ALTER TABLE control ADD COLUMN billing_recovered_at_ms INTEGER;
