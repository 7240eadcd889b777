package webhook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"jpintel/store"
)

// What is in the file, against the model.

// compare says what differs at a moment when nothing happens.
func (r *modelRun) compare() string {
	for _, compare := range []func() string{r.compareSubscriptions, r.compareDeliveries, r.compareAttempts, r.compareTotals} {
		if problem := compare(); problem != "" {
			return problem
		}
	}
	return ""
}

// rows reads rows as texts.
func (r *modelRun) rows(query string, args ...any) [][]string {
	rows, err := r.w.db.Reader(context.Background()).Query(query, args...)
	if err != nil {
		panic(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		panic(err)
	}
	var all [][]string
	for rows.Next() {
		texts, places := make([]string, len(columns)), make([]any, len(columns))
		for i := range texts {
			places[i] = &texts[i]
		}
		if err := rows.Scan(places...); err != nil {
			panic(err)
		}
		all = append(all, texts)
	}
	if err := rows.Err(); err != nil {
		panic(err)
	}
	return all
}

func (r *modelRun) compareSubscriptions() string {
	rows := r.rows(`
		SELECT subscription_id, COALESCE(disabled_reason, ''), failures_streak, dead_letters, deleted_at_ms IS NOT NULL, url, envelope, COALESCE(disabled_at_ms, 0)
		FROM webhook_subscriptions ORDER BY sub_seq`)
	if len(rows) != len(r.m.subs) {
		return fmt.Sprintf("%d subscriptions, want %d", len(rows), len(r.m.subs))
	}
	for i, s := range r.m.subs {
		streak, dead := number64(rows[i][2]), number64(rows[i][3])
		if s.open && streak >= s.streak && dead >= s.dead {
			s.streak, s.dead, s.open = streak, dead, false
		}
		// At one instant, the day's end may come before the results.
		if s.reason == "cost_cap" && s.counted.Equal(s.disabledAt) && slices.Contains(s.before, [2]int{streak, dead}) {
			s.streak, s.dead = streak, dead
		}
		disabled := "0"
		if s.reason != "" {
			disabled = fmt.Sprint(s.disabledAt.UnixMilli())
		}
		deleted := map[bool]string{false: "0", true: "1"}[s.deleted]
		want := []string{s.id, string(s.reason), fmt.Sprint(s.streak), fmt.Sprint(s.dead), deleted, s.url, string(s.envelope), disabled}
		if !slices.Equal(rows[i], want) {
			return fmt.Sprintf("%s: reason, streak, dead letters, deleted, URL, envelope, disabled are %q, want %q", s.name, rows[i][1:], want[1:])
		}
	}
	return ""
}

func number64(text string) (n int) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

func (r *modelRun) compareDeliveries() string {
	stored := map[string][]string{}
	for _, row := range r.rows(`
		SELECT s.subscription_id, e.event_id, CASE WHEN d.status = 'pending' AND d.generation < s.generation THEN 'failed' ELSE d.status END,
		  d.attempt_count, d.envelope, COALESCE(d.next_attempt_at_ms, 0)
		FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq`) {
		stored[row[0]+" "+row[1]] = row[2:]
	}
	for _, s := range r.m.subs {
		var kept []*modelDelivery
		for _, d := range s.deliveries {
			key := s.id + " " + d.event.id
			row := stored[key]
			delete(stored, key)
			if row == nil {
				if !d.optional && !d.expired(r.m.now) {
					return fmt.Sprintf("%s of %s is not there", d.event.name, s.name)
				}
				continue
			}
			if problem := r.m.compareDelivery(s, d, row); problem != "" {
				return fmt.Sprintf("%s of %s: %s", d.event.name, s.name, problem)
			}
			kept = append(kept, d)
		}
		s.deliveries = kept
	}
	for range stored {
		return fmt.Sprintf("%d deliveries too many", len(stored))
	}
	return ""
}

func (m *model) compareDelivery(s *modelSub, d *modelDelivery, row []string) string {
	d.optional = false
	status := row[0]
	if d.open && status == "dead_letter" {
		d.status = status
	}
	d.open = false
	if s.reason == "cost_cap" && d.status == "dead_letter" && status == "failed" && d.finished.Equal(s.disabledAt) {
		d.status = status
	}
	// While its subscription is busy, the order in which what is due is looked at
	// is free.
	if d.status == "pending" && status == "failed" && s.flight != nil && !d.due.After(m.now) && !slices.Contains(s.types, d.event.typ) {
		d.status, d.finished = status, m.now
	}
	due := row[3]
	if d.status == "pending" {
		due = fmt.Sprint(d.due.UnixMilli())
	}
	want := []string{d.status, fmt.Sprint(d.attempts), string(d.envelope), due}
	if !slices.Equal(row, want) {
		return fmt.Sprintf("status, attempts, envelope, due are %q, want %q", row, want)
	}
	if d.mustBeGone(m.started, m.lastTick()) {
		return "should have been deleted: " + d.status + " since " + d.finished.In(m.location).Format(time.DateTime)
	}
	return ""
}

// expired says whether a delivery may be deleted.
func (d *modelDelivery) expired(now time.Time) bool {
	return d.status != "pending" && d.finished.Add(modelRetention).Before(now)
}

// mustBeGone says whether the last pass should have deleted it. What its
// subscription's end has failed is written down by the next turn.
func (d *modelDelivery) mustBeGone(started, pass time.Time) bool {
	finished := d.finished
	if d.status == "failed" {
		if finished.Before(started) {
			finished = started
		}
		finished = finished.Add(modelTick)
	}
	return d.status != "pending" && finished.Add(modelRetention).Before(pass)
}

// learnNotices finds the ids of notices that nobody was sent. Some have expired
// unseen.
func (r *modelRun) learnNotices() {
	var unknown []*modelEvent
	for _, e := range r.m.events {
		if e.id == "" {
			unknown = append(unknown, e)
		}
	}
	if len(unknown) == 0 {
		return
	}
	for _, row := range r.rows(`SELECT event_id, CAST(data AS TEXT), occurred_at_ms FROM outbox_events WHERE event_type = 'webhook.subscription_disabled' ORDER BY seq`) {
		if slices.ContainsFunc(r.m.events, func(e *modelEvent) bool { return e.id == row[0] }) {
			continue
		}
		notice := member(row[1], "subscription_id") + " " + member(row[1], "disabled_reason")
		if i := slices.IndexFunc(unknown, func(e *modelEvent) bool {
			return e.id == "" && e.notice == notice && fmt.Sprint(e.at.UnixMilli()) == row[2]
		}); i >= 0 {
			unknown[i].id = row[0]
		}
	}
}

// compareAttempts compares the days' counts: those of requests whose result is in
// the file.
func (r *modelRun) compareAttempts() string {
	want := map[customerDate]int{}
	for of, n := range r.m.used {
		want[of] = n
	}
	for _, s := range r.m.subs {
		if s.flight != nil {
			want[customerDate{s.customer, s.flight.day}]--
		}
	}
	for _, row := range r.rows(`SELECT customer_id, day, attempts FROM webhook_daily_attempts`) {
		of := customerDate{row[0], row[1]}
		if got := number64(row[2]); got != want[of] {
			return fmt.Sprintf("%d attempts of %s on %s, want %d", got, of.customer, of.date, want[of])
		}
		delete(want, of)
	}
	for of, n := range want {
		if n != 0 {
			return fmt.Sprintf("no attempts of %s on %s, want %d", of.customer, of.date, n)
		}
	}
	return ""
}

// compareTotals compares the counted states. What the sweep has not written down
// yet is counted as pending.
func (r *modelRun) compareTotals() string {
	want := map[string]int{}
	for _, s := range r.m.subs {
		for _, d := range s.deliveries {
			want[d.status]++
		}
	}
	row := r.rows(`
		SELECT COUNT(*) FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq WHERE d.status = 'pending' AND d.generation < s.generation`)[0]
	want["pending"] += number64(row[0])
	want["failed"] -= number64(row[0])
	for _, row := range r.rows(`SELECT status, deliveries FROM webhook_totals`) {
		if got := number64(row[1]); got != want[row[0]] {
			return fmt.Sprintf("the total of %s is %d, want %d", row[0], got, want[row[0]])
		}
	}
	return ""
}

// poll reads on in the feed from where a customer stands.
func (r *modelRun) poll(customer string) string {
	r.say("%s polls the feed", customer)
	page, err := r.w.service.Events(context.Background(), EventsRequest{CustomerID: customer, After: r.cursors[customer], Limit: 100})
	if err != nil && store.CodeOf(err) == store.CodeGone && r.m.now.Sub(r.m.polled[customer]) > modelEventRetention {
		r.cursors[customer], r.m.read[customer] = "", 0
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if problem := r.compareDeliveries(); problem != "" { // which are gone
		return problem
	}
	problem := r.m.compareFeed(customer, r.m.read[customer], page.Data)
	r.cursors[customer], r.m.read[customer], r.m.polled[customer] = page.NextCursor, len(r.m.events), r.m.now
	return problem
}

// compareFeed compares the whole feed of a customer.
func (r *modelRun) compareFeed(customer string) string {
	page, err := r.w.service.Events(context.Background(), EventsRequest{CustomerID: customer, Limit: 100})
	if err != nil {
		return err.Error()
	}
	if problem := r.compareDeliveries(); problem != "" {
		return problem
	}
	return r.m.compareFeed(customer, 0, page.Data)
}

// compareFeed compares a page with the events after the first so many. Old ones
// may be gone. Notices of one instant are in no order.
func (m *model) compareFeed(customer string, after int, page []Event) string {
	var got, want []string
	for _, e := range page {
		got = append(got, m.name(e.EventID))
	}
	for _, e := range m.events[after:] {
		if e.customer != "" && e.customer != customer {
			continue
		}
		if e.at.Add(modelEventRetention).Before(m.now) && !slices.Contains(got, m.name(e.id)) && !m.hasDelivery(e) {
			continue
		}
		want = append(want, m.name(e.id))
	}
	if len(want) > 100 {
		return "" // more than a page
	}
	if !slices.IsSortedFunc(page, func(a, b Event) int { return a.OccurredAt.Compare(b.OccurredAt) }) {
		return "the feed is not in the order of time"
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("the feed of %s after %d is %s, want %s", customer, after, strings.Join(got, " "), strings.Join(want, " "))
	}
	return ""
}

func (m *model) hasDelivery(e *modelEvent) bool {
	return slices.ContainsFunc(m.subs, func(s *modelSub) bool { return s.delivery(e) != nil })
}

func (m *model) name(id string) string {
	for _, e := range m.events {
		if e.id == id {
			return e.name
		}
	}
	return "unknown"
}
