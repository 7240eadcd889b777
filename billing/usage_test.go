package billing

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/metering"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

const requestsPath = `^/requests$`

// japan is the time zone of these scenes; a bubble begins there at 09:00 on the
// first of January 2000.
var japan = time.FixedZone("JST", 9*60*60)

// meterScene is a scene in Japan with customers that are ready.
func meterScene(t *testing.T, customers []string, play func(t *testing.T, s *scene, p *poller)) {
	t.Helper()
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.DB.Location = japan
		for _, id := range customers {
			s.signUp(id)
			s.ready(id, "100.00")
		}
		play(t, s, newPoller(s.engine, 0))
		s.metered()
	})
}

// use has a customer make a request to a model, now, and returns its id. With the
// id of one that is open it says what that costs now.
func (s *scene) use(customer, cost string, open bool, id ...string) string {
	s.t.Helper()
	s.clock.Store(time.Now().UnixNano())
	key := s.strings(`SELECT key_id FROM model_keys WHERE customer_id = $1`, customer)[0]
	used := modelgatetest.Used{KeyID: key, Model: "m1", Cost: cost, Open: open, ID: strings.Join(id, "")}
	s.outside(func() error {
		u, err := s.up.Use(used)
		used.ID = u.ID
		return err
	})
	return used.ID
}

// turn takes one turn of the poller's, a millisecond later: a turn reads what was
// before it.
func (s *scene) turn(p *poller) (more bool) {
	s.t.Helper()
	time.Sleep(time.Millisecond)
	more, err := p.turn(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return more
}

// at sleeps until a time of day, in Japan.
func (s *scene) at(year int, month time.Month, day, hour, minute int) {
	time.Sleep(time.Until(time.Date(year, month, day, hour, minute, 0, 0, japan)))
}

func (s *scene) spend(customer, month string) string {
	s.t.Helper()
	value, err := metering.Value(s.DB.Reader(context.Background()), customer, metering.Spend, month)
	if err != nil {
		s.t.Fatal(err)
	}
	return value.Text("USD")
}

// told are the events of a type, in a form made of their data and their cause.
func told[P webhook.Payload, F any](s *scene, form func(p P, cause string) F) (all []F) {
	s.t.Helper()
	var none P
	for _, row := range s.strings(`SELECT COALESCE(correlation_id, '') || '|' || CAST(data AS TEXT) FROM outbox_events WHERE event_type = $1 ORDER BY seq`, string(none.Type())) {
		cause, data, _ := strings.Cut(row, "|")
		var p P
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, form(p, cause))
	}
	return all
}

func (s *scene) thresholds() []string {
	s.t.Helper()
	return told(s, func(p webhook.BudgetThresholdCrossed, _ string) string {
		return fmt.Sprintf("%s %s %d%% %s/%s", p.CustomerID, p.Period, p.ThresholdPercent, p.Spend, p.Limit)
	})
}

func (s *scene) finals() []string {
	s.t.Helper()
	return told(s, func(p webhook.UsageFinalized, cause string) string {
		if cause != p.UsageRecordID {
			s.t.Errorf("%s is caused by %q", p.UsageRecordID, cause)
		}
		return fmt.Sprintf("%s %s to %s: %s %s", p.UsageRecordID, p.PeriodStart, p.PeriodEnd, p.FinalCost, p.Currency)
	})
}

