package webhook

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"jpintel/store"
)

// modelAction is one step of a sequence; what the numbers mean is the kind's,
// and depends on what there is.
type modelAction struct {
	kind    string
	a, b, c int
}

func (a modelAction) String() string { return fmt.Sprintf("%s %d %d %d", a.kind, a.a, a.b, a.c) }

// modelKinds has each kind as often as it should come.
var modelKinds = slices.Concat(
	slices.Repeat([]string{"publish"}, 8), slices.Repeat([]string{"sleep"}, 9), slices.Repeat([]string{"answer"}, 6),
	[]string{"own", "own", "elsewhere", "reload", "subscribe", "subscribe", "change", "change", "delete", "disable", "enable", "enable", "enable",
		"opt out", "opt in", "opt in", "free", "paid", "paid", "rotate", "finish", "switch on", "switch off", "switch off", "restart", "crash", "feed"},
)

func drawActions(rt *rapid.T) []modelAction {
	number := rapid.IntRange(0, 59)
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) modelAction {
		return modelAction{rapid.SampledFrom(modelKinds).Draw(rt, "kind"), number.Draw(rt, "a"), number.Draw(rt, "b"), number.Draw(rt, "c")}
	}), 15, 35).Draw(rt, "actions")
}

var (
	modelURLs   = []string{"https://93.184.215.14/0", "https://93.184.215.14/1", "https://93.184.215.14/2"}
	modelSleeps = []time.Duration{time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, time.Hour, 3 * time.Second, 2 * time.Hour,
		6 * time.Hour, 10 * time.Minute, day, 9 * time.Minute, 50 * time.Hour, time.Minute, 6 * day}
	modelTypes = [][]Type{
		{TypeProgramUpdated, TypeTierQuotaWarning, TypeSubscriptionDisabled},
		{TypeProgramUpdated}, {TypeProgramUpdated, TypeSubscriptionDisabled}, {TypeTierQuotaWarning, TypeSubscriptionDisabled},
	}
	modelFilters    = []Filter{nil, nil, nil, {"prefecture": {"奈良県"}}, {"prefecture": {"奈良県", "大阪府"}, "authority_level": {"national"}}}
	modelAttributes = []Attributes{nil, {"prefecture": {"奈良県"}}, {"prefecture": {"京都府", "大阪府"}, "authority_level": {"national"}}}
)

// nth takes one of a list by a number that may be too large.
func nth[T any](list []T, n int) T { return list[n%len(list)] }

// modelRun is one sequence.
type modelRun struct {
	m       *model
	w       *world
	dir     string
	files   int
	shape   modelShape
	answers map[string]modelAnswer
	cursors map[string]string
	lines   []string
	settle  func() string // waits until nothing more happens, and judges what did
}

// modelBeginning is how every sequence begins.
var modelBeginning = []modelAction{{"subscribe", 0, 0, 0}, {"subscribe", 0, 1, 2}, {"subscribe", 1, 0, 1}}

// runModel runs a sequence. It returns what went wrong, with a line for each
// action.
func runModel(t *testing.T, actions []modelAction, shape modelShape) string {
	return inBubble(t, shape, func(r *modelRun) string { return r.all(slices.Concat(modelBeginning, actions)) })
}

// inBubble runs something with a new file and process, in a bubble of its own.
func inBubble(t *testing.T, shape modelShape, run func(*modelRun) string) (problem string) {
	dir := modelDir()
	defer os.RemoveAll(dir)
	template := modelTemplate()
	synctest.Test(t, func(*testing.T) {
		r := &modelRun{m: newModel(time.Now(), tokyo), dir: dir, shape: shape, answers: map[string]modelAnswer{}, cursors: map[string]string{}}
		r.settle = r.settled
		path := r.file()
		if err := os.WriteFile(path, template, 0o600); err != nil {
			panic(err)
		}
		for _, url := range modelURLs {
			r.answers[url] = modelAnswers[0]
		}
		for _, id := range modelCustomers {
			r.m.customers[id] = &modelCustomer{}
		}
		r.w = newWorld(path, shape, r.answers)
		defer func() { r.w.close() }()
		if problem = run(r); problem != "" {
			problem = strings.Join(append(r.lines, problem), "\n")
		}
	})
	return problem
}

