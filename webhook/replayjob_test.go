package webhook

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// longAgo is before all that a test makes.
const longAgo = "1999-01-01T00:00:00Z"

func replayAll(t testing.TB, s *Service, sub SubscribeAnswer, status Status) string {
	t.Helper()
	job, err := s.ReplayAll(context.Background(), ReplayAllRequest{SubscriptionID: sub.SubscriptionID, Since: longAgo, Status: status})
	if err != nil {
		t.Fatal(err)
	}
	return job.JobID
}

// progressOf tells a job's state, and what it has matched, queued and skipped.
func progressOf(t testing.TB, s *Service, job string) string {
	t.Helper()
	j, err := s.ReplayProgress(context.Background(), ReplayJobRequest{JobID: job})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(j.State, " ", j.Matched, " ", j.Queued, " ", j.Skipped)
}

// newReplayer runs jobs in steps, beside no worker and without limits.
func newReplayer(s *Service) *replayer {
	return &replayer{db: s.DB, cap: s.Cap, attempts: len(DefaultSchedule) + 1, wake: func([]int64) {}}
}

// replaySteps runs all jobs to their end, or until nothing can be done just now.
func replaySteps(t testing.TB, s *Service) {
	t.Helper()
	r := newReplayer(s)
	for more := true; more; {
		var err error
		if more, err = r.step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// deadLetters makes n deliveries of a subscription that are dead letters after
// one attempt.
func deadLetters(t *testing.T, s *Service, sub SubscribeAnswer, n int) {
	t.Helper()
	addDeliveries(t, s.DB, subSeq(t, s, sub.SubscriptionID), n, StatusDeadLetter)
}

// pastEnd steps the clock on, so that a job takes in what was made before.
const pastEnd = 10 * time.Millisecond

// A job replays what is in its state and of its time, oldest first, and each
// once, whatever becomes of it.
func TestReplayAllChooses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub, other := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}), subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		began := time.Now()
		for range 3 {
			for _, status := range []Status{StatusSuccess, StatusFailed, StatusDeadLetter, StatusPending} {
				addDeliveries(t, s.DB, subSeq(t, s, sub.SubscriptionID), 1, status)
				addDeliveries(t, s.DB, subSeq(t, s, other.SubscriptionID), 1, status)
			}
			time.Sleep(time.Hour)
		}
		all := deliveryIDs(t, s, sub.SubscriptionID)
		at := func(hours int) string { return began.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
		for _, c := range []struct {
			status       Status
			since, until string
			want         []string
		}{
			{StatusSuccess, at(0), at(1), []string{all[0]}},
			{StatusSuccess, at(1), "", []string{all[4], all[8]}},
			{StatusFailed, at(1), at(2), []string{all[5]}},
			{StatusFailed, at(3), "", nil},
			{StatusDeadLetter, at(0), at(1000), []string{all[2], all[6], all[10]}},
			{StatusSuccess, at(0), "", nil}, // all are pending by now
		} {
			time.Sleep(time.Minute)
			job, err := s.ReplayAll(t.Context(), ReplayAllRequest{"cus_a", sub.SubscriptionID, c.since, c.until, c.status})
			if err != nil {
				t.Fatal(err)
			}
			replaySteps(t, s)
			got := lines(t, s.DB, `SELECT delivery_id FROM webhook_deliveries WHERE next_attempt_at_ms = $1 AND schedule_base = attempt_count ORDER BY delivery_seq`, time.Now().UnixMilli())
			if !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
				t.Errorf("%s from %s to %s: %q, want %q", c.status, c.since, c.until, got, c.want)
			}
			if got, want := progressOf(t, s, job.JobID), fmt.Sprint("done ", len(c.want), " ", len(c.want), " 0"); got != want {
				t.Errorf("%s: %s, want %s", c.status, got, want)
			}
		}
	})
}