func (s *scene) same(what string, got []string, want ...string) {
	s.t.Helper()
	if !slices.Equal(got, want) {
		s.t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// from leaves the first so many out.
func from(n int, all []string) []string { return all[min(n, len(all)):] }

// metered asserts that everything that was counted is something that was used,
// once: of each customer the meters, the records and the requests come to the
// same, and what is closed to the journal.
func (s *scene) metered() {
	s.t.Helper()
	sum := func(query string, args ...any) *big.Rat {
		total := new(big.Rat)
		for _, text := range s.strings(query, args...) {
			r, ok := new(big.Rat).SetString(text)
			if !ok {
				s.t.Fatalf("an amount %q", text)
			}
			total.Add(total, r)
		}
		return total
	}
	for _, id := range s.strings(`SELECT customer_id FROM billing_accounts`) {
		meters, records := sum(`SELECT value FROM meters WHERE customer_id = $1`, id), sum(`SELECT cost FROM usage_records WHERE customer_id = $1`, id)
		closed, requests := sum(`SELECT cost FROM usage_records WHERE customer_id = $1 AND closed_at_ms IS NOT NULL`, id), sum(`SELECT cost FROM usage_requests WHERE customer_id = $1`, id)
		booked, err := ledger.Balance(s.DB.Reader(context.Background()), ledger.Credit(id), "USD")
		credit, _ := new(big.Rat).SetString(booked.Neg().String())
		if err != nil || meters.Cmp(records) != 0 || records.Cmp(requests) != 0 || closed.Cmp(credit) != 0 {
			s.t.Errorf("%s: the meters come to %s, records %s, requests %s; closed are %s, booked %s (%v)", id, meters.FloatString(12), records.FloatString(12), requests.FloatString(12), closed.FloatString(12), credit.FloatString(12), err)
		}
	}
}

// used is what a customer has used, as the upstream knows it.
func (s *scene) usedUp(customer string) string {
	group := s.strings(`SELECT group_id FROM billing_accounts WHERE customer_id = $1`, customer)[0]
	var sum money.Amount
	for _, u := range s.up.State().Usage {
		if u.GroupID == group {
			cost, err := money.Parse(u.Cost)
			if err != nil {
				s.t.Fatal(err)
			}
			sum, _ = sum.Add(cost)
		}
	}
	return sum.Text("USD")
}

func (s *scene) changeLimit(customer, limit string) *Operation {
	s.t.Helper()
	s.limit(customer, limit)
	s.work(time.Hour)
	return s.want(customer, SetLimit, Succeeded)
}

// S76, for money: each threshold is told of once a month and version of the limit.
func TestS76Budgets(t *testing.T) {
	meterScene(t, []string{"cus_a", "cus_b"}, func(t *testing.T, s *scene, p *poller) {
		use := func(customer, cost string) {
			s.use(customer, cost, false)
			s.turn(p)
			time.Sleep(time.Second)
		}
		use("cus_a", "79.99")
		use("cus_a", "0.01")
		use("cus_a", "0.01")
		s.same("79.99, 80.00, 80.01", s.thresholds(), "cus_a 2000-01 80% 80.00/100.00")
		use("cus_b", "70")
		use("cus_b", "30")
		s.same("a jump", from(1, s.thresholds()), "cus_b 2000-01 80% 100.00/100.00", "cus_b 2000-01 100% 100.00/100.00")

		s.changeLimit("cus_b", "200.00")
		use("cus_b", "59.99")
		open := s.use("cus_b", "0.01", true)
		s.turn(p)
		s.same("the limit is raised", from(3, s.thresholds()), "cus_b 2000-01 80% 160.00/200.00")
		s.use("cus_b", "0", true, open)
		s.turn(p)
		if got := s.spend("cus_b", "2000-01"); got != "159.99" {
			t.Errorf("after the reversal: %s", got)
		}
		s.use("cus_b", "0.02", false, open)
		s.turn(p)
		lowered := s.changeLimit("cus_b", "150.00")
		s.same("a reversal, and a limit that is below what was spent", from(4, s.thresholds()), "cus_b 2000-01 100% 160.01/150.00")
		if got := told(s, func(_ webhook.BudgetThresholdCrossed, cause string) string { return cause }); len(got) < 5 || got[4] != lowered.OperationID || !strings.HasPrefix(got[0], "usage_cus_a_2000-01-01_1") {
			t.Errorf("causes: %q, want %s", got, lowered.OperationID)
		}

		s.changeLimit("cus_b", "300.00")
		s.at(2000, 1, 31, 23, 59) // the upstream's own month begins nine hours later
		use("cus_a", "10")
		use("cus_b", "10")
		s.at(2000, 2, 1, 0, 0) // midnight in Japan
		use("cus_a", "9.98")
		s.same("nothing new is crossed", from(5, s.thresholds()))
		s.at(2000, 2, 1, 9, 0)
		use("cus_a", "70.01")
		use("cus_a", "0.01")
		s.same("a new month", from(5, s.thresholds()), "cus_a 2000-02 80% 80.00/100.00")
		if got := s.spend("cus_a", "2000-01"); got != "90.01" {
			t.Errorf("January: %s", got)
		}
		s.same("recorded once", s.strings(`SELECT COUNT(*) FROM threshold_crossings WHERE meter = 'model_spend'`), "6")
	})
}

// What is used late in a month is read when the month is over; what is told later
// than that changes a month that is closed, and nobody is told of a threshold.
func TestThresholdsOfAMonthThatIsOver(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.turn(p)
		s.at(2000, 1, 31, 23, 59)
		s.use("cus_a", "80", false)
		hidden := s.use("cus_a", "20", false)
		s.rules(fault("GET", requestsPath, modelgatetest.AtOnResponse, "list_omit:"+hidden, 0))
		s.at(2000, 2, 1, 0, 1)
		s.turn(p)
		s.same("a minute late", s.thresholds(), "cus_a 2000-01 80% 80.00/100.00")
		s.at(2000, 2, 1, 1, 2)
		s.turn(p)
		s.same("the last day", s.finals(), "usage_cus_a_2000-01-31_1 2000-01-31T00:00:00+09:00 to 2000-02-01T00:00:00+09:00: 80.00 USD")
		s.outside(func() error { s.up.ClearFaults(); return nil })
		s.at(2000, 2, 2, 12, 0) // the next sweep finds it
		s.turn(p)
		if got := s.spend("cus_a", "2000-01"); got != "100.00" || s.spend("cus_a", "2000-02") != "0.00" {
			t.Errorf("January: %s", got)
		}
		time.Sleep(time.Hour)
		s.turn(p)
		s.same("a record of its own", from(1, s.finals()), "usage_cus_a_2000-01-31_2 2000-01-31T00:00:00+09:00 to 2000-02-01T00:00:00+09:00: 20.00 USD")
		s.same("its entry", s.strings(`SELECT kind || ': ' || memo FROM journal_entries ORDER BY entry_seq`), "usage: usage of 2000-01-31", "usage: usage of 2000-01-31, told late: record 2")
		s.same("no threshold", from(1, s.thresholds()))
	})
}

