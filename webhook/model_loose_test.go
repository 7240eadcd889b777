package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"jpintel/store"
)

// The same sequences with many requests at a time to each subscription. Their
// order is free, and so are streaks; what must hold whatever the order is said
// here.

// loose keeps what was seen.
type loose struct {
	*modelRun
	bodies    map[string]string       // by event and subscription
	attempted map[string]int          // by event and subscription: the last attempt
	open      map[string][]time.Time  // by subscription: when its requests end
	requests  map[customerDate]int    // that count for the day
	faults    map[string]int          // by event and subscription: attempts that were our fault
	repeats   map[string]map[int]bool // attempts that came to nothing may be made again
	changed   map[string]bool         // subscriptions whose types may have been others
}

// TestWhateverTheOrder runs random sequences, eight requests at a time.
func TestWhateverTheOrder(t *testing.T) {
	shape := modelShape{concurrency: 8, perLane: 4, random: func() float64 { return 0.5 }}
	checkRounds(t, 4, func(rt *rapid.T) {
		actions := slices.DeleteFunc(drawActions(rt), func(a modelAction) bool {
			return a.kind == "elsewhere" || a.kind == "feed" || a.kind == "sleep" && nth(modelSleeps, a.a) >= modelRetention
		})
		if problem := runLoose(t, actions, shape); problem != "" {
			rt.Fatal(problem)
		}
	})
}

func runLoose(t *testing.T, actions []modelAction, shape modelShape) string {
	return inBubble(t, shape, func(r *modelRun) string {
		l := &loose{r, map[string]string{}, map[string]int{}, map[string][]time.Time{}, map[customerDate]int{}, map[string]int{}, map[string]map[int]bool{}, map[string]bool{}}
		l.settle = l.observe
		for _, a := range slices.Concat(modelBeginning, actions) {
			if a.kind == "restart" || a.kind == "crash" {
				a.b = 0 // one second: nothing expires
			}
			if problem := l.step(a); strings.Contains(problem, "internal") {
				return problem
			}
			if problem := l.observe(); problem != "" {
				return problem
			}
		}
		if problem := l.nothingIsLost(); problem != "" {
			return problem
		}
		return checkFile(r.w.db)
	})
}

// observe judges the requests since the last action, and learns which
// subscriptions were disabled meanwhile.
func (l *loose) observe() string {
	synctest.Wait()
	l.m.now = time.Now()
	log := l.w.wire.take()
	for i, row := range l.rows(`SELECT COALESCE(disabled_reason, ''), COALESCE(disabled_at_ms, 0) FROM webhook_subscriptions ORDER BY sub_seq`) {
		s := l.m.subs[i]
		if row[0] != "" && s.reason == "" {
			l.m.disable(s, Reason(row[0]), false)
			s.disabledAt = store.FromMS(int64(number64(row[1])))
		}
	}
	for _, r := range log {
		if problem := l.judge(r); problem != "" {
			return problem
		}
	}
	for of, n := range l.requests {
		if n > modelCap {
			return fmt.Sprintf("%d requests of %s on %s, want %d at most", n, of.customer, of.date, modelCap)
		}
	}
	return ""
}

func (l *loose) judge(r seen) string {
	s := l.m.sub(r.subscription)
	key := s.id + " " + r.event
	l.open[s.id] = append(slices.DeleteFunc(l.open[s.id], func(end time.Time) bool { return !end.After(r.at) }), r.at.Add(r.answer.takes))
	switch {
	case l.m.killed:
		return s.name + " was sent something while the switch is on"
	case s.reason != "" && r.at.After(s.disabledAt):
		return s.name + " was sent something after it was disabled"
	case r.url != s.url:
		return s.name + " was sent something at another URL"
	case l.bodies[key] != "" && l.bodies[key] != r.body:
		return s.name + " got another body for the same event"
	case len(l.open[s.id]) > l.shape.perLane:
		return fmt.Sprintf("%s has %d requests at a time", s.name, len(l.open[s.id]))
	case r.attempt != l.attempted[key]+1 && (r.attempt != l.attempted[key] || !l.repeats[key][r.attempt]):
		return fmt.Sprintf("%s got attempt %d after %d", s.name, r.attempt, l.attempted[key])
	}
	l.bodies[key], l.attempted[key] = r.body, r.attempt
	if r.answer.means == ourFault {
		l.faults[key]++
	}
	if !r.answer.blocked {
		l.requests[customerDate{s.customer, l.m.date(r.at)}]++
	}
	if r.answer.takes > 0 { // it may be cut off
		if l.repeats[key] == nil {
			l.repeats[key] = map[int]bool{}
		}
		l.repeats[key][r.attempt] = true
	}
	return s.wrongSignatures(r.at, r)
}

// step lets what is cut off be made again, uncounted.
func (l *loose) step(a modelAction) string {
	if a.kind == "change" {
		l.changed[nth(l.m.subs, a.a).id] = true
	}
	cutOff := a.kind == "crash" || a.kind == "restart" || a.kind == "switch on"
	if cutOff {
		clear(l.requests) // of these, some were not counted
	}
	problem := l.modelRun.step(a)
	if !cutOff {
		return problem
	}
	clear(l.open)
	for _, row := range l.rows(`SELECT customer_id, day, attempts FROM webhook_daily_attempts`) {
		l.requests[customerDate{row[0], row[1]}] = number64(row[2])
	}
	return problem
}

// nothingIsLost wants each event that a subscription was to get in one of the
// states that it may be in.
func (l *loose) nothingIsLost() string {
	stored := map[string][]string{}
	for _, row := range l.rows(`
		SELECT s.subscription_id, e.event_id, CASE WHEN d.status = 'pending' AND d.generation < s.generation THEN 'failed' ELSE d.status END,
		  d.attempt_count, d.generation < s.generation
		FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq`) {
		stored[row[0]+" "+row[1]] = row[2:]
	}
	for _, s := range l.m.subs {
		for _, d := range s.deliveries {
			key := s.id + " " + d.event.id
			row, what := stored[key], d.event.name+" of "+s.name
			if row == nil {
				if d.optional || l.m.now.Sub(d.event.at) > modelRetention {
					continue
				}
				return what + " is lost"
			}
			attempts, older := number64(row[1]), row[2] == "1"
			switch status := row[0]; {
			case status == "pending" && older,
				status == "success" && attempts == 0,
				status == "dead_letter" && attempts != len(modelSchedule)+1+l.faults[key],
				status == "failed" && !older && slices.Contains(s.types, d.event.typ) && !l.changed[s.id]:
				return fmt.Sprintf("%s is %s after %d attempts, %d of them our fault", what, status, attempts, l.faults[key])
			}
		}
	}
	return ""
}