// What reads derive as failed is replayed as failed, before the sweep has come
// to it, and the sweep leaves it alone then.
func TestReplayAllOfDerivedFailures(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	addDeliveries(t, s.DB, subSeq(t, s, sub.SubscriptionID), sweepRows+replayAhead/4, StatusPending)
	onOff(t, s, sub)
	if _, err := sweepStep(t.Context(), s.DB); err != nil { // a part of them
		t.Fatal(err)
	}
	job := replayAll(t, s, sub, StatusFailed)
	replaySteps(t, s)
	for range 3 {
		if _, err := sweepStep(t.Context(), s.DB); err != nil {
			t.Fatal(err)
		}
	}
	if got := progressOf(t, s, job); got != "done 750 750 0" {
		t.Errorf("job: %s", got)
	}
	if got := lines(t, s.DB, `SELECT status, generation, COUNT(*) FROM webhook_deliveries GROUP BY 1, 2`); !slices.Equal(got, []string{"pending 2 750"}) {
		t.Errorf("deliveries: %q", got)
	}
}

// reopen opens a file as the next process does.
func reopen(t *testing.T, path string) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), path, store.Options{Server: true, Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// Restarts in the middle of a job: each dead letter is sent once more, none is
// forgotten.
func TestReplayAllOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	synctest.Test(t, func(t *testing.T) {
		const n = 2*replayRows + 77
		received := map[string]int{}
		r := always(200, 50*time.Millisecond)
		s := serviceOn(reopen(t, path))
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		deadLetters(t, s, sub, n)
		time.Sleep(pastEnd)
		job := replayAll(t, s, sub, StatusDeadLetter)
		restarts := 0
		for ; len(r.all()) < n && restarts < 100; restarts++ {
			_, stop := start(t, s, r, tick(time.Second))
			time.Sleep(3210 * time.Millisecond)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			storetest.Check(t, s.DB)
			if err := s.DB.Close(); err != nil {
				t.Fatal(err)
			}
			s = serviceOn(reopen(t, path))
		}
		defer s.DB.Close()
		if restarts < 5 {
			t.Errorf("only %d restarts", restarts)
		}
		if got, want := progressOf(t, s, job), fmt.Sprintf("done %d %d 0", n, n); got != want {
			t.Errorf("job: %s, want %s", got, want)
		}
		for _, a := range r.all() {
			received[a.event]++
			if a.attempt != 2 {
				t.Errorf("%+v", a)
			}
		}
		if len(received) != n || len(r.all()) != n {
			t.Errorf("%d events in %d requests, want each of %d once", len(received), len(r.all()), n)
		}
	})
}

// Within a day's attempts, over midnight: a job never is what disables the
// subscription, whether what it sends arrives or not, and comes to its end.
func TestReplayAllPacesItself(t *testing.T) {
	for name, c := range map[string]struct {
		status, cap, days int
		end               Status
	}{
		"all arrive":         {200, 20, 4, StatusSuccess}, // 13 a day: 2 are for new events, 5 are too few for a schedule
		"none arrives":       {500, 20, 20, StatusDeadLetter},
		"a cap of a few":     {200, 2, 60, StatusSuccess},
		"a cap with room":    {200, 1000, 1, StatusSuccess},
		"no cap":             {200, 0, 1, StatusSuccess},
		"no cap, none comes": {500, 0, 2, StatusDeadLetter},
	} {
		if raceEnabled && c.days > 5 {
			continue // thousands of ticks
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 50
				s := newService(t)
				tokyo, err := time.LoadLocation("Asia/Tokyo")
				if err != nil {
					t.Fatal(err)
				}
				s.DB.Location = tokyo
				customer(t, s, "cus_a")
				sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
				deadLetters(t, s, sub, n)
				time.Sleep(pastEnd)
				r := always(c.status, 100*time.Millisecond)
				capped(t, s, c.cap, r, tick(10*time.Minute))
				job := replayAll(t, s, sub, StatusDeadLetter)
				for range c.days {
					if got := reasons(t, s)[0]; got != "-" {
						t.Fatalf("%s: %s, %s", time.Now().In(tokyo), got, progressOf(t, s, job))
					}
					time.Sleep(day)
				}
				if got, want := progressOf(t, s, job), fmt.Sprintf("done %d %d 0", n, n); got != want {
					t.Errorf("after %d days: %s, want %s", c.days, got, want)
				}
				if got := lines(t, s.DB, `SELECT DISTINCT status FROM webhook_deliveries`); !slices.Equal(got, []string{string(c.end)}) {
					t.Errorf("in the end: %q", got)
				}
				days := map[string]int{}
				for _, a := range r.all() {
					days[dayOf(a.at, tokyo)]++
				}
				for day, made := range days {
					if c.cap > 0 && made > c.cap-c.cap/replayReserve {
						t.Errorf("%s: %d attempts of %d", day, made, c.cap)
					}
				}
				first := map[string]bool{}
				var order []string
				for _, a := range r.all() {
					if !first[a.event] {
						first[a.event], order = true, append(order, a.event)
					}
				}
				if c.status == 200 && c.cap == 2 && !slices.IsSorted(order) { // one at a time: ids rise
					t.Errorf("not oldest first: %q", order)
				}
			})
		})
	}
}