// A day is the time zone's. It is closed when it is over, read and final, and has
// been for a while: once, with its entry and its event.
func TestADayIsClosed(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.at(2000, 1, 2, 0, 0)
		time.Sleep(-time.Millisecond + 24*time.Hour)
		last := s.use("cus_a", "0.000412500000", true) // at 23:59:59.999 of the second
		time.Sleep(time.Millisecond)
		s.use("cus_a", "1.25", false) // at 00:00 of the third
		s.turn(p)
		s.same("days", s.strings(`SELECT day || ' ' || cost || ' ' || open FROM usage_records ORDER BY day`), "2000-01-02 0.0004125 1", "2000-01-03 1.25 0")
		time.Sleep(30 * time.Hour)
		s.turn(p)
		s.same("what is not final keeps its day open, and no other", s.finals(), "usage_cus_a_2000-01-03_1 2000-01-03T00:00:00+09:00 to 2000-01-04T00:00:00+09:00: 1.25 USD")
		s.use("cus_a", "0.5", false, last)
		time.Sleep(6 * time.Hour) // that old, it is looked at four times a day
		s.turn(p)
		s.same("final a moment ago", from(1, s.finals()))
		time.Sleep(time.Hour)
		s.turn(p)
		s.turn(p)
		s.same("closed once", from(1, s.finals()), "usage_cus_a_2000-01-02_1 2000-01-02T00:00:00+09:00 to 2000-01-03T00:00:00+09:00: 0.50 USD")
		s.same("booked", s.strings(`SELECT l.account || ' ' || l.amount || ' ' || e.correlation_id FROM journal_lines l JOIN journal_entries e USING (entry_id) ORDER BY e.entry_seq, l.line_no`),
			"cust:cus_a:credit -1.25 usage_cus_a_2000-01-03_1", "revenue:usage 1.25 usage_cus_a_2000-01-03_1",
			"cust:cus_a:credit -0.50 usage_cus_a_2000-01-02_1", "revenue:usage 0.50 usage_cus_a_2000-01-02_1")
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE usage_records SET cost = '0' WHERE day = '2000-01-02'`)
			return err
		}); err == nil {
			t.Error("a closed record was changed")
		}
	})
}

// What costs nothing is told of, and moves nothing.
func TestADayThatCostsNothing(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.use("cus_a", "0", false)
		s.turn(p)
		time.Sleep(30 * time.Hour)
		s.turn(p)
		s.same("told", s.finals(), "usage_cus_a_2000-01-01_1 2000-01-01T00:00:00+09:00 to 2000-01-02T00:00:00+09:00: 0.00 USD")
		s.same("entries", s.strings(`SELECT entry_id FROM journal_entries`))
	})
}

// Everything is counted once and nothing is missed, whatever happens to pages on
// their way.
func TestPollingThroughFaults(t *testing.T) {
	for name, c := range map[string]struct {
		at modelgatetest.At
		do string
	}{
		"truncated":        {modelgatetest.AtOnResponse, "truncate:2000"},
		"rows twice":       {modelgatetest.AtOnResponse, "list_dup"},
		"cursor loop":      {modelgatetest.AtOnResponse, "cursor_loop"},
		"trailing garbage": {modelgatetest.AtOnResponse, "trailing_garbage"},
		"exponents":        {modelgatetest.AtOnResponse, "sci_amount"},
		"numbers":          {modelgatetest.AtOnResponse, "number_amount"},
		"another currency": {modelgatetest.AtOnResponse, "echo_currency:JPY"},
		"two spellings":    {modelgatetest.AtOnResponse, "duplicate_key_case"},
		"a stale list":     {modelgatetest.AtBeforeExecute, "stale_read:45s"},
		"a clock behind":   {modelgatetest.AtOnResponse, "date_skew:-2h"},
		"a clock ahead":    {modelgatetest.AtOnResponse, "date_skew:2h"},
		"503":              {modelgatetest.AtBeforeAuth, "status:503 html"},
		"reset":            {modelgatetest.AtAfterCommit, "reset"},
		"unauthorized":     {modelgatetest.AtBeforeAuth, "status:401"},
	} {
		t.Run(name, func(t *testing.T) {
			if race && c.do != "reset" {
				t.Skip("one fault is enough to find races")
			}
			meterScene(t, []string{"cus_a", "cus_b"}, func(t *testing.T, s *scene, p *poller) {
				rule := fault("GET", requestsPath, c.at, c.do, 0)
				rule.Match.Prob, rule.Match.Seed = "0.5", 7
				s.rules(rule)
				for i := range 20 { // more than a page each
					for n := range 6 {
						s.use("cus_a", fmt.Sprintf("0.%012d", i*6+n+1), false)
						s.use("cus_b", "0.01", false)
					}
					s.turn(p)
					time.Sleep(20 * time.Second)
				}
				s.outside(func() error { s.up.ClearFaults(); return nil })
				for range 3 {
					time.Sleep(time.Minute)
					s.turn(p)
				}
				for _, id := range []string{"cus_a", "cus_b"} {
					if got, want := s.spend(id, "2000-01"), s.usedUp(id); got != want {
						t.Errorf("%s: %s, want %s", id, got, want)
					}
				}
			})
		})
	}
}

// A long absence is caught up with, a few pages a turn, also where very much
// happened in one moment.
func TestCatchingUp(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		for range 700 { // in one millisecond: more than a turn reads
			s.use("cus_a", "0.01", false)
		}
		for range 300 {
			time.Sleep(time.Second)
			s.use("cus_a", "0.01", false)
		}
		before := s.up.State().Requests
		if more := s.turn(p); !more || s.up.State().Requests-before != usagePages {
			t.Errorf("%d pages in a turn, and more: %v", s.up.State().Requests-before, more)
		}
		for s.turn(p) {
		}
		if got := s.spend("cus_a", "2000-01"); got != "10.00" {
			t.Errorf("spend: %s", got)
		}
		time.Sleep(40 * 24 * time.Hour)
		for range 6 { // the sweep that was under way ends, too
			for s.turn(p) {
			}
		}
		before = s.up.State().Requests
		time.Sleep(time.Minute)
		s.turn(p)
		if got := s.up.State().Requests - before; got != 1 {
			t.Errorf("%d requests where nothing is new", got)
		}
	})
}

// A page whose transaction fails is counted when it is read again.
func TestACrashBetweenReadingAndCommitting(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.use("cus_a", "85", false)
		s.exec(`CREATE TRIGGER broken BEFORE INSERT ON usage_passes BEGIN SELECT RAISE(ABORT, 'power cut'); END`)
		s.turn(p)
		if s.same("nothing of it stays", s.strings(`SELECT request_id FROM usage_requests UNION ALL SELECT value FROM meters UNION ALL SELECT event_id FROM threshold_crossings`)); !strings.Contains(s.log.String(), "usage_not_counted") {
			t.Errorf("the log: %s", s.log)
		}
		s.exec(`DROP TRIGGER broken`)
		s.turn(p)
		s.turn(newPoller(s.engine, 0)) // another process, after a crash
		s.same("told once", s.thresholds(), "cus_a 2000-01 80% 85.00/100.00")
		if got := s.spend("cus_a", "2000-01"); got != "85.00" {
			t.Errorf("spend: %s", got)
		}
		s.exec(`CREATE TRIGGER broken BEFORE INSERT ON outbox_events BEGIN SELECT RAISE(ABORT, 'power cut'); END`)
		time.Sleep(30 * time.Hour)
		if _, err := p.turn(t.Context()); err == nil {
			t.Error("it was closed without its event")
		}
		s.same("not booked either", s.strings(`SELECT entry_id FROM journal_entries`))
		s.exec(`DROP TRIGGER broken`)
		s.turn(p)
		s.same("closed", s.finals(), "usage_cus_a_2000-01-01_1 2000-01-01T00:00:00+09:00 to 2000-01-02T00:00:00+09:00: 85.00 USD")
	})
}

// One customer's failure is not another's; one of the upstream's is everybody's,
// and the next turn begins with the next customer.
func TestOneCustomersFailure(t *testing.T) {
	meterScene(t, []string{"cus_a", "cus_b", "cus_c"}, func(t *testing.T, s *scene, p *poller) {
		for _, id := range []string{"cus_a", "cus_b", "cus_c"} {
			s.use(id, "1", false)
		}
		s.rules(fault("GET", requestsPath, modelgatetest.AtOnResponse, "malformed_json", 1))
		s.turn(p)
		s.same("all but the first", s.strings(`SELECT customer_id FROM meters ORDER BY 1`), "cus_b", "cus_c")
		s.rules(fault("GET", requestsPath, modelgatetest.AtBeforeAuth, "status:503 html", 1))
		s.turn(p)
		if p.after != "cus_a" {
			t.Errorf("after %q", p.after)
		}
		s.turn(p)
		s.same("all", s.strings(`SELECT customer_id FROM meters ORDER BY 1`), "cus_a", "cus_b", "cus_c")
	})
}

// The upstream has not done it before, but where it mixes up customers, nothing of
// the page counts.
func TestAnotherCustomersRequest(t *testing.T) {
	meterScene(t, []string{"cus_a", "cus_b"}, func(t *testing.T, s *scene, p *poller) {
		s.use("cus_a", "1", false)
		s.turn(p)
		groups := s.strings(`SELECT group_id FROM billing_accounts ORDER BY customer_id`)
		s.exec(`UPDATE billing_accounts SET group_id = 'grp_x' WHERE customer_id = 'cus_a'`)
		s.exec(`UPDATE billing_accounts SET group_id = $1 WHERE customer_id = 'cus_b'`, groups[0])
		s.turn(p)
		s.exec(`UPDATE billing_accounts SET group_id = $1 WHERE customer_id = 'cus_b'`, groups[1])
		s.exec(`UPDATE billing_accounts SET group_id = $1 WHERE customer_id = 'cus_a'`, groups[0])
		s.same("meters", s.strings(`SELECT customer_id || ' ' || value FROM meters`), "cus_a 1")
		if !strings.Contains(s.log.String(), "another customer's") {
			t.Errorf("the log: %s", s.log)
		}
	})
}

// The worker asks by itself, and with the switch on it does not.
func TestTheWorkerPolls(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.use("cus_a", "1", false)
		before := s.up.State().Requests
		stop := s.run(WorkerOptions{Poll: time.Minute, KillSwitch: true})
		time.Sleep(time.Hour)
		stop()
		if got := s.up.State().Requests - before; got != 0 {
			t.Errorf("%d requests with the switch on", got)
		}
		stop = s.run(WorkerOptions{Poll: time.Minute})
		time.Sleep(10*time.Minute + time.Second)
		stop()
		if got := s.up.State().Requests - before; got != 11 { // ten turns, one of them with a sweep
			t.Errorf("%d requests", got)
		}
		if got := s.spend("cus_a", "2000-01"); got != "1.00" {
			t.Errorf("spend: %s", got)
		}
		for range 1200 {
			s.use("cus_a", "0.01", false)
		}
		stop = s.run(WorkerOptions{Poll: time.Minute})
		time.Sleep(time.Minute + time.Second) // one tick is enough for them
		stop()
		if got := s.spend("cus_a", "2000-01"); got != "13.00" {
			t.Errorf("spend: %s", got)
		}
	})
}

// P8: what is below the limit by the smallest amount there is has not reached it.
func TestBudgetsAreExact(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		budget := func() Budget {
			t.Helper()
			b, err := s.Budget(context.Background(), BudgetRequest{CustomerID: "cus_a"})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		if b := budget(); b.Period != "2000-01" || b.Spend != "0.00" || *b.Remaining != "100.00" || *b.Limit != "100.00" || *b.LimitVersion != 1 || b.AsOf != nil || b.Reached {
			t.Errorf("%+v", b)
		}
		s.use("cus_a", "99.999999999999", false)
		s.turn(p)
		if b := budget(); b.Spend != "99.999999999999" || *b.Remaining != "0.000000000001" || b.Reached || len(b.Thresholds) != 1 || b.Thresholds[0].Percent != 80 || b.AsOf == nil {
			t.Errorf("%+v", b)
		}
		s.use("cus_a", "0.000000000001", false) // the upstream lets it through as well
		time.Sleep(time.Second)
		s.turn(p)
		if b := budget(); b.Spend != "100.00" || *b.Remaining != "0.00" || !b.Reached || len(b.Thresholds) != 2 || !b.Thresholds[1].CrossedAt.Equal(time.Now()) {
			t.Errorf("%+v", b)
		}
		s.clock.Store(time.Now().UnixNano())
		key := s.strings(`SELECT key_id FROM model_keys`)[0]
		s.outside(func() error {
			if _, err := s.up.Use(modelgatetest.Used{KeyID: key, Model: "m1", Cost: "0.01"}); err == nil {
				t.Error("the upstream goes on")
			}
			return nil
		})
		s.at(2000, 2, 1, 0, 0)
		if b := budget(); b.Period != "2000-02" || b.Spend != "0.00" || b.Reached || len(b.Thresholds) != 0 || b.PeriodStart.Format(time.RFC3339) != "2000-02-01T00:00:00+09:00" {
			t.Errorf("%+v", b)
		}
	})
	db := storetest.New(t)
	storetest.Customer(t, db, "cus_a", store.TierPaid)
	s := &Service{DB: db}
	if _, err := s.Budget(t.Context(), BudgetRequest{CustomerID: "cus_a"}); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("without billing: %v", err)
	}
}

// Requests are forgotten when nobody asks for their time any more; what they came
// to stays.
func TestOldRequestsAreForgotten(t *testing.T) {
	meterScene(t, []string{"cus_a"}, func(t *testing.T, s *scene, p *poller) {
		s.use("cus_a", "1", false)
		open := s.use("cus_a", "2", true)
		s.turn(p)
		forget := func(want int) {
			t.Helper()
			if _, err := metering.Forget(context.Background(), s.DB); err != nil {
				t.Fatal(err)
			}
			if got := s.strings(`SELECT request_id FROM usage_requests`); len(got) != want {
				t.Errorf("%d are known, want %d", len(got), want)
			}
		}
		time.Sleep(40 * 24 * time.Hour)
		forget(2) // nobody has read since
		s.turn(p)
		forget(2) // the day is not closed
		s.use("cus_a", "3", false, open)
		time.Sleep(6 * time.Hour)
		s.turn(p)
		time.Sleep(time.Hour)
		s.turn(p)
		forget(0)
		s.turn(p)
		if got := s.spend("cus_a", "2000-01"); got != "4.00" || len(s.finals()) != 1 {
			t.Errorf("spend %s, closed %q", got, s.finals())
		}
		s.exec(`DELETE FROM meters`) // the rest of this file's sums are of what is known
		s.exec(`DROP TRIGGER usage_records_keep`)
		s.exec(`DELETE FROM usage_records`)
		s.exec(`DROP TRIGGER journal_lines_keep`)
		s.exec(`DELETE FROM journal_lines`)
		s.exec(`DROP TRIGGER journal_entries_keep`)
		s.exec(`DELETE FROM journal_entries`)
	})
}

// Pages that are not what was asked for are refused whole.
func TestPagesThatWereNotAskedFor(t *testing.T) {
	row := func(id, group, at string) string {
		return fmt.Sprintf(`{"id":%q,"group_id":%q,"key_id":"key_1","model":"m1","cost":"1","currency":"USD","finalized":true,"created_at":%q}`, id, group, at)
	}
	for code, rows := range map[string]string{
		"other_group":      row("mrq_1", "grp_9", "2000-01-01T00:00:01Z"),
		"other_time":       row("mrq_1", "grp_1", "1990-01-01T00:00:01Z"),
		"not_in_order":     row("mrq_1", "grp_1", "2000-01-01T00:00:01Z") + "," + row("mrq_2", "grp_1", "2000-01-01T00:00:00Z"),
		"malformed_answer": strings.Replace(row("mrq_1", "grp_1", "2000-01-01T00:00:00Z"), `"1"`, `"-1"`, 1),
	} {
		t.Run(code, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
				b.signUp("cus_a")
				b.step()
				time.Sleep(time.Minute)
				rows := strings.ReplaceAll(rows, "grp_1", b.group("cus_a"))
				defer b.answers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"data":[%s],"next_cursor":null}`, rows)
				}))()
				if _, err := newPoller(b.engine, 0).turn(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := b.strings(`SELECT request_id FROM usage_requests`); len(got) != 0 || !strings.Contains(b.log.String(), "code="+code) {
					t.Errorf("%q, and the log: %s", got, b.log)
				}
			})
		})
	}
}
