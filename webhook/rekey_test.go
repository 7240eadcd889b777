package webhook

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func TestRekey(t *testing.T) {
	s := newService(t)
	addSubscriptions(t, s.DB, rekeyRows)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	write(t, s.DB, func(tx *store.Tx) error { // a secret for each of the others
		for seq := range int64(rekeyRows) {
			if err := addSecret(tx, &Subscription{SubscriptionID: "sub_x", seq: seq + 1}, 1, newSecret()); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`UPDATE webhook_subscriptions SET subscription_id = subscription_id || '_' WHERE sub_seq < 0`)
		return err
	})
	exec(t, s.DB, `DELETE FROM webhook_secrets WHERE sub_seq <= $1`, rekeyRows)
	ids := lines(t, s.DB, `SELECT subscription_id FROM webhook_subscriptions ORDER BY sub_seq`)
	write(t, s.DB, func(tx *store.Tx) error {
		for i, id := range ids[:rekeyRows] {
			if err := addSecret(tx, &Subscription{SubscriptionID: id, seq: int64(i) + 1}, 1, newSecret()); err != nil {
				return err
			}
		}
		return nil
	})
	_ = sub
	_, _, _, _ = slices.Contains[[]int], strings.Contains, time.Now, storetest.Salt
	_ = context.Background
}
