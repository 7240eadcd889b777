package webhook

import (
	"slices"
	"testing"

	"jpintel/store"
)

// What was pending when its subscription was disabled is written down as
// failed, in steps; what came after it was enabled again is left alone.
func TestSweep(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	off, again, on := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}), subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}), subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	offSeq, againSeq, onSeq := subSeq(t, s, off.SubscriptionID), subSeq(t, s, again.SubscriptionID), subSeq(t, s, on.SubscriptionID)
	if more, err := sweepStep(t.Context(), s.DB); more || err != nil {
		t.Errorf("nothing to do: %t, %v", more, err)
	}
	addDeliveries(t, s.DB, offSeq, sweepRows+1, StatusPending)
	addDeliveries(t, s.DB, offSeq, 1, StatusSuccess)
	addDeliveries(t, s.DB, againSeq, 1, StatusPending)
	addDeliveries(t, s.DB, onSeq, 1, StatusPending)
	write(t, s.DB, func(tx *store.Tx) error {
		_, err := disable(tx, offSeq, ReasonUser)
		if err == nil {
			_, err = disable(tx, againSeq, ReasonUser)
		}
		return err
	})
	write(t, s.DB, func(tx *store.Tx) error { return enable(tx, againSeq) })
	later := publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)

	var failed []int64
	for more := true; more; {
		var err error
		if more, err = sweepStep(t.Context(), s.DB); err != nil {
			t.Fatal(err)
		}
		failed = append(failed, number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'failed'`))
	}
	// Two steps for the one, one for the other, and one that finds nothing left.
	if want := []int64{sweepRows, sweepRows + 1, sweepRows + 2}; !slices.Equal(slices.Compact(failed), want) {
		t.Errorf("failed after each step: %d, want %d", failed, want)
	}
	got := lines(t, s.DB, `SELECT sub_seq, status, reason, COUNT(*) FROM webhook_deliveries GROUP BY sub_seq, status, reason ORDER BY sub_seq, status`)
	want := []string{"1 failed the subscription was disabled 501", "1 success - 1", "2 failed the subscription was disabled 1", "2 pending - 1", "3 pending - 2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := deliveriesOf(t, s, again.SubscriptionID); got[len(got)-1] != later[0]+" pending" {
		t.Errorf("the later one: %q", got)
	}
	if n := number(t, s.DB, `SELECT COUNT(*) FROM webhook_subscriptions WHERE sweep = 1`); n != 0 {
		t.Errorf("%d are still to be swept", n)
	}
}
