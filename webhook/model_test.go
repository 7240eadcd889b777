package webhook

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A plain model of the contract, in maps and slices: what happens to each
// delivery, subscription and event. It is told of every call and of every
// request that the receivers saw, says whether that request was right, and says
// when one is missing. The order of what happens at one instant is the
// product's to choose; everything else has to be as the model says.

// The numbers in force in the model's world: small, so that limits are met.
const (
	modelCap            = 30
	modelDeadLetters    = 3
	modelStreak         = 10
	modelOldSecrets     = 4
	modelTick           = 12 * time.Hour
	modelDrain          = 4333 * time.Millisecond // nothing else ends in a broken second
	modelGrace          = time.Hour
	modelRetention      = 2 * day
	modelEventRetention = 5 * day
	modelMostHint       = 24 * time.Hour
)

// modelSchedule is what follows the first attempt, and modelWaits what is made
// of it by a jitter that is always the same, five percent less.
var (
	modelSchedule = []time.Duration{time.Minute, 5 * time.Minute}
	modelWaits    = []time.Duration{57 * time.Second, 285 * time.Second}
)

// meaning is what an answer means for the delivery and the subscription.
type meaning int

const (
	accepted    meaning = iota
	gone                // it stops at once
	refusal             // retried, and counts in the streak
	unavailable         // retried, and leaves the streak as it is
	unresolved          // as unavailable, but counts when it follows another
	ourFault            // retried, and uses up none of the attempts
)

type modelEvent struct {
	name, id   string // as it is told here; the real one, once it is known
	typ        Type
	customer   string // "": for all
	attributes Attributes
	at         time.Time
	n          int       // in commit order, from 1
	notice     string    // of webhook.subscription_disabled: the subscription and the reason
	waits      bool      // it is committed and not fanned out
	beside     time.Time // when it was fanned out, where that was not part of a call
}

type modelDelivery struct {
	event      *modelEvent
	generation int
	envelope   Envelope
	status     string
	attempts   int
	tries      int // of these, those that the schedule counts
	due        time.Time
	finished   time.Time
	body       string
	optional   bool // its subscription was disabled at the same instant: it may not have been made
	open       bool // failed, or dead letter: its last request had begun when the subscription was disabled
}

type modelFlight struct {
	d          *modelDelivery
	answer     modelAnswer
	ends       time.Time
	generation int
	day        string
	late       bool // it had begun when the subscription was disabled
}

type modelSecret struct {
	text  string
	until time.Time // zero: no end
}

type modelSub struct {
	name, id, customer, url string
	types                   []Type
	filter                  Filter
	envelope                Envelope
	reason                  Reason // "": active
	disabledAt              time.Time
	byService, deleted      bool
	generation              int
	since                   int // only later events match
	streak, dead            int
	open                    bool // the streak and the dead letters may be higher
	counted                 time.Time
	before                  [][2]int // streaks and dead letters at that instant, before they were as they are
	lastUnresolved          bool
	secrets                 []modelSecret // newest first
	flight                  *modelFlight
	deliveries              []*modelDelivery
}

type modelCustomer struct{ free, out bool }

type customerDate struct{ customer, date string }

type model struct {
	now       time.Time
	location  *time.Location
	started   time.Time // the worker
	off       bool      // the worker
	killed    bool
	customers map[string]*modelCustomer
	subs      []*modelSub
	events    []*modelEvent
	used      map[customerDate]int // attempts begun
	refused   map[string]int       // of a customer at this instant: refused addresses, which were counted before they began
	read      map[string]int       // of a customer: how many events were committed when it last polled the feed
	polled    map[string]time.Time
}

func newModel(now time.Time, location *time.Location) *model {
	return &model{now: now, location: location, started: now, customers: map[string]*modelCustomer{}, used: map[customerDate]int{}, refused: map[string]int{},
		read: map[string]int{}, polled: map[string]time.Time{}}
}

func (m *model) date(at time.Time) string { return at.In(m.location).Format("2006-01-02") }

func (m *model) capped(customer string) bool {
	return m.used[customerDate{customer, m.date(m.now)}] >= modelCap
}

