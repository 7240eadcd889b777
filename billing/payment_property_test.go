package billing

import (
	"context"
	"flag"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/stripe"
)

// history is what happens to one payment at the provider: its events in order,
// and what of the payment is left in the end.
type history struct {
	events []stripe.Event
	left   *big.Rat // in minor units
	second int      // of the event made last
	name   string
}

// drawHistory is a payment's random life. Its refs end with its number.
func drawHistory(rt *rapid.T, n int) *history {
	h := &history{name: number(int64(n)), left: new(big.Rat)}
	amount := rapid.Int64Range(100, 20000).Draw(rt, "amount")
	p := stripe.Payment{Ref: "pi_" + h.name, SessionRef: "cs_" + h.name, CustomerID: "cus", AmountMinor: amount, Currency: "USD"}
	if rapid.Bool().Draw(rt, "awaiting") {
		h.tell(rt, func(e *stripe.Event) { e.Payment = inState(p, stripe.Awaiting, "") })
	}
	if rapid.IntRange(0, 9).Draw(rt, "paid") == 0 {
		h.tell(rt, func(e *stripe.Event) { e.Payment = inState(p, stripe.Failed, "") })
		return h
	}
	intent, session := *inState(p, stripe.Paid, "ch_"+h.name), *inState(p, stripe.Paid, "")
	intent.SessionRef = ""
	if rapid.Bool().Draw(rt, "nameless") {
		intent.CustomerID = ""
	}
	if rapid.Bool().Draw(rt, "unlinked session") {
		unlinked := session
		unlinked.Ref = ""
		h.tell(rt, func(e *stripe.Event) { e.Payment = &unlinked })
	}
	h.tell(rt, func(e *stripe.Event) { e.Payment = &intent })
	h.tell(rt, func(e *stripe.Event) { e.Payment = &session })
	taken := new(big.Rat)
	for i := range rapid.IntRange(0, 3).Draw(rt, "refunds") {
		taken.Add(taken, h.refund(rt, i, amount))
	}
	for i := range rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(rt, "disputes") {
		taken.Add(taken, h.dispute(rt, i, amount))
	}
	if h.left.SetInt64(amount).Sub(h.left, taken); h.left.Sign() < 0 {
		h.left.SetInt64(0)
	}
	return h
}

// inState is a payment in a state, with the charge that is named.
func inState(p stripe.Payment, state stripe.PaymentState, charge string) *stripe.Payment {
	p.State, p.ChargeRef = state, charge
	return &p
}

// tell is the next event: in the same second as the one before, or later.
func (h *history) tell(rt *rapid.T, fill func(*stripe.Event)) {
	h.second += rapid.SampledFrom([]int{0, 0, 1, 5, 90000}).Draw(rt, "later")
	e := eventAt(fmt.Sprintf("evt_%s_%d", h.name, len(h.events)), h.second)
	fill(&e)
	h.events = append(h.events, e)
}

// refund is a refund's life; it returns what it takes.
func (h *history) refund(rt *rapid.T, i int, paid int64) *big.Rat {
	amount := rapid.Int64Range(1, paid).Draw(rt, "refunded")
	r := stripe.Refund{Ref: fmt.Sprintf("re_%s_%d", h.name, i), PaymentRef: "pi_" + h.name, ChargeRef: "ch_" + h.name, AmountMinor: amount, Currency: "USD"}
	switch rapid.IntRange(0, 2).Draw(rt, "named by") {
	case 0:
		r.PaymentRef = ""
	case 1:
		r.ChargeRef = ""
	}
	life := rapid.SampledFrom([][]string{{"succeeded"}, {"pending"}, {"pending", "succeeded"}, {"requires_action", "succeeded"}, {"succeeded", "failed"},
		{"pending", "failed"}, {"pending", "canceled"}, {"pending", "succeeded", "failed"}}).Draw(rt, "life")
	for _, status := range life {
		h.tell(rt, func(e *stripe.Event) { e.Refund = new(r); e.Refund.Status = status })
	}
	if rapid.Bool().Draw(rt, "charge told") {
		h.tell(rt, func(e *stripe.Event) {
			e.Charge = &stripe.Charge{Ref: "ch_" + h.name, PaymentRef: "pi_" + h.name, AmountMinor: paid, RefundedMinor: amount, Currency: "USD"}
		})
	}
	if last := life[len(life)-1]; last == "failed" || last == "canceled" {
		return new(big.Rat)
	}
	return new(big.Rat).SetInt64(amount)
}