func (r *modelRun) file() string {
	r.files++
	return filepath.Join(r.dir, fmt.Sprintf("%d.db", r.files))
}

func (r *modelRun) say(format string, args ...any) {
	r.lines = append(r.lines, time.Now().In(tokyo).Format("02 15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (r *modelRun) all(actions []modelAction) string {
	for i, a := range actions {
		if problem := r.step(a); problem != "" {
			return problem
		}
		if problem := r.settled(); problem != "" {
			return problem
		}
		if i%4 == 3 || i > len(actions)-3 {
			if problem := r.compare(); problem != "" {
				return problem
			}
		}
	}
	for _, id := range modelCustomers {
		if problem := r.compareFeed(id); problem != "" {
			return problem
		}
	}
	if len(actions)%4 > 0 {
		return ""
	}
	return checkFile(r.w.db)
}

// settled waits until nothing more happens now, and tells the model what did.
func (r *modelRun) settled() string {
	synctest.Wait()
	problem := r.m.advance(time.Now(), r.w.wire.take())
	r.learnNotices()
	return problem
}

func (r *modelRun) step(a modelAction) string {
	customer := nth(modelCustomers, a.a)
	switch a.kind {
	case "sleep":
		d := nth(modelSleeps, a.a)
		r.say("sleep %s", d)
		time.Sleep(d)
	case "publish", "elsewhere":
		return r.publish(a, "")
	case "own":
		return r.publish(a, customer)
	case "reload":
		r.say("reload")
		r.w.worker.Reload()
		r.m.fanOut(true)
	case "answer":
		url, answer := nth(modelURLs, a.b), nth(modelAnswers, a.a)
		r.say("%s answers %s", url, answer.name)
		r.w.wire.mu.Lock()
		r.answers[url] = answer
		r.w.wire.mu.Unlock()
	case "subscribe":
		return r.subscribe(customer, nth(modelURLs, a.b), a.c)
	case "opt out", "opt in":
		return r.optOut(customer, a.kind == "opt out")
	case "free", "paid":
		return r.tier(customer, a.kind == "free")
	case "switch on", "switch off":
		return r.killSwitch(a.kind == "switch on")
	case "restart", "crash":
		return r.restart(a.kind == "crash", nth(modelSleeps, a.b))
	case "feed":
		return r.poll(customer)
	default:
		return r.own(a)
	}
	return ""
}

// publish commits events in one transaction: for all, or for one customer.
func (r *modelRun) publish(a modelAction, customer string) string {
	n, attributes, outbox := 1+a.a%4, nth(modelAttributes, a.b), r.w.service.Outbox
	if a.kind == "elsewhere" {
		outbox = r.w.away
	}
	r.say("%s: %d events, customer %q, attributes %v", a.kind, n, customer, attributes)
	err := r.w.db.Write(context.Background(), func(tx *store.Tx) error {
		for range n {
			var p Payload = updated("UNI-1", attributes)
			e := &modelEvent{typ: TypeProgramUpdated, attributes: attributes}
			if customer != "" {
				p, e = warning(customer), &modelEvent{typ: TypeTierQuotaWarning, customer: customer}
			}
			var err error
			if e.id, err = outbox.Publish(context.Background(), tx, p); err != nil {
				return err
			}
			r.m.commit(e, true)
		}
		return nil
	})
	if a.kind != "elsewhere" {
		r.m.fanOut(false)
	}
	return wantNone(err)
}

func wantNone(err error) string { return wantError(err, "") }

// wantError says what is wrong with the end of a call.
func wantError(err error, code store.Code) string {
	var got store.Code
	if err != nil {
		got = store.CodeOf(err)
	}
	if got != code {
		return fmt.Sprintf("answered %q (%v), want %q", got, err, code)
	}
	return ""
}

// entitled says how a call for one more active subscription ends.
func (r *modelRun) entitled(customer string) store.Code {
	switch c := r.m.customers[customer]; {
	case c.free:
		return store.CodeForbidden
	case c.out:
		return store.CodeConflict
	}
	return ""
}

func (r *modelRun) subscribe(customer, url string, n int) string {
	if len(r.m.subs) >= 8 {
		return ""
	}
	s := &modelSub{name: fmt.Sprintf("sub#%d", len(r.m.subs)+1), customer: customer, url: url, types: nth(modelTypes, n), filter: nth(modelFilters, n),
		envelope: nth([]Envelope{EnvelopeV1, EnvelopeV2}, n/2), since: len(r.m.events), generation: 1}
	if !slices.Contains(s.types, TypeProgramUpdated) {
		s.filter = nil
	}
	want := r.entitled(customer)
	r.say("%s: %s subscribes %s to %v, filter %v, envelope %s; want %q", s.name, customer, url, s.types, s.filter, s.envelope, want)
	answer, err := r.w.service.Subscribe(context.Background(), SubscribeRequest{
		CustomerID: customer, URL: url, Events: s.types, Filter: cloneFilter(s.filter), Envelope: s.envelope})
	if err == nil {
		s.id, s.secrets = answer.SubscriptionID, []modelSecret{{text: answer.SigningSecret}}
		r.m.subs = append(r.m.subs, s)
	}
	return wantError(err, want)
}

// cloneFilter: validation sorts the lists that it is given.
func cloneFilter(f Filter) Filter {
	if f == nil {
		return nil
	}
	c := Filter{}
	for attribute, values := range f {
		c[attribute] = slices.Clone(values)
	}
	return c
}

func (r *modelRun) optOut(customer string, out bool) string {
	c := r.m.customers[customer]
	if c.free {
		return "" // the API turns it away
	}
	r.say("%s opts out: %v", customer, out)
	call := r.w.service.EndOptOut
	if out {
		call = r.w.service.StopAll
	}
	_, err := call(context.Background(), OptOutRequest{customer})
	c.out = out
	for _, s := range r.m.subs {
		switch {
		case s.customer != customer || s.deleted:
		case out:
			r.m.disable(s, "user_opt_out", false)
		case s.reason == "user_opt_out":
			r.m.enable(s)
		}
	}
	return wantNone(err)
}

// tier changes a tier as the command does: beside the server, which then reads
// everything again.
func (r *modelRun) tier(customer string, free bool) string {
	r.say("%s is free: %v", customer, free)
	tier := store.TierPaid
	if free {
		tier = store.TierFree
	}
	err := r.w.db.Write(context.Background(), func(tx *store.Tx) error { return SetTier(tx, customer, tier) })
	r.m.customers[customer].free = free
	for _, s := range r.m.subs {
		switch {
		case s.customer != customer || s.deleted:
		case free:
			r.m.disable(s, "tier", false)
		case s.reason == "tier":
			r.m.enable(s)
		}
	}
	r.w.worker.Reload()
	r.m.fanOut(true)
	return wantNone(err)
}

func (r *modelRun) killSwitch(on bool) string {
	r.say("switch on: %v", on)
	err := r.w.db.Write(context.Background(), func(tx *store.Tx) error { return store.SetKillSwitch(tx, on) })
	r.w.worker.SetKillSwitch(on)
	r.m.killed = on
	if on {
		r.m.release(func(f *modelFlight) bool { return f.answer.offWire })
	}
	return wantNone(err)
}

// restart stops the process, in good order or not, and starts another one.
func (r *modelRun) restart(crash bool, down time.Duration) string {
	r.say("restart after %s, crash: %v", down, crash)
	path := r.w.db.Path()
	r.m.off = true
	if crash {
		path = r.file()
		r.w.crash(path)
	} else {
		if err := r.w.stop(); err != nil {
			return err.Error()
		}
		if problem := r.settle(); problem != "" {
			return problem
		}
		if err := r.w.db.Close(); err != nil {
			return err.Error()
		}
	}
	r.m.release(func(*modelFlight) bool { return true })
	time.Sleep(time.Until(time.Now().Add(down).Truncate(time.Second)))
	r.w = newWorld(path, r.shape, r.answers)
	if problem := r.m.advance(time.Now(), nil); problem != "" {
		return problem
	}
	r.m.off, r.m.started = false, time.Now()
	r.m.fanOut(true)
	return ""
}

// own is what an owner does with one subscription.
func (r *modelRun) own(a modelAction) string {
	if len(r.m.subs) == 0 {
		return ""
	}
	s := nth(r.m.subs, a.a)
	if a.kind == "enable" { // rather one that is disabled
		if i := slices.IndexFunc(r.m.subs, func(s *modelSub) bool { return s.reason != "" && !s.deleted }); i >= 0 {
			s = r.m.subs[i]
		}
	}
	if r.m.customers[s.customer].free {
		return "" // the API turns it away
	}
	var want store.Code
	if s.deleted && a.kind != "delete" {
		want = store.CodeNotFound
	}
	which, ctx := SubscriptionRequest{s.customer, s.id}, context.Background()
	var err error
	switch a.kind {
	case "change":
		return r.change(s, a, want)
	case "delete":
		_, err = r.w.service.Unsubscribe(ctx, which)
		r.m.disable(s, "user", false)
		s.reason, s.deleted = "user", true
	case "disable":
		_, err = r.w.service.Disable(ctx, which)
		r.m.disable(s, "user", false)
		if s.reason == "user_opt_out" {
			s.reason = "user"
		}
	case "enable":
		if want == "" && s.reason != "" {
			if want = r.entitled(s.customer); want == "" && r.m.capped(s.customer) {
				want = store.CodeConflict
			}
		}
		_, err = r.w.service.Enable(ctx, which)
		if want == "" && s.reason != "" {
			r.m.enable(s)
		}
	case "rotate":
		return r.rotate(s, want)
	case "finish":
		_, err = r.w.service.FinishRotation(ctx, which)
		for i := range s.secrets[1:] {
			if old := &s.secrets[i+1]; want == "" && old.until.After(r.m.now) {
				old.until = r.m.now
			}
		}
	}
	r.say("%s %s; want %q", a.kind, s.name, want)
	return wantError(err, want)
}

func (r *modelRun) change(s *modelSub, a modelAction, want store.Code) string {
	c := ChangeRequest{CustomerID: s.customer, SubscriptionID: s.id}
	next := *s
	if a.b%2 == 0 {
		next.url = nth(modelURLs, a.c)
		c.URL = &next.url
	}
	if a.b%3 == 0 {
		next.types, next.filter = nth(modelTypes, a.c), nil
		c.Events, c.Filter = &next.types, FilterChange{nil, true}
	} else if a.b%5 == 0 && slices.Contains(s.types, TypeProgramUpdated) {
		next.filter = nth(modelFilters, a.c)
		c.Filter = FilterChange{cloneFilter(next.filter), true}
	}
	if a.c%2 == 0 {
		next.envelope = nth([]Envelope{EnvelopeV1, EnvelopeV2}, a.c/2)
		c.Envelope = &next.envelope
	}
	r.say("change %s to %s %v, filter %v, envelope %s; want %q", s.name, next.url, next.types, next.filter, next.envelope, want)
	_, err := r.w.service.Change(context.Background(), c)
	if want == "" {
		*s = next
	}
	return wantError(err, want)
}

func (r *modelRun) rotate(s *modelSub, want store.Code) string {
	old := 0
	for _, secret := range s.secrets {
		if secret.until.After(r.m.now) {
			old++
		}
	}
	if want == "" && old >= modelOldSecrets {
		want = store.CodeConflict
	}
	r.say("rotate %s; want %q", s.name, want)
	answer, err := r.w.service.RotateSecret(context.Background(), SubscriptionRequest{s.customer, s.id})
	if err == nil {
		s.secrets[0].until = r.m.now.Add(modelGrace)
		s.secrets = append([]modelSecret{{text: answer.SigningSecret}}, s.secrets...)
	}
	return wantError(err, want)
}

// TestTheContractFollowsTheModel runs random sequences, one request to a
// subscription at a time, and compares everything with the model.
func TestTheContractFollowsTheModel(t *testing.T) {
	shape := modelShape{concurrency: 32, perLane: 1, random: func() float64 { return 0.25 }}
	checkRounds(t, 20, func(rt *rapid.T) {
		if problem := runModel(t, drawActions(rt), shape); problem != "" {
			rt.Fatal(problem)
		}
	})
}

// checkRounds runs a property a hundred times for each round; less in short
// runs, and least under the race detector, which takes twenty times as long.
func checkRounds(t *testing.T, rounds int, property func(*rapid.T)) {
	switch {
	case testing.Short():
		rounds = 3 // rapid itself takes a fifth
	case raceEnabled:
		rounds = 1
		checks := flag.Lookup("rapid.checks").Value
		defer checks.Set(checks.String())
		checks.Set("20")
	}
	for range rounds {
		rapid.Check(t, property)
	}
}
