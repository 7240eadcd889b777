-- The guard's word for why nothing was sent; '': it has let the request through.
ALTER TABLE webhook_attempts ADD COLUMN blocked_reason TEXT NOT NULL DEFAULT '';