// matches says whether an event goes to a subscription.
func (m *model) matches(s *modelSub, e *modelEvent) bool {
	c := m.customers[s.customer]
	if c.free || c.out || e.n <= s.since || e.customer != "" && e.customer != s.customer || !slices.Contains(s.types, e.typ) {
		return false
	}
	for attribute, wanted := range s.filter {
		if !slices.ContainsFunc(wanted, func(v string) bool { return slices.Contains(e.attributes[attribute], v) }) {
			return false
		}
	}
	return true
}

// commit adds an event. Whatever waits is fanned out with the next one.
func (m *model) commit(e *modelEvent, elsewhere bool) {
	e.at, e.n, e.waits = m.now, len(m.events)+1, true
	e.name = fmt.Sprintf("evt#%d", e.n)
	m.events = append(m.events, e)
	if !elsewhere {
		m.fanOut(e.notice != "")
	}
}

// fanOut makes the deliveries of what waits. beside: it is not part of a call, so
// what disables a subscription at the same instant may come before it or after.
func (m *model) fanOut(beside bool) {
	for _, e := range m.events {
		if !e.waits {
			continue
		}
		e.waits = false
		if beside {
			e.beside = m.now
		}
		for _, s := range m.subs {
			together := s.byService && s.disabledAt.Equal(m.now)
			if (s.reason != "" && !together) || !m.matches(s, e) {
				continue
			}
			d := &modelDelivery{event: e, generation: s.generation, envelope: s.envelope, status: "pending", due: m.now}
			if together && s.reason != "" {
				d.optional, d.status, d.finished = true, "failed", m.now
			}
			s.deliveries = append(s.deliveries, d)
		}
	}
}

// disable stops an active subscription.
func (m *model) disable(s *modelSub, reason Reason, byService bool) {
	if s.reason != "" {
		return
	}
	s.reason, s.disabledAt, s.byService = reason, m.now, byService
	s.generation++
	for _, d := range s.deliveries {
		if d.status == "pending" {
			d.status, d.finished = "failed", m.now
			d.optional = byService && d.event.beside.Equal(m.now)
		}
	}
	if byService {
		m.commit(&modelEvent{typ: "webhook.subscription_disabled", customer: s.customer, notice: s.id + " " + string(reason)}, false)
	}
}

func (m *model) enable(s *modelSub) {
	s.reason, s.streak, s.dead, s.open, s.since = "", 0, 0, false, len(m.events)
	s.lastUnresolved = false
}

// request takes what a receiver saw.
func (m *model) request(r seen) string {
	s := m.sub(r.subscription)
	if s == nil {
		return "a request for no subscription"
	}
	if s.flight != nil {
		if s.flight.ends.After(m.now) {
			return s.name + " got two requests at a time"
		}
		m.end(s)
	}
	e, problem := m.event(r)
	if problem != "" {
		return problem
	}
	d := s.delivery(e)
	if d == nil && e.waits { // something at this instant has woken the fan-out: a notice
		m.endAll()
		m.capAll()
		d = s.delivery(e)
	}
	if d == nil {
		return fmt.Sprintf("%s was sent %s, which is not for it", s.name, e.name)
	}
	late := s.reason != "" && s.byService && s.disabledAt.Equal(m.now) && d.status == "failed"
	if problem := m.wrong(s, d, r, late); problem != "" {
		return fmt.Sprintf("%s was sent %s, attempt %d: %s", s.name, e.name, r.attempt, problem)
	}
	d.body = r.body
	date := m.date(m.now)
	if r.answer.blocked {
		m.refused[s.customer]++ // is no attempt of the day
	} else {
		m.used[customerDate{s.customer, date}]++
	}
	generation := s.generation
	if late {
		generation--
	}
	s.flight = &modelFlight{d: d, answer: r.answer, ends: m.now.Add(r.answer.takes), generation: generation, day: date, late: late}
	return ""
}

// wrong says what is wrong with a request.
func (m *model) wrong(s *modelSub, d *modelDelivery, r seen, late bool) string {
	switch {
	case m.killed:
		return "the kill switch is on"
	case m.off:
		return "the service is stopping"
	case late:
	case s.reason != "":
		return "the subscription is disabled"
	case d.status != "pending":
		return "the delivery is " + d.status
	case d.due.After(m.now):
		return "too early by " + d.due.Sub(m.now).String()
	}
	switch {
	case !slices.Contains(s.types, d.event.typ):
		return "its type is no longer subscribed to"
	case m.capped(s.customer):
		return "over the day's cap"
	case r.attempt != d.attempts+1:
		return fmt.Sprintf("want attempt %d", d.attempts+1)
	case r.url != s.url:
		return "sent to " + r.url
	case d.body != "" && d.body != r.body:
		return "another body than before"
	case !strings.HasPrefix(r.body, fmt.Sprintf(`{"version":"%s","event_id":"%s","`, d.envelope, d.event.id)):
		return "not a body of envelope " + string(d.envelope)
	}
	return s.wrongSignatures(m.now, r)
}

