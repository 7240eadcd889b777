package webhook

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"jpintel/store"
)

// rangesOf are what a subscription has missed.
func rangesOf(t testing.TB, s *Service, sub SubscribeAnswer) []string {
	t.Helper()
	return lines(t, s.DB, `SELECT from_seq || '-' || COALESCE(to_seq, '') FROM webhook_missed_ranges WHERE sub_seq = $1 ORDER BY from_seq`, subSeq(t, s, sub.SubscriptionID))
}

func wantRanges(t testing.TB, s *Service, sub SubscribeAnswer, when string, want ...string) {
	t.Helper()
	if got := rangesOf(t, s, sub); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("%s: missed %q, want %q", when, got, want)
	}
}

func setActive(t testing.TB, s *Service, sub SubscribeAnswer, active bool) {
	t.Helper()
	change := s.Disable
	if active {
		change = s.Enable
	}
	if _, err := change(context.Background(), SubscriptionRequest{SubscriptionID: sub.SubscriptionID}); err != nil {
		t.Fatal(err)
	}
}

// eventsOf are the events that a subscription has deliveries of.
func eventsOf(t testing.TB, s *Service, sub SubscribeAnswer) (seqs []string) {
	t.Helper()
	return lines(t, s.DB, `SELECT event_seq FROM webhook_deliveries WHERE sub_seq = $1 ORDER BY event_seq`, subSeq(t, s, sub.SubscriptionID))
}

// What is missed is noted where a subscription is disabled and enabled, whatever
// for; not what it had before it was there, and nothing where nothing came.
func TestMissedRanges(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	publish(t, s, updated("1", nil), updated("2", nil))
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	setActive(t, s, sub, false)
	wantRanges(t, s, sub, "before the fan-out has come to what is older than it", "2-")
	setActive(t, s, sub, false)
	wantRanges(t, s, sub, "disabled again", "2-")
	setActive(t, s, sub, true)
	wantRanges(t, s, sub, "nothing came")
	publish(t, s, updated("3", nil))
	fanOut(t, s)
	publish(t, s, updated("4", nil), updated("5", nil)) // committed while it is active, and not fanned out
	setActive(t, s, sub, false)
	publish(t, s, updated("6", nil))
	wantRanges(t, s, sub, "disabled", "3-")
	setActive(t, s, sub, true)
	setActive(t, s, sub, true)
	wantRanges(t, s, sub, "enabled", "3-6")
	fanOut(t, s)
	if got := eventsOf(t, s, sub); !slices.Equal(got, []string{"3"}) {
		t.Errorf("deliveries of %q", got)
	}
	for _, switches := range []struct {
		name    string
		off, on func(tx *store.Tx) error
	}{
		{"tier", func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierFree) }, func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierPaid) }},
		{"streak", func(tx *store.Tx) error { _, err := disable(tx, 1, ReasonStreak); return err }, func(tx *store.Tx) error { return enable(tx, 1) }},
	} {
		exec(t, s.DB, `DELETE FROM webhook_missed_ranges`)
		last := number(t, s.DB, `SELECT MAX(seq) FROM outbox_events`)
		write(t, s.DB, switches.off)
		publish(t, s, updated("7", nil))
		write(t, s.DB, switches.on)
		wantRanges(t, s, sub, switches.name, fmt.Sprintf("%d-%d", last, last+1))
		fanOut(t, s)
	}
	if _, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID}); err != nil {
		t.Fatal(err)
	}
	wantRanges(t, s, sub, "deleted")
}

// An event that the fan-out had come to this subscription with is not missed,
// though it is not published yet; one that it had not come to it with is.
func TestMissedAndAFanOutUnderWay(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("1", nil), updated("2", nil))
	fanOut(t, s)
	exec(t, s.DB, `UPDATE outbox_events SET published_at_ms = NULL, fanout_cursor = $1`, subSeq(t, s, sub.SubscriptionID))
	publish(t, s, updated("3", nil))
	setActive(t, s, sub, false)
	wantRanges(t, s, sub, "disabled", "2-")
	fanOut(t, s)
	setActive(t, s, sub, true)
	job := replayAllDone(t, s, sub, statusMissed)
	if got := progressOf(t, s, job); got != "done 1 1 0" {
		t.Errorf("job: %s", got)
	}
	if got := eventsOf(t, s, sub); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("deliveries of %q", got)
	}
}

