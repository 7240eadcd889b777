package billing

import (
	"context"
	"slices"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

func TestFreezingAndThawing(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		freeze := SpendRequest{Key: "f1", CustomerID: "cus_a", CauseRef: "dp_1", ApprovedBy: "aki"}
		if _, err := s.Freeze(context.Background(), freeze); err != nil {
			t.Fatal(err)
		}
		s.step()
		s.wantStatus("cus_a", Frozen)
		freeze.Key = "f2" // another call for the same cause is the same operation
		if a, err := s.Freeze(context.Background(), freeze); err != nil || a.HTTPStatus() != 200 {
			t.Errorf("%+v (%v)", a, err)
		}
		if _, err := s.Thaw(context.Background(), SpendRequest{Key: "t1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		s.step()
		s.ready("cus_a", "100.00")
		if got := s.strings(`SELECT json_extract(data, '$.previous_status') || '>' || json_extract(data, '$.current_status') || ' ' || json_extract(data, '$.version') FROM outbox_events WHERE event_type = 'key.status_changed' ORDER BY seq`); !slices.Equal(got, []string{">active 1", "active>frozen 2", "frozen>active 3"}) {
			t.Errorf("%q", got)
		}
		state := s.up.State()
		if state.Groups[0].Status != "active" || state.Idempotency["freeze:cus_a:dp_1"].Executions != 1 || state.Idempotency["thaw:cus_a:dp_1"].Executions != 1 {
			t.Errorf("%+v %+v", state.Groups[0], state.Idempotency)
		}
		for _, cause := range []string{"", "a b", "ü", string(make([]byte, 200))} {
			if _, err := s.Freeze(context.Background(), SpendRequest{Key: "f3", CustomerID: "cus_a", CauseRef: cause}); store.CodeOf(err) != store.CodeInvalid {
				t.Errorf("%q: %v", cause, err)
			}
		}
	})
}

// Freezing does not wait for a limit that is stuck; thawing waits for freezing.
func TestFreezingGoesFirst(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		s.limit("cus_a", "250.00")
		s.exec(`UPDATE partner_operations SET next_attempt_at_ms = $1 WHERE action = 'set_limit'`, time.Now().Add(time.Hour).UnixMilli())
		if _, err := s.Freeze(context.Background(), SpendRequest{Key: "f1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		s.exec(`UPDATE partner_operations SET next_attempt_at_ms = $1 WHERE action = 'freeze_group'`, time.Now().Add(time.Minute).UnixMilli())
		if _, err := s.Thaw(context.Background(), SpendRequest{Key: "t1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		s.work(30 * time.Minute)
		var got []string
		for _, e := range s.up.State().Audit[3:] {
			got = append(got, e.IdempotencyKey)
		}
		if !slices.Equal(got, []string{"freeze:cus_a:dp_1", "thaw:cus_a:dp_1"}) {
			t.Errorf("%q", got)
		}
	})
}