// New events wait for no more than what a job may have pending.
func TestReplayAllKeepsFewPending(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	deadLetters(t, s, sub, replayAhead+300)
	time.Sleep(pastEnd)
	job := replayAll(t, s, sub, StatusDeadLetter)
	replaySteps(t, s)
	if got := progressOf(t, s, job); got != "running 1000 1000 0" {
		t.Errorf("job: %s", got)
	}
	if due := claimAll(t, s, sub.SubscriptionID); len(due) != replayAhead {
		t.Errorf("%d are due", len(due))
	}
}

// A job that waits does not hold up another customer's, and an empty round is
// followed by a pause.
func TestReplayAllTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.Cap = NewDailyCap(s.DB, 10)
		var jobs []string
		for _, id := range []string{"cus_a", "cus_b"} {
			customer(t, s, id)
			sub := subscribe(t, s, SubscribeRequest{CustomerID: id})
			deadLetters(t, s, sub, 1)
			time.Sleep(pastEnd)
			jobs = append(jobs, replayAll(t, s, sub, StatusDeadLetter))
		}
		for range 10 {
			if _, ok, err := s.Cap.take(t.Context(), "cus_a", time.Now()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		r := newReplayer(s)
		var more []bool
		for range 7 {
			m, err := r.step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			more = append(more, m)
		}
		if want := []bool{true, true, true, true, false, false, false}; !slices.Equal(more, want) {
			t.Errorf("more: %v, want %v", more, want)
		}
		if got := []string{progressOf(t, s, jobs[0]), progressOf(t, s, jobs[1])}; !slices.Equal(got, []string{"running 0 0 0", "done 1 1 0"}) {
			t.Errorf("jobs: %q", got)
		}
		time.Sleep(replayPause)
		if m, err := r.step(t.Context()); !m || err != nil {
			t.Errorf("after the pause: %v, %v", m, err)
		}
	})
}