// Only what the subscription would have matched, of its customer, in its
// envelope and its present generation; once.
func TestMissedIsWhatWouldHaveMatched(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Envelope: EnvelopeV2, Events: []Type{TypeProgramUpdated, TypeTierQuotaWarning}})
	filtered := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Filter: Filter{"prefecture": {"奈良県"}}})
	setActive(t, s, sub, false)
	setActive(t, s, filtered, false)
	publish(t, s,
		updated("1", Attributes{"prefecture": {"奈良県"}}), updated("2", Attributes{"prefecture": {"大阪府"}}), warning("cus_b"), warning("cus_a"),
		ProgramCreated{UnifiedID: "5", PrimaryName: "x"}, updated("6", nil), warning("cus_b"))
	fanOut(t, s)
	setActive(t, s, sub, true)
	setActive(t, s, filtered, true)
	for _, c := range []struct {
		sub      SubscribeAnswer
		events   []string
		envelope Envelope
	}{{sub, []string{"1", "2", "4", "6"}, EnvelopeV2}, {filtered, []string{"1"}, EnvelopeV1}} {
		n := len(c.events)
		if got, want := progressOf(t, s, replayAllDone(t, s, c.sub, statusMissed)), fmt.Sprint("done ", n, " ", n, " 0"); got != want {
			t.Errorf("job: %s, want %s", got, want)
		}
		if got := eventsOf(t, s, c.sub); !slices.Equal(got, c.events) {
			t.Errorf("deliveries of %q, want %q", got, c.events)
		}
		if due := claimAll(t, s, c.sub.SubscriptionID); len(due) != n || due[0].envelope != c.envelope || due[0].refused != "" {
			t.Errorf("%d are due, want %d", len(due), n)
		}
		wantRanges(t, s, c.sub, "recovered")
		exec(t, s.DB, `UPDATE webhook_totals SET deliveries = deliveries - $1 WHERE status = 'pending'`, n)
		exec(t, s.DB, `DELETE FROM webhook_deliveries`) // they have expired
		if got := progressOf(t, s, replayAllDone(t, s, c.sub, statusMissed)); got != "done 0 0 0" {
			t.Errorf("again: %s", got)
		}
	}
}

// What is outside of the time that is asked for stays missed, on either side.
func TestMissedInATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		began := time.Now()
		for range 2 { // events 1 to 4 and 5 to 8, an hour apart
			setActive(t, s, sub, false)
			for range 4 {
				publish(t, s, updated("x", nil))
				time.Sleep(time.Hour)
			}
			setActive(t, s, sub, true)
		}
		fanOut(t, s)
		at := func(hours int) string { return began.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
		for _, c := range []struct {
			since, until int
			queued       int
			left         []string
		}{
			{2, 3, 1, []string{"0-2", "3-4", "4-8"}}, // in the middle
			{2, 3, 0, []string{"0-2", "3-4", "4-8"}}, // once
			{6, 100, 2, []string{"0-2", "3-4", "4-6"}},
			{-1, 1, 1, []string{"1-2", "3-4", "4-6"}},
			{3, 5, 2, []string{"1-2", "5-6"}},
			{-1, 100, 2, nil},
		} {
			job, err := s.ReplayAll(t.Context(), ReplayAllRequest{"cus_a", sub.SubscriptionID, at(c.since), at(c.until), statusMissed})
			if err != nil {
				t.Fatal(err)
			}
			replaySteps(t, s)
			if got, want := progressOf(t, s, job.JobID), fmt.Sprint("done ", c.queued, " ", c.queued, " 0"); got != want {
				t.Errorf("%d to %d: %s, want %s", c.since, c.until, got, want)
			}
			wantRanges(t, s, sub, fmt.Sprint(c.since, " to ", c.until), c.left...)
		}
	})
}