// wrongSignatures wants those of exactly the secrets that are valid now.
func (s *modelSub) wrongSignatures(now time.Time, r seen) string {
	valid := 0
	for _, secret := range s.secrets {
		if !secret.until.IsZero() && !secret.until.After(now) {
			continue
		}
		valid++
		if err := Verify(secret.text, "Jpintel", r.header, []byte(r.body), now); err != nil {
			return err.Error()
		}
	}
	stripe, standard := strings.Count(r.header.Get("X-Jpintel-Signature"), "v1="), strings.Count(r.header.Get("webhook-signature"), "v1,")
	if stripe != valid || standard != valid {
		return fmt.Sprintf("%d and %d signatures, want %d", stripe, standard, valid)
	}
	return ""
}

// event finds the event of a request. One that the model has not been told of is
// a notice that a subscription is disabled, which then must be so.
func (m *model) event(r seen) (*modelEvent, string) {
	find := func(matches func(*modelEvent) bool) *modelEvent {
		for _, e := range slices.Backward(m.events) { // old notices may have expired unseen
			if matches(e) {
				return e
			}
		}
		return nil
	}
	if e := find(func(e *modelEvent) bool { return e.id == r.event }); e != nil {
		return e, ""
	}
	of := m.sub(r.notice)
	if of == nil {
		return nil, "a request with an event that was never committed"
	}
	if of.flight != nil && !of.flight.ends.After(m.now) {
		m.end(of)
	}
	if of.reason == "" && r.reason == "cost_cap" && len(m.ready(of)) > 0 && m.overCap(of) {
		m.disable(of, "cost_cap", true)
	}
	e := find(func(e *modelEvent) bool { return e.id == "" && e.notice == r.notice+" "+r.reason })
	if e == nil {
		return nil, fmt.Sprintf("a notice that %s is disabled for %s, which it is not", of.name, r.reason)
	}
	e.id = r.event
	return e, ""
}

// end takes the end of a subscription's request.
func (m *model) end(s *modelSub) {
	f := s.flight
	s.flight = nil
	d := f.d
	d.attempts++
	if f.answer.means == accepted && d.status != "success" {
		d.status, d.finished, d.open = "success", m.now, false
	}
	switch {
	case f.late: // it may be counted with the one that disabled the subscription
		s.open = true
		d.open = d.status == "failed" && d.tries+1 > len(modelSchedule)
	case f.generation == s.generation:
		if !s.counted.Equal(m.now) {
			s.counted, s.before = m.now, nil
		}
		s.before = append(s.before, [2]int{s.streak, s.dead})
		m.count(s, d, f.answer)
	}
}

// endAll takes the end of all requests that have ended by now.
func (m *model) endAll() (any bool) {
	for _, s := range m.subs {
		if s.flight != nil && !s.flight.ends.After(m.now) {
			m.end(s)
			any = true
		}
	}
	return any
}

// capAll disables those that want to send more than the day allows.
func (m *model) capAll() {
	for _, s := range m.subs {
		if len(m.ready(s)) > 0 && m.overCap(s) {
			m.disable(s, "cost_cap", true)
		}
	}
}

// count takes an answer that concerns the subscription as it is.
func (m *model) count(s *modelSub, d *modelDelivery, a modelAnswer) {
	if a.means == accepted {
		s.streak, s.lastUnresolved = 0, false
		return
	}
	if a.means == ourFault {
		d.due = m.now.Add(modelWaits[max(d.tries, 1)-1])
		return
	}
	d.tries++
	if a.means == refusal || a.means == gone || a.means == unresolved && s.lastUnresolved {
		s.streak++
	}
	s.lastUnresolved = a.means == unresolved
	if d.tries > len(modelSchedule) {
		d.status, d.finished = "dead_letter", m.now
		s.dead++
	} else {
		d.due = m.now.Add(max(modelWaits[d.tries-1], min(a.hint, modelMostHint)))
	}
	switch {
	case a.means == gone:
		m.disable(s, "410_gone", true)
	case s.streak >= modelStreak:
		m.disable(s, "4xx_streak", true)
	case s.dead > modelDeadLetters:
		m.disable(s, "dead_letter_overflow", true)
	}
}