// Whatever disables the subscription stops its jobs, and enabling it does not
// let them go on; another one can begin.
func TestReplayAllIsStopped(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
	deadLetters(t, s, sub, replayRows+100)
	time.Sleep(pastEnd)
	for name, stop := range map[string]func() error{
		"disable": func() error { _, err := s.Disable(t.Context(), which); return err },
		"opt-out": func() error { _, err := s.StopAll(t.Context(), OptOutRequest{"cus_a"}); return err },
		"tier": func() error {
			return s.DB.Write(t.Context(), func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierFree) })
		},
		"streak": func() error {
			return s.DB.Write(t.Context(), func(tx *store.Tx) error {
				_, err := disable(tx, subSeq(t, s, sub.SubscriptionID), ReasonStreak)
				return err
			})
		},
	} {
		job := replayAll(t, s, sub, StatusDeadLetter)
		_, err := s.ReplayAll(t.Context(), ReplayAllRequest{"cus_a", sub.SubscriptionID, longAgo, "", StatusDeadLetter})
		wantCode(t, err, store.CodeConflict, job+" is replaying this already")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := progressOf(t, s, job); got != "stopped 0 0 0" {
			t.Errorf("%s: %s", name, got)
		}
		_, err = s.ReplayAll(t.Context(), ReplayAllRequest{"cus_a", sub.SubscriptionID, longAgo, "", StatusDeadLetter})
		wantCode(t, err, store.CodeConflict, "")
		write(t, s.DB, func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierPaid) })
		if _, err := s.EndOptOut(t.Context(), OptOutRequest{"cus_a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		replaySteps(t, s)
		if got := progressOf(t, s, job); got != "stopped 0 0 0" {
			t.Errorf("%s, and enabled: %s", name, got)
		}
	}
	// In the middle: what is queued is failed with the rest that was pending, and
	// what is left is as it was.
	job := replayAll(t, s, sub, StatusDeadLetter)
	if _, err := newReplayer(s).step(t.Context()); err != nil {
		t.Fatal(err)
	}
	onOff(t, s, sub)
	replaySteps(t, s)
	if got := progressOf(t, s, job); got != "stopped 500 500 0" {
		t.Errorf("in the middle: %s", got)
	}
	if got := progressOf(t, s, replayAllDone(t, s, sub, StatusFailed)); got != "done 500 500 0" {
		t.Errorf("failed: %s", got)
	}
	if got := progressOf(t, s, replayAllDone(t, s, sub, StatusDeadLetter)); got != "done 100 100 0" {
		t.Errorf("the rest: %s", got)
	}
	job = replayAll(t, s, sub, StatusSuccess)
	if _, err := s.Unsubscribe(t.Context(), which); err != nil {
		t.Fatal(err)
	}
	replaySteps(t, s)
	if got := progressOf(t, s, job); got != "stopped 0 0 0" {
		t.Errorf("deleted: %s", got)
	}
	_, err := s.ReplayAll(t.Context(), ReplayAllRequest{"cus_a", sub.SubscriptionID, longAgo, "", StatusDeadLetter})
	wantCode(t, err, store.CodeNotFound, sub.SubscriptionID)
}

// replayAllDone runs a job to its end.
func replayAllDone(t testing.TB, s *Service, sub SubscribeAnswer, status Status) string {
	t.Helper()
	job := replayAll(t, s, sub, status)
	replaySteps(t, s)
	return job
}

// A step that fails leaves nothing, and does not hold up other jobs.
func TestReplayStepIsAtomic(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	deadLetters(t, s, sub, 3)
	time.Sleep(pastEnd)
	job := replayAll(t, s, sub, StatusDeadLetter)
	exec(t, s.DB, `CREATE TRIGGER broken BEFORE UPDATE OF cursor ON webhook_replays BEGIN SELECT RAISE(ABORT, 'boom'); END`)
	if _, err := newReplayer(s).step(t.Context()); err == nil {
		t.Error("no error")
	}
	if got := lines(t, s.DB, `SELECT DISTINCT status FROM webhook_deliveries`); !slices.Equal(got, []string{"dead_letter"}) {
		t.Errorf("a step that failed left %q", got)
	}
	exec(t, s.DB, `DROP TRIGGER broken`)
	replaySteps(t, s)
	if got := progressOf(t, s, job); got != "done 3 3 0" {
		t.Errorf("job: %s", got)
	}
}

// Jobs are kept as long as deliveries, and forgotten with a later one.
func TestOldReplaysAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.Retention = Duration(30 * day)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		old := replayAllDone(t, s, sub, StatusFailed)
		time.Sleep(29 * day)
		kept := replayAllDone(t, s, sub, StatusFailed)
		progressOf(t, s, old)
		_, err := s.ReplayProgress(t.Context(), ReplayJobRequest{"cus_b", kept})
		wantCode(t, err, store.CodeNotFound, "replay "+kept+" not found")
		time.Sleep(2 * day)
		replayAllDone(t, s, sub, StatusFailed)
		progressOf(t, s, kept)
		_, err = s.ReplayProgress(t.Context(), ReplayJobRequest{"cus_a", old})
		wantCode(t, err, store.CodeNotFound, "replay "+old+" not found")
	})
}
