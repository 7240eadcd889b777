package billing

import (
	"context"
	"slices"
	"testing"
	"time"

	"jpintel/store"
)

func TestFreezingAndThawing(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	b.step()
	freeze := SpendRequest{Key: "f1", CustomerID: "cus_a", CauseRef: "dp_1", ApprovedBy: "aki"}
	if _, err := b.Freeze(context.Background(), freeze); err != nil {
		t.Fatal(err)
	}
	b.step()
	b.wantStatus("cus_a", Frozen)
	freeze.Key = "f2" // another call for the same cause is the same operation
	if a, err := b.Freeze(context.Background(), freeze); err != nil || a.HTTPStatus() != 200 {
		t.Errorf("%+v (%v)", a, err)
	}
	if _, err := b.Thaw(context.Background(), SpendRequest{Key: "t1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
		t.Fatal(err)
	}
	b.step()
	b.wantStatus("cus_a", Ready)
	if got := b.strings(`SELECT json_extract(data, '$.previous_status') || '>' || json_extract(data, '$.current_status') || ' ' || json_extract(data, '$.version') FROM outbox_events WHERE event_type = 'key.status_changed' ORDER BY seq`); !slices.Equal(got, []string{">active 1", "active>frozen 2", "frozen>active 3"}) {
		t.Errorf("%q", got)
	}
	if b.partner.groups[0]["status"] != "active" || b.partner.byKey()["freeze:cus_a:dp_1"] != 1 || b.partner.byKey()["thaw:cus_a:dp_1"] != 1 {
		t.Errorf("%v %v", b.partner.groups[0], b.partner.byKey())
	}
	for _, cause := range []string{"", "a b", "ü", string(make([]byte, 200))} {
		if _, err := b.Freeze(context.Background(), SpendRequest{Key: "f3", CustomerID: "cus_a", CauseRef: cause}); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%q: %v", cause, err)
		}
	}
}

// Freezing does not wait for a limit that is stuck; thawing waits for freezing.
func TestFreezingGoesFirst(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.step()
		b.limit("cus_a", "250.00")
		b.exec(`UPDATE partner_operations SET next_attempt_at_ms = $1 WHERE action = 'set_limit'`, time.Now().Add(time.Hour).UnixMilli())
		if _, err := b.Freeze(context.Background(), SpendRequest{Key: "f1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		b.exec(`UPDATE partner_operations SET next_attempt_at_ms = $1 WHERE action = 'freeze_group'`, time.Now().Add(time.Minute).UnixMilli())
		if _, err := b.Thaw(context.Background(), SpendRequest{Key: "t1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		b.work(30 * time.Minute)
		var got []string
		for _, s := range b.partner.sent[3:] {
			got = append(got, s.key)
		}
		if !slices.Equal(got, []string{"freeze:cus_a:dp_1", "thaw:cus_a:dp_1"}) {
			t.Errorf("%q", got)
		}
	})
}
