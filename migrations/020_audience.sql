-- The number of a subscription's last change, of all changes: who holds
-- subscriptions in memory reads those with later ones. A change is what decides
-- which events it gets. A statement that changes several gives all of them one
-- number.
ALTER TABLE webhook_subscriptions ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX webhook_subscriptions_changed ON webhook_subscriptions (changed);

CREATE TRIGGER webhook_subscriptions_added AFTER INSERT ON webhook_subscriptions
BEGIN UPDATE webhook_subscriptions SET changed = (SELECT MAX(changed) + 1 FROM webhook_subscriptions) WHERE sub_seq = NEW.sub_seq; END;
CREATE TRIGGER webhook_subscriptions_altered AFTER UPDATE OF customer_id, events, filter, envelope, since_seq, generation, disabled_at_ms ON webhook_subscriptions
BEGIN UPDATE webhook_subscriptions SET changed = (SELECT MAX(changed) + 1 FROM webhook_subscriptions) WHERE sub_seq = NEW.sub_seq; END;
CREATE TRIGGER customers_entitled AFTER UPDATE OF tier, opted_out_at_ms ON customers
WHEN OLD.tier <> NEW.tier OR OLD.opted_out_at_ms IS NOT NEW.opted_out_at_ms
BEGIN UPDATE webhook_subscriptions SET changed = (SELECT MAX(changed) + 1 FROM webhook_subscriptions) WHERE customer_id = NEW.customer_id; END;

-- Where the newest change went, its number would be given again, and whoever has
-- seen it would not look.
CREATE TRIGGER webhook_subscriptions_keep BEFORE DELETE ON webhook_subscriptions
BEGIN SELECT RAISE(ABORT, 'subscriptions are disabled, never deleted'); END;
