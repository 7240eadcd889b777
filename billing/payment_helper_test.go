package billing

import (
	"cmp"
	"context"
	"math/big"
	"slices"
	"strings"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/billing/stripe"
	"jpintel/store"
)

// eventsBegin is when the payment provider's events of these tests begin.
var eventsBegin = time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)

// eventAt is an event that the provider made so many seconds after the first.
func eventAt(id string, second int) stripe.Event {
	return stripe.Event{ID: id, Created: eventsBegin.Add(time.Duration(second) * time.Second), Livemode: true}
}

// intentTold is payment_intent.succeeded, or another word about an intent.
func intentTold(id string, second int, p stripe.Payment) stripe.Event {
	e := eventAt(id, second)
	p.Ref, p.Currency = cmp.Or(p.Ref, "pi_1"), cmp.Or(p.Currency, "USD")
	p.State = cmp.Or(p.State, stripe.Paid)
	e.Payment = &p
	return e
}

// paidEvent is a payment of cus_a's that has succeeded.
func paidEvent(minor int64) stripe.Event {
	return intentTold("evt_paid", 10, stripe.Payment{CustomerID: "cus_a", ChargeRef: "ch_1", AmountMinor: minor})
}

func refunded(id, ref string, second int, minor int64, status string) stripe.Event {
	e := eventAt(id, second)
	e.Refund = &stripe.Refund{Ref: ref, PaymentRef: "pi_1", ChargeRef: "ch_1", AmountMinor: minor, Currency: "USD", Status: status}
	return e
}

func disputed(id string, second int, minor int64, status string) stripe.Event {
	e := eventAt(id, second)
	e.Dispute = &stripe.Dispute{Ref: "dp_1", PaymentRef: "pi_1", ChargeRef: "ch_1", AmountMinor: minor, Currency: "USD", Status: status}
	return e
}

func withdrawn(id string, second int, minor int64, status string) stripe.Event {
	e := disputed(id, second, minor, status)
	e.Dispute.Withdrawn = true
	return e
}

func reinstated(id string, second int, minor int64, status string) stripe.Event {
	e := disputed(id, second, minor, status)
	e.Dispute.Reinstated = true
	return e
}

// tell applies events one after the other, each in a transaction of its own, and
// returns what came of the last.
func (s *scene) tell(events ...stripe.Event) (last applied) {
	s.t.Helper()
	for _, e := range events {
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
			last, err = s.applyPayment(context.Background(), tx, &e)
			return err
		}); err != nil {
			s.t.Fatalf("%s: %v", e.ID, err)
		}
	}
	return last
}

func (s *scene) payment(ref string) *payment {
	s.t.Helper()
	p, err := findPayment(s.DB.Reader(context.Background()), byRef, ref)
	if err != nil || p == nil {
		s.t.Fatalf("payment %s: %v, %v", ref, p, err)
	}
	return p
}

func (s *scene) wantHeld(ref, reason string) {
	s.t.Helper()
	if p := s.payment(ref); p.State != paymentHeld || p.Hold != reason {
		s.t.Errorf("payment %s is %s (%s), want it held for %s", ref, p.State, p.Hold, reason)
	}
}

// moves are the amounts of a customer's operations that move credit, in order,
// with their states where they have not succeeded.
func (s *scene) moves(customer string) string {
	s.t.Helper()
	return strings.Join(s.strings(`
		SELECT amount || CASE status WHEN 'succeeded' THEN '' ELSE ' ' || status END FROM partner_operations
		WHERE customer_id = $1 AND action IN ('top_up_credit', 'debit_credit') ORDER BY operation_seq`, customer), ", ")
}

// wantCredit fails the test unless the customer has this credit: upstream, in the
// journal, and in the last event.
func (s *scene) wantCredit(customer, want string) {
	s.t.Helper()
	account, err := getAccount(s.DB.Reader(context.Background()), customer)
	if err != nil || account == nil || account.GroupID == "" {
		s.t.Fatalf("the account of %s: %v (%v)", customer, account, err)
	}
	if got := s.up.State().Credited()[account.GroupID]; rat(got.String()).Cmp(rat(want)) != 0 {
		s.t.Errorf("%s has %s upstream, want %s: %s", customer, got, want, s.moves(customer))
	}
	balance, err := ledger.Balance(s.DB.Reader(context.Background()), ledger.Credit(customer), account.Currency)
	if err != nil || balance.Text(account.Currency) != want {
		s.t.Errorf("%s has %s in the journal (%v), want %s", customer, balance.Text(account.Currency), err, want)
	}
	told := s.strings(`SELECT data ->> '$.balance_after' FROM outbox_events WHERE event_type = 'credit.adjustment_posted' AND customer_id = $1 ORDER BY seq DESC LIMIT 1`, customer)
	if want != "0.00" && len(told) == 0 || len(told) > 0 && told[0] != want {
		s.t.Errorf("%s was told of %q, want %s", customer, told, want)
	}
}

// settle works until nothing is open.
func (s *scene) settle() {
	s.t.Helper()
	s.work(48 * time.Hour)
}

// customer signs one up and works until it is ready.
func (s *scene) customer(id string) {
	s.t.Helper()
	s.signUp(id)
	s.ready(id, "100.00")
}

func (s *scene) groupStatus(customer string) string {
	s.t.Helper()
	state := s.up.State()
	for _, g := range state.Groups {
		if live := state.LiveGroups()[customer]; len(live) == 1 && g.ID == live[0] {
			return g.Status
		}
	}
	s.t.Fatalf("%s has no group", customer)
	return ""
}

func rat(text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic(text + " is no number")
	}
	return r
}