// dispute is a dispute's life; it returns what it takes. - takes the money, +
// gives it back.
func (h *history) dispute(rt *rapid.T, i int, paid int64) *big.Rat {
	amount := rapid.Int64Range(1, 2*paid).Draw(rt, "disputed") // may differ from the charge's
	d := stripe.Dispute{Ref: fmt.Sprintf("dp_%s_%d", h.name, i), PaymentRef: "pi_" + h.name, ChargeRef: "ch_" + h.name, AmountMinor: amount, Currency: "USD"}
	if rapid.Bool().Draw(rt, "by charge") {
		d.PaymentRef = ""
	}
	life := rapid.SampledFrom([]string{
		"warning_needs_response warning_under_review warning_closed", "warning_needs_response needs_response -needs_response",
		"needs_response", "needs_response -needs_response", "needs_response -needs_response under_review", "-needs_response under_review won +won",
		"needs_response -needs_response under_review won", "needs_response under_review won", "needs_response -under_review lost", "needs_response lost",
		"needs_response -needs_response +under_review",
	}).Draw(rt, "life")
	gone, status := false, ""
	for _, word := range strings.Fields(life) {
		status = strings.TrimLeft(word, "+-")
		gone = word[0] == '-' || gone && word[0] != '+'
		h.tell(rt, func(e *stripe.Event) {
			e.Dispute = new(d)
			e.Dispute.Status, e.Dispute.Withdrawn, e.Dispute.Reinstated = status, word[0] == '-', word[0] == '+'
		})
	}
	if status == "lost" || gone && status != "won" {
		return new(big.Rat).SetInt64(amount)
	}
	return new(big.Rat)
}

// drawDelivery is the same events in any order, some of them twice.
func drawDelivery(rt *rapid.T, events []stripe.Event) []stripe.Event {
	all := slices.Clone(events)
	for range rapid.IntRange(0, 6).Draw(rt, "twice") {
		all = append(all, rapid.SampledFrom(events).Draw(rt, "again"))
	}
	return rapid.Permutation(all).Draw(rt, "order")
}

// renamed is an event as it is told of another customer's payment: the same, but for
// the names.
func renamed(e stripe.Event, customer string) stripe.Event {
	name := func(ref *string) {
		if *ref != "" {
			*ref += "_" + customer
		}
	}
	switch {
	case e.Payment != nil:
		e.Payment = new(*e.Payment)
		name(&e.Payment.Ref)
		name(&e.Payment.SessionRef)
		name(&e.Payment.ChargeRef)
		name(&e.Payment.CustomerID)
	case e.Charge != nil:
		e.Charge = new(*e.Charge)
		name(&e.Charge.Ref)
		name(&e.Charge.PaymentRef)
	case e.Refund != nil:
		e.Refund = new(*e.Refund)
		name(&e.Refund.Ref)
		name(&e.Refund.PaymentRef)
		name(&e.Refund.ChargeRef)
	case e.Dispute != nil:
		e.Dispute = new(*e.Dispute)
		name(&e.Dispute.Ref)
		name(&e.Dispute.PaymentRef)
		name(&e.Dispute.ChargeRef)
	}
	e.ID += "_" + customer
	return e
}

// passingFaults are faults after which the same request is answered in the end.
var passingFaults = []modelgatetest.Rule{
	{At: modelgatetest.AtAccept, Do: "reset"}, {At: modelgatetest.AtBeforeAuth, Do: "status:502 html"}, {At: modelgatetest.AtBeforeAuth, Do: "status:503 retry_after:7"},
	{At: modelgatetest.AtBeforeExecute, Do: "status:500"}, {At: modelgatetest.AtBeforeExecute, Do: "status:402"}, {At: modelgatetest.AtBeforeExecute, Do: "in_progress_for:0s"},
	{At: modelgatetest.AtAfterExecute, Do: "reset"}, {At: modelgatetest.AtAfterCommit, Do: "reset"}, {At: modelgatetest.AtAfterCommit, Do: "status:504 html"},
	{At: modelgatetest.AtMidResponse, Do: "close"}, {At: modelgatetest.AtOnResponse, Do: "truncate:30"}, {At: modelgatetest.AtOnResponse, Do: "echo_amount:3.00"},
	{At: modelgatetest.AtOnResponse, Do: "drop_request_id"}, {At: modelgatetest.AtOnResponse, Do: "stale_read:45s"},
}

// creditPaths are what moves credit, freezes and is looked at; a key whose answer
// is lost would be another story (S70).
const creditPaths = `/(top-ups|adjustments|transactions|audit-events)$|^/groups/[^/]+$`

