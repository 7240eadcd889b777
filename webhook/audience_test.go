package webhook

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"jpintel/store"
	"jpintel/store/storetest"
)

// dueInFile is what an audience says, found out by looking at every row.
func dueInFile(tx *store.Tx, e *unpublished) ([]int64, error) {
	rows, err := tx.Query(`
		SELECT s.sub_seq, s.events, s.filter FROM webhook_subscriptions s JOIN customers c ON c.customer_id = s.customer_id
		WHERE s.disabled_at_ms IS NULL AND c.tier = 'paid' AND c.opted_out_at_ms IS NULL AND s.sub_seq > $1 AND s.since_seq < $2
		  AND ($3 = '' OR s.customer_id = $3) ORDER BY s.sub_seq`, e.cursor, e.seq, e.customer)
	if err != nil {
		return nil, err
	}
	due := []int64{}
	_, err = store.Collect(rows, func(rows *sql.Rows) (bool, error) {
		var sub int64
		var events, filter string
		if err := rows.Scan(&sub, &events, &filter); err != nil {
			return false, err
		}
		m, err := parseMatcher(sub, events, filter)
		if m.passes(e) {
			due = append(due, sub)
		}
		return true, err
	})
	return due, err
}

// audienceEvents are events of both scopes, with one and with several values of
// an attribute.
func audienceEvents() (events []unpublished) {
	for _, typ := range []Type{TypeProgramCreated, TypeProgramUpdated, TypeTierQuotaWarning} {
		for _, attributes := range []Attributes{nil, {"prefecture": {"a"}}, {"prefecture": {"a", "b"}, "unified_id": {"x"}}, {"unified_id": {"y"}}} {
			e := unpublished{attributes: attributes, storedEvent: storedEvent{typ: typ, seq: 5}}
			if typ == TypeTierQuotaWarning {
				e.customer = "cus_a"
			}
			after := e
			after.cursor = 3
			events = append(events, e, after)
		}
	}
	return events
}

// checkAudience refreshes the audience and holds it against the file.
func checkAudience(tx *store.Tx, a *audience) error {
	for current := false; !current; {
		var err error
		if current, err = a.refresh(tx); err != nil {
			return err
		}
	}
	for _, e := range audienceEvents() {
		want, err := dueInFile(tx, &e)
		if err != nil {
			return err
		}
		got := []int64{}
		for _, c := range a.of(&e) {
			var since, generation int64
			var envelope Envelope
			if err := tx.QueryRow(`SELECT since_seq, generation, envelope FROM webhook_subscriptions WHERE sub_seq = $1`, c.seq).Scan(&since, &generation, &envelope); err != nil {
				return err
			}
			if c.since != since || c.generation != generation || c.envelope != envelope {
				return fmt.Errorf("subscription %d: %+v, the file has %d %d %s", c.seq, c, since, generation, envelope)
			}
			got = append(got, c.seq)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s %v for %q after %d: %d, the file says %d", e.typ, e.attributes, e.customer, e.cursor, got, want)
		}
	}
	return nil
}

// alterations are statements that decide who gets what, and some that do not.
var alterations = []string{
	`INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, envelope, since_seq, created_at_ms)
	 SELECT 'sub_' || (COALESCE(MAX(sub_seq), 0) + 1), 'cus_a', 'https://example.com/', '["program.updated","tier.quota.warning"]', 'v1', 0, 1 FROM webhook_subscriptions WHERE $1 = $1`,
	`INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, filter, envelope, since_seq, created_at_ms)
	 SELECT 'sub_' || (COALESCE(MAX(sub_seq), 0) + 1), 'cus_b', 'https://example.com/', '["program.created","program.updated"]', '{"prefecture":["a","b"]}', 'v2', 0, 1 FROM webhook_subscriptions WHERE $1 = $1`,
	`UPDATE webhook_subscriptions SET filter = '{"prefecture":["a"],"unified_id":["x"]}' WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET filter = '{"unified_id":["x","y"]}' WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET filter = '{}', since_seq = 5 - since_seq WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET events = '["program.created"]', envelope = 'v2' WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET generation = generation + 1, disabled_at_ms = 1, disabled_reason = 'user' WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET disabled_at_ms = NULL, disabled_reason = NULL WHERE sub_seq = $1`,
	`UPDATE webhook_subscriptions SET disabled_at_ms = NULL, disabled_reason = NULL WHERE sub_seq > $1`,
	`UPDATE webhook_subscriptions SET probation = 1 - probation WHERE sub_seq = $1`,
	`UPDATE customers SET tier = CASE tier WHEN 'paid' THEN 'free' ELSE 'paid' END WHERE customer_id = 'cus_a' AND $1 = $1`,
	`UPDATE customers SET opted_out_at_ms = CASE WHEN opted_out_at_ms IS NULL THEN 1 END WHERE customer_id = 'cus_b' AND $1 = $1`,
}

// Whatever changes, and whether it is committed or not, the audience is that of
// the transaction that asks.
func TestAudienceFollowsTheFile(t *testing.T) {
	errUndone := errors.New("undone")
	db := storetest.New(t)
	storetest.Customer(t, db, "cus_a", store.TierPaid)
	storetest.Customer(t, db, "cus_b", store.TierPaid)
	exec(t, db, `DROP TRIGGER webhook_subscriptions_keep`) // each run begins anew
	rapid.Check(t, func(rt *rapid.T) {
		exec(t, db, `DELETE FROM webhook_subscriptions`)
		exec(t, db, `UPDATE sqlite_sequence SET seq = 0 WHERE name = 'webhook_subscriptions'`)
		exec(t, db, `UPDATE customers SET tier = 'paid', opted_out_at_ms = NULL`)
		a := newAudience()
		for range rapid.IntRange(1, 12).Draw(rt, "transactions") {
			err := db.Write(t.Context(), func(tx *store.Tx) error {
				for range rapid.IntRange(0, 3).Draw(rt, "changes") {
					if _, err := tx.Exec(rapid.SampledFrom(alterations).Draw(rt, "change"), rapid.Int64Range(1, 6).Draw(rt, "sub")); err != nil {
						return err
					}
					if rapid.Bool().Draw(rt, "look in between") {
						if err := checkAudience(tx, a); err != nil {
							return err
						}
					}
				}
				if rapid.IntRange(0, 3).Draw(rt, "undo") == 0 {
					return errUndone
				}
				return nil
			})
			if err != nil && !errors.Is(err, errUndone) {
				rt.Fatal(err)
			}
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error { return checkAudience(tx, a) }); err != nil {
			rt.Fatal(err)
		}
	})
}

// However many there are, a step reads no more than it may, those with the same
// number among them.
func TestAudienceIsReadInSteps(t *testing.T) {
	s := newService(t)
	addSubscriptions(t, s.DB, 2*stepSubscriptions+1)
	exec(t, s.DB, `UPDATE webhook_subscriptions SET changed = 7`)
	a, sizes := newAudience(), []int{}
	for current := false; !current; {
		write(t, s.DB, func(tx *store.Tx) (err error) {
			current, err = a.refresh(tx)
			return err
		})
		sizes = append(sizes, len(a.subs))
	}
	if want := []int{stepSubscriptions, 2 * stepSubscriptions, 2*stepSubscriptions + 1}; !slices.Equal(sizes, want) {
		t.Errorf("%d subscriptions are known after each step, want %d", sizes, want)
	}
}