// More than a step looks at, with a restart and a disable in the middle.
func TestMissedInSteps(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	setActive(t, s, sub, false)
	const n = 2*replayRows + 50
	publish(t, s, slices.Repeat([]Payload{updated("x", nil)}, n)...)
	fanOut(t, s)
	setActive(t, s, sub, true)
	job := replayAll(t, s, sub, statusMissed)
	if more, err := newReplayer(s).step(t.Context()); !more || err != nil {
		t.Fatal(more, err)
	}
	wantRanges(t, s, sub, "a step", fmt.Sprintf("%d-%d", replayRows, n))
	setActive(t, s, sub, false)
	setActive(t, s, sub, true)
	replaySteps(t, s)
	if got := progressOf(t, s, job); got != "stopped 500 500 0" {
		t.Errorf("disabled: %s", got)
	}
	if _, err := sweepStep(t.Context(), s.DB); err != nil { // what it had queued
		t.Fatal(err)
	}
	job = replayAll(t, s, sub, statusMissed)
	for range 4 { // each a process of its own
		if _, err := newReplayer(s).step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := progressOf(t, s, job); got != "done 550 550 0" {
		t.Errorf("the rest: %s", got)
	}
	if got := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`); got != n {
		t.Errorf("%d deliveries, want %d", got, n)
	}
}

// Events that have expired are not recovered, and what is left of ranges without
// any is forgotten.
func TestMissedExpires(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	setActive(t, s, sub, false)
	publish(t, s, updated("1", nil), updated("2", nil))
	setActive(t, s, sub, true)
	publish(t, s, updated("3", nil))
	fanOut(t, s)
	exec(t, s.DB, `DELETE FROM outbox_events WHERE seq < 3`)
	wantRanges(t, s, sub, "expired", "0-2")
	setActive(t, s, sub, false)
	setActive(t, s, sub, true)
	wantRanges(t, s, sub, "on and off")
	if got := progressOf(t, s, replayAllDone(t, s, sub, statusMissed)); got != "done 0 0 0" {
		t.Errorf("job: %s", got)
	}
}

// missedModel is one subscription, and what a plain reading of the contract says
// of it.
type missedModel struct {
	s    *Service
	sub  SubscribeAnswer
	seen map[int64]string // event → its one delivery, over its expiry
	due  map[int64]bool   // events that must have a delivery in the end
}

// Random lives of a subscription: every event that it matches gets one delivery,
// whatever became of it, and not one more; none is forgotten that is retained.
func TestMissedIsExact(t *testing.T) {
	s := newService(t)
	customers := 0
	rapid.Check(t, func(rt *rapid.T) {
		customers++
		id := customer(t, s, fmt.Sprintf("cus_%d", customers))
		publish(t, s, updated("before", Attributes{"prefecture": {"奈良県"}}))
		if rapid.Bool().Draw(rt, "fanned out before") {
			fanOut(t, s)
		}
		m := &missedModel{s: s, seen: map[int64]string{}, due: map[int64]bool{}}
		m.sub = subscribe(t, s, SubscribeRequest{CustomerID: id, Events: []Type{TypeProgramUpdated, TypeTierQuotaWarning}, Filter: Filter{"prefecture": {"奈良県"}}})
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) { m.publish(t, id, rapid.IntRange(0, 2).Draw(rt, "kind")) },
			"fan out": func(*rapid.T) { fanOut(t, s) },
			"disable": func(*rapid.T) { setActive(t, s, m.sub, false) },
			"opt out": func(*rapid.T) { _, _ = s.StopAll(t.Context(), OptOutRequest{id}) },
			"enable": func(*rapid.T) {
				if _, err := s.EndOptOut(t.Context(), OptOutRequest{id}); err != nil {
					rt.Fatal(err)
				}
				setActive(t, s, m.sub, true)
			},
			"deliver": func(*rapid.T) { m.deliver(t) },
			"sweep":   func(*rapid.T) { _, _ = sweepStep(t.Context(), s.DB) },
			"recover": func(rt *rapid.T) { m.recover(t, rapid.IntRange(1, 3).Draw(rt, "room")) },
			"replay failed": func(rt *rapid.T) {
				if _, err := s.ReplayAll(t.Context(), ReplayAllRequest{SubscriptionID: m.sub.SubscriptionID, Since: longAgo, Status: StatusFailed}); err == nil {
					replaySteps(t, s)
				}
			},
			"expire": func(rt *rapid.T) { m.expire(t, rapid.Bool().Draw(rt, "events too")) },
			"":       func(rt *rapid.T) { m.check(t, rt) },
		})
		fanOut(t, s)
		_, _ = s.EndOptOut(t.Context(), OptOutRequest{id})
		setActive(t, s, m.sub, true)
		replaySteps(t, s) // what is running
		replayAllDone(t, s, m.sub, statusMissed)
		m.check(t, rt)
		for _, seq := range lines(t, s.DB, `SELECT seq FROM outbox_events ORDER BY seq`) {
			var n int64
			fmt.Sscan(seq, &n)
			if m.due[n] && m.seen[n] == "" {
				rt.Errorf("event %d was never delivered", n)
			}
		}
		setActive(t, s, m.sub, false) // the next life is alone
		exec(t, s.DB, `DELETE FROM webhook_missed_ranges`)
	})
}

// publish commits an event that the subscription matches, one that it does not,
// or one for its customer whose filter attribute it does not have.
func (m *missedModel) publish(t *testing.T, customer string, kind int) {
	t.Helper()
	publish(t, m.s, []Payload{updated("x", Attributes{"prefecture": {"奈良県"}}), updated("x", Attributes{"prefecture": {"大阪府"}}), warning(customer)}[kind])
	if kind == 0 {
		m.due[number(t, m.s.DB, `SELECT MAX(seq) FROM outbox_events`)] = true
	}
}

// deliver sends what is due; every other one arrives, the others are retried for
// ever.
func (m *missedModel) deliver(t *testing.T) {
	t.Helper()
	f := newTestFinisher(m.s, nil)
	for i, w := range claimAll(t, m.s, m.sub.SubscriptionID) {
		result := ok(200)
		if i%2 == 1 {
			result = failed(500)
		}
		if err := f.commit([]finished{{w, result}}); err != nil {
			t.Fatal(err)
		}
	}
}

// recover begins a job, or goes on with it, and takes it a step on.
func (m *missedModel) recover(t *testing.T, room int) {
	t.Helper()
	_, err := m.s.ReplayAll(t.Context(), ReplayAllRequest{SubscriptionID: m.sub.SubscriptionID, Since: longAgo, Status: statusMissed})
	if err != nil && store.CodeOf(err) != store.CodeConflict { // disabled, or running already
		t.Fatal(err)
	}
	r := newReplayer(m.s)
	j, ok, err := readReplayJob(m.s.DB.Reader(t.Context()), `WHERE r.state = 'running' AND r.sub_seq = $1`, subSeq(t, m.s, m.sub.SubscriptionID))
	if err != nil {
		t.Fatal(err)
	}
	if ok {
		write(t, m.s.DB, func(tx *store.Tx) error { return r.advance(tx, &j, room) })
	}
}

// expire takes away what is finished, and events that no delivery is left of.
func (m *missedModel) expire(t *testing.T, events bool) {
	t.Helper()
	r := &retention{deliveries: -time.Hour, events: -time.Hour}
	write(t, m.s.DB, func(tx *store.Tx) error {
		if _, _, err := r.deleteDeliveries(tx); err != nil || !events {
			return err
		}
		r.cursor = 0
		_, _, err := r.deleteEvents(tx)
		return err
	})
}

// check holds what is there against what was seen before.
func (m *missedModel) check(t *testing.T, rt *rapid.T) {
	t.Helper()
	for _, line := range lines(t, m.s.DB, `SELECT event_seq, delivery_id FROM webhook_deliveries WHERE sub_seq = $1`, subSeq(t, m.s, m.sub.SubscriptionID)) {
		var event int64
		var id string
		fmt.Sscan(line, &event, &id)
		if !m.due[event] {
			rt.Fatalf("event %d is not for the subscription, and has a delivery", event)
		}
		if seen := m.seen[event]; seen != "" && seen != id {
			rt.Fatalf("event %d is delivered twice", event)
		}
		m.seen[event] = id
	}
}