// ready are the deliveries of a subscription that may be sent now.
func (m *model) ready(s *modelSub) (all []*modelDelivery) {
	if m.off || m.killed || s.reason != "" || s.flight != nil {
		return nil
	}
	for _, d := range s.deliveries {
		if d.status == "pending" && !d.due.After(m.now) {
			all = append(all, d)
		}
	}
	return all
}

// overCap says whether the day is used up; an address that was refused at this
// instant may not have been given back yet.
func (m *model) overCap(s *modelSub) bool {
	return m.used[customerDate{s.customer, m.date(m.now)}]+m.refused[s.customer] >= modelCap
}

// idle takes what is ready and was not sent. It reports whether that has changed
// anything, and what is missing.
func (m *model) idle() (changed bool, problem string) {
	for _, s := range m.subs {
		for _, d := range m.ready(s) {
			switch {
			case d.status != "pending":
			case !slices.Contains(s.types, d.event.typ):
				d.status, d.finished = "failed", m.now
			case m.overCap(s):
				m.disable(s, "cost_cap", true)
			default:
				return false, fmt.Sprintf("%s was due to %s and was not sent", d.event.name, s.name)
			}
			changed = true
		}
	}
	return changed, ""
}

// instant takes all that happens at one time.
func (m *model) instant(log []seen) ([]seen, string) {
	clear(m.refused)
	for {
		changed := false
		for len(log) > 0 && !log[0].at.After(m.now) {
			if problem := m.request(log[0]); problem != "" {
				return nil, problem
			}
			log, changed = log[1:], true
		}
		changed = m.endAll() || changed
		idle, problem := m.idle()
		if problem != "" || !idle && !changed {
			return log, problem
		}
	}
}

// advance takes what happened from now to a time, with what the receivers saw.
func (m *model) advance(to time.Time, log []seen) string {
	for {
		var problem string
		if log, problem = m.instant(log); problem != "" {
			return problem
		}
		next := m.next(log)
		if next.After(to) {
			m.now = to
			return ""
		}
		m.now = next
		if !m.off && m.lastTick().Equal(next) {
			m.fanOut(true)
		}
	}
}

// next is when something happens next.
func (m *model) next(log []seen) time.Time {
	next := m.now.Add(1000 * day)
	earlier := func(at time.Time) {
		if at.Before(next) && at.After(m.now) {
			next = at
		}
	}
	if len(log) > 0 {
		earlier(log[0].at)
	}
	if !m.off && slices.ContainsFunc(m.events, func(e *modelEvent) bool { return e.waits }) {
		earlier(m.lastTick().Add(modelTick))
	}
	for _, s := range m.subs {
		if s.flight != nil {
			earlier(s.flight.ends)
		}
		if m.off || m.killed || s.reason != "" || s.flight != nil {
			continue
		}
		for _, d := range s.deliveries {
			if d.status == "pending" {
				earlier(d.due)
			}
		}
	}
	return next
}

func (m *model) lastTick() time.Time { return m.started.Add(m.now.Sub(m.started).Truncate(modelTick)) }

// release takes back the requests that came to nothing: those that are cut off.
func (m *model) release(which func(*modelFlight) bool) {
	for _, s := range m.subs {
		if s.flight != nil && which(s.flight) {
			m.used[customerDate{s.customer, s.flight.day}]--
			s.flight = nil
		}
	}
}

func (m *model) sub(id string) *modelSub {
	if i := slices.IndexFunc(m.subs, func(s *modelSub) bool { return s.id == id }); i >= 0 {
		return m.subs[i]
	}
	return nil
}

func (s *modelSub) delivery(e *modelEvent) *modelDelivery {
	if i := slices.IndexFunc(s.deliveries, func(d *modelDelivery) bool { return d.event == e }); i >= 0 {
		return s.deliveries[i]
	}
	return nil
}