// creditHolds is I3: what the upstream has moved for a group is what the
// customer's payments add up to. Of one that waits, or whose operation is open or
// in the queue, it is what has succeeded so far.
func (s *scene) creditHolds(state modelgatetest.State) {
	s.t.Helper()
	want := map[string]*big.Rat{}
	for group := range state.Credited() {
		want[group] = new(big.Rat)
		for _, amount := range s.strange[group] {
			want[group].Add(want[group], rat(amount))
		}
	}
	for _, row := range s.strings(`
		SELECT a.group_id || ' ' || p.payment_id FROM payments p JOIN billing_accounts a USING (customer_id) WHERE a.group_id IS NOT NULL`) {
		part := strings.Fields(row)
		p, err := findPayment(s.DB.Reader(context.Background()), `payment_id = $1`, part[1])
		if err != nil {
			s.t.Fatal(err)
		}
		sum := s.modelled(p)
		if p.State != stripe.Paid || len(s.movesOf(p, `status NOT IN ('succeeded', 'failed_final')`)) > 0 {
			sum = new(big.Rat)
			for _, amount := range s.movesOf(p, `status = 'succeeded'`) {
				sum.Add(sum, rat(amount))
			}
		} else {
			s.booksHold(p)
		}
		if want[part[0]] == nil {
			want[part[0]] = new(big.Rat)
		}
		want[part[0]].Add(want[part[0]], sum)
	}
	for group, sum := range want {
		if got := state.Credited()[group]; rat(got.String()).Cmp(sum) != 0 {
			s.t.Errorf("I3: group %s was credited with %s, want %s", group, got, sum.FloatString(12))
		}
	}
}

// booksHold is I5 of a payment that has come to rest: what was paid is on the
// provider's account, and what was taken back on those of refunds and disputes.
func (s *scene) booksHold(p *payment) {
	s.t.Helper()
	minor := func(kind string) (sum int64) {
		for _, taken := range s.strings(`SELECT amount_minor FROM payment_reversals WHERE payment_ref = $1 AND effective = 1 AND kind = $2`, p.Ref, kind) {
			sum += rat(taken).Num().Int64()
		}
		return sum
	}
	refunds := min(minor(kindRefund), p.AmountMinor)
	disputes := min(minor(kindDispute), p.AmountMinor-refunds)
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(money.Currency(p.Currency).Digits())), nil)
	for account, want := range map[string]int64{ledger.StripeClearing: -p.AmountMinor, ledger.Refunds: refunds, ledger.Disputes: disputes} {
		sum := new(big.Rat)
		for _, amount := range s.strings(`SELECT amount FROM journal_entries JOIN journal_lines USING (entry_id) WHERE payment_id = $1 AND account = $2`, p.PaymentID, account) {
			sum.Add(sum, rat(amount))
		}
		if sum.Cmp(new(big.Rat).SetFrac(big.NewInt(want), unit)) != 0 {
			s.t.Errorf("I5: payment %s has %s on %s, want %d minor units", p.Ref, sum.FloatString(12), account, want)
		}
	}
}

// modelled is what is left of a payment by the facts in the file.
func (s *scene) modelled(p *payment) *big.Rat {
	s.t.Helper()
	if p.PaidAtMS == 0 {
		return new(big.Rat)
	}
	left := new(big.Rat).SetInt64(p.AmountMinor)
	for _, taken := range s.strings(`SELECT amount_minor FROM payment_reversals WHERE payment_ref = $1 AND effective = 1`, p.Ref) {
		left.Sub(left, rat(taken))
	}
	if left.Sign() < 0 {
		left = new(big.Rat)
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(money.Currency(p.Currency).Digits())), nil)
	return left.Quo(left, new(big.Rat).SetInt(unit))
}

func (s *scene) movesOf(p *payment, condition string) []string {
	s.t.Helper()
	return s.strings(`SELECT amount FROM partner_operations WHERE (action = 'top_up_credit' AND intent = $1 OR action = 'debit_credit' AND intent = $2) AND `+condition, p.EntryID, p.Ref)
}

// wasTold: each entry that moves credit was told of, and each day's usage too.
func (s *scene) wasTold() {
	s.t.Helper()
	for kinds, event := range map[string][2]string{`kind <> 'usage' AND entry_id IN (SELECT entry_id FROM journal_lines WHERE account LIKE 'cust:%')`: {"credit.adjustment_posted", "adjustment_id"}, `kind = 'usage'`: {"usage.finalized", "usage_record_id"}} {
		told := s.strings(`SELECT data ->> $1 FROM outbox_events WHERE event_type = $2 ORDER BY 1`, "$."+event[1], event[0])
		for _, id := range s.strings(`SELECT entry_id FROM journal_entries WHERE ` + kinds) {
			if i, found := slices.BinarySearch(told, id); !found || i+1 < len(told) && told[i+1] == id {
				s.t.Errorf("I5: %s was posted, and told of are %q", id, told)
			}
		}
	}
}

// accounts are the journal's sums by account, in order.
func (s *scene) accounts() []string {
	s.t.Helper()
	sums := map[string]*big.Rat{}
	for _, row := range s.strings(`SELECT l.account || ' ' || l.amount || ' ' || e.currency FROM journal_lines l JOIN journal_entries e USING (entry_id)`) {
		part := strings.Fields(row)
		name := part[0] + " " + part[2]
		if sums[name] == nil {
			sums[name] = new(big.Rat)
		}
		sums[name].Add(sums[name], rat(part[1]))
	}
	var all []string
	for name, sum := range sums {
		if sum.Sign() != 0 {
			all = append(all, name+" "+sum.FloatString(12))
		}
	}
	slices.Sort(all)
	return all
}