// Whatever happens to payments, and in whatever order, how often and how late it
// is told, through whatever faults: the customer ends with what is left by exact
// arithmetic, in the journal and upstream, as if it had been told in order.
func TestAnyHistoryConverges(t *testing.T) {
	checks := flag.Lookup("rapid.checks").Value
	defer checks.Set(checks.String())
	histories := "40" // rapid itself takes a fifth in short runs
	if race {
		histories = "5"
	}
	if err := checks.Set(histories); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		var histories []*history
		var events []stripe.Event
		for n := range rapid.IntRange(1, 3).Draw(rt, "payments") {
			histories = append(histories, drawHistory(rt, n))
			events = append(events, histories[n].events...)
		}
		delivered := drawDelivery(rt, events)
		pauses := rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "", "", "step", "step", "settle", "an hour", "fault", "crash", "crash in a request"}), len(delivered), len(delivered)).Draw(rt, "pauses")
		strikes := rapid.SliceOfN(rapid.SampledFrom(passingFaults), len(delivered), len(delivered)).Draw(rt, "faults")
		slices.SortStableFunc(events, func(a, b stripe.Event) int { return a.Created.Compare(b.Created) })
		scenario(t, modelgatetest.Options{ListLag: 30 * time.Second, AuditLag: 30 * time.Second}, func(t *testing.T, s *scene) {
			defer func() {
				if t.Failed() { // it ends here: nothing is left for rapid to shrink
					t.Logf("told: %s", tellings(delivered))
				}
			}()
			s.customer("cus_sorted")
			for _, e := range events {
				s.tell(renamed(e, "sorted"))
				s.settle()
			}
			s.signUp("cus_any")
			for i, e := range delivered {
				switch s.tell(renamed(e, "any")); pauses[i] {
				case "step":
					s.stepOnce()
				case "settle":
					s.calm()
				case "an hour":
					time.Sleep(time.Hour)
				case "crash", "crash in a request":
					s.crash(pauses[i] != "crash")
				case "fault":
					strikes[i].Match.PathRE, strikes[i].Times = creditPaths, 2
					s.rules(strikes[i])
				}
			}
			s.outside(func() error { s.up.ClearFaults(); return nil })
			s.calm()
			for _, customer := range []string{"sorted", "any"} {
				s.forgive("cus_" + customer)
				s.endsWith("cus_"+customer, histories)
			}
		})
	})
}

// calm works until nothing is open and nothing is held.
func (s *scene) calm() {
	s.t.Helper()
	time.Sleep(2 * leaseTime) // what the dead have claimed is free again
	for range 3 {
		s.settle()
		s.probe()
	}
	s.settle()
}

// forgive is the operator, who thaws what is frozen for whatever is not settled:
// what was paid meanwhile is credited then.
func (s *scene) forgive(customer string) {
	s.t.Helper()
	causes, err := frozenFor(s.DB.Reader(context.Background()), customer)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range causes {
		if _, err := s.Thaw(context.Background(), SpendRequest{Key: customer + c.ref, CustomerID: customer, CauseRef: c.ref}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.calm()
}

// endsWith compares a customer's credit with what is left of the payments.
func (s *scene) endsWith(customer string, histories []*history) {
	s.t.Helper()
	cents, all := big.NewRat(1, 100), new(big.Rat)
	for _, h := range histories {
		left := new(big.Rat).Mul(h.left, cents)
		all.Add(all, left)
		have := new(big.Rat)
		p := s.payment("pi_" + h.name + strings.TrimPrefix(customer, "cus"))
		for _, amount := range s.movesOf(p, `status = 'succeeded'`) {
			have.Add(have, rat(amount))
		}
		if have.Cmp(left) != 0 || p.Hold != "" {
			s.t.Errorf("%s has %s of %s, want %s (%s %s)", customer, have.FloatString(2), p.Ref, left.FloatString(2), p.State, p.Hold)
		}
	}
	account, want := ledger.Credit(customer)+" USD ", ""
	if all.Sign() != 0 {
		want = account + all.FloatString(12)
	}
	got := strings.Join(slices.DeleteFunc(s.accounts(), func(line string) bool { return !strings.HasPrefix(line, account) }), "")
	if got != want {
		s.t.Errorf("the journal says %q, want %q", got, want)
	}
	s.wantStatus(customer, Ready)
}

// tellings are events in words.
func tellings(events []stripe.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "\n%s at %d: ", e.ID, e.Created.Unix()-eventsBegin.Unix())
		switch {
		case e.Payment != nil:
			fmt.Fprintf(&b, "%+v", *e.Payment)
		case e.Charge != nil:
			fmt.Fprintf(&b, "%+v", *e.Charge)
		case e.Refund != nil:
			fmt.Fprintf(&b, "%+v", *e.Refund)
		case e.Dispute != nil:
			fmt.Fprintf(&b, "%+v", *e.Dispute)
		}
	}
	return b.String()
}
