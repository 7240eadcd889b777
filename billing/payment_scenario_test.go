package billing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/billing/stripe"
	"jpintel/store"
)

// The scenarios of payments: what the payment provider tells, in whatever order,
// and what the customer has in the end.

const (
	topUpsPath      = `/top-ups$`
	adjustmentsPath = `/adjustments$`
)

// A payment is credited once, however often it is told of, and by whom: the
// intent, and the session of the same payment.
func TestS45APaymentIsCreditedOnce(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		first := s.tell(paidEvent(2500))
		if first.status != EventFulfilled || first.operationID == "" || first.paymentID == "" || first.customerID != "cus_a" {
			t.Errorf("%+v", first)
		}
		s.tell(paidEvent(2500), paidEvent(2500))
		s.settle()
		session := intentTold("evt_session", 11, stripe.Payment{SessionRef: "cs_1", CustomerID: "cus_a", AmountMinor: 2500})
		if again := s.tell(session, paidEvent(2500)); again.status != EventFulfilled || again.operationID != "" {
			t.Errorf("%+v", again)
		}
		s.settle()
		s.wantCredit("cus_a", "25.00")
		o := s.want("cus_a", TopUpCredit, Succeeded)
		p := s.payment("pi_1")
		if want := "top-up:cus_a:evt_paid:" + p.EntryID; *o.Key != want || s.wire(o).Executions != 1 || p.SessionRef != "cs_1" {
			t.Errorf("%s, want %s, %+v, session %s", *o.Key, want, s.wire(o), p.SessionRef)
		}
		events := s.strings(`SELECT data || ' ' || correlation_id FROM outbox_events WHERE event_type = 'credit.adjustment_posted'`)
		want := `{"customer_id":"cus_a","adjustment_id":"` + p.EntryID + `","kind":"top_up","currency":"USD","amount":"25.00","balance_after":"25.00","source_id":"pi_1"} ` + o.OperationID
		if len(events) != 1 || events[0] != want {
			t.Errorf("events %q, want %s", events, want)
		}
	})
}

// S26: the wallet is too small for a top-up, then it is funded. Whether the
// upstream keeps its refusal under the key or not, there is one top-up in the end.
func TestS26ATopUpWithAnEmptyWallet(t *testing.T) {
	for name, c := range map[string]struct {
		rules    []modelgatetest.Rule
		versions int64
	}{
		"the refusal is kept":     {nil, 2},
		"the refusal is not kept": {[]modelgatetest.Rule{fault("POST", topUpsPath, modelgatetest.AtBeforeExecute, "status:402", 1)}, 1},
		"the key is forgotten":    {[]modelgatetest.Rule{fault("POST", topUpsPath, modelgatetest.AtAfterCommit, "lose_idem_record", 1)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{WalletBalance: "24.99"}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				s.rules(c.rules...)
				s.tell(paidEvent(2500))
				s.work(time.Hour)
				s.probe()
				s.work(time.Hour)
				if o := s.want("cus_a", TopUpCredit, FailedRetryable); deref(o.Hold) != holdWallet || s.wire(o).WireRequests != 1 {
					t.Errorf("hold %s, %+v", deref(o.Hold), s.wire(o))
				}
				s.outside(func() error { s.up.Fund("100.00"); return nil })
				s.probe()
				s.settle()
				s.wantCredit("cus_a", "25.00")
				o := s.want("cus_a", TopUpCredit, Succeeded)
				if o.IntentVersion != c.versions || len(s.up.State().Transactions) != 1 {
					t.Errorf("version %d, %+v", o.IntentVersion, s.up.State().Transactions)
				}
				if first := s.strings(`SELECT COALESCE(last_error_code, '') FROM partner_operations WHERE action = 'top_up_credit' AND intent_version = 1`)[0]; c.versions > 1 && first != codeWalletRefusal {
					t.Errorf("the first ended with %s", first)
				}
			})
		})
	}
}

// S26, and the wallet is emptied and filled several times: each version of the
// top-up is sent twice at most.
func TestS26AWalletThatIsEmptiedAgain(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "0.00"}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.work(time.Hour)
		for range 2 {
			s.outside(func() error { s.up.Fund("30.00"); return nil })
			s.probe()
			s.outside(func() error { s.up.Fund("-30.00"); return nil }) // somebody else was faster
			s.work(time.Hour)
		}
		s.outside(func() error { s.up.Fund("30.00"); return nil })
		s.probe()
		s.settle()
		s.wantCredit("cus_a", "25.00")
		if o := s.want("cus_a", TopUpCredit, Succeeded); o.IntentVersion != 4 {
			t.Errorf("version %d", o.IntentVersion)
		}
	})
}

// S26, and the upstream says that the wallet is large enough, and refuses for ever:
// that ends too.
func TestS26AWalletThatNeverPays(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "1.00"}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		for range 3 * maxRefusals {
			s.exec(`UPDATE partner_operations SET hold_reason = NULL`) // as the probe would
			s.work(time.Hour)
		}
		s.wantHeld("pi_1", codeWalletRefusal)
		o := s.want("cus_a", TopUpCredit, FailedFinal)
		if s.tell(paidEvent(2500)); o.IntentVersion != maxRefusals {
			t.Errorf("version %d", o.IntentVersion)
		}
		s.outside(func() error { s.up.Fund("100.00"); return nil })
		s.resolve(o, resolveNewVersion)
		s.settle()
		s.wantCredit("cus_a", "25.00")
	})
}

// S48: the payment comes before the customer, and before the customer's group. It
// is credited once, when they are there.
func TestS48APaymentBeforeItsCustomer(t *testing.T) {
	t.Run("no customer", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			if a := s.tell(paidEvent(2500)); a.status != EventHeld || !strings.HasPrefix(a.reason, holdStranger) {
				t.Errorf("%+v", a)
			}
			s.wantHeld("pi_1", holdStranger)
			s.signUp("cus_a")
			s.wantHeld("pi_1", holdUnready)
			s.ready("cus_a", "100.00")
			s.wantCredit("cus_a", "25.00")
			if p := s.payment("pi_1"); p.State != stripe.Paid || p.Hold != "" || s.moves("cus_a") != "25.00" {
				t.Errorf("%+v, %s", p, s.moves("cus_a"))
			}
		})
	})
	t.Run("no group", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.signUp("cus_a")
			s.stepOnce()
			s.tell(paidEvent(2500), paidEvent(2500))
			s.wantHeld("pi_1", holdUnready)
			s.ready("cus_a", "100.00")
			s.tell(paidEvent(2500))
			s.settle()
			s.wantCredit("cus_a", "25.00")
		})
	})
	t.Run("many payments, and a refund and a dispute among them", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.tell(paidEvent(2500), refunded("evt_r", "re_1", 11, 500, "succeeded"), disputed("evt_d", 12, 2500, "needs_response"))
			s.tell(intentTold("evt_2", 10, stripe.Payment{Ref: "pi_2", CustomerID: "cus_a", AmountMinor: 1000}))
			s.signUp("cus_a")
			s.settle()
			s.wantStatus("cus_a", Frozen)
			s.tell(disputed("evt_w", 13, 2500, "won"))
			s.settle()
			s.wantStatus("cus_a", Ready)
			s.wantCredit("cus_a", "30.00")
		})
	})
}

// S49: a session that is complete and not paid is credited when it is paid, or
// never.
func TestS49PaidLater(t *testing.T) {
	session := func(id string, second int, state stripe.PaymentState) stripe.Event {
		return intentTold(id, second, stripe.Payment{SessionRef: "cs_1", CustomerID: "cus_a", AmountMinor: 2500, State: state})
	}
	for name, c := range map[string]struct {
		events []stripe.Event
		want   string
	}{
		"succeeded":              {[]stripe.Event{session("evt_1", 1, stripe.Awaiting), session("evt_2", 9, stripe.Paid)}, "25.00"},
		"succeeded, out of turn": {[]stripe.Event{session("evt_2", 9, stripe.Paid), session("evt_1", 1, stripe.Awaiting)}, "25.00"},
		"a late word":            {[]stripe.Event{session("evt_2", 9, stripe.Paid), session("evt_1", 10, stripe.Awaiting), session("evt_3", 11, stripe.Failed)}, "25.00"},
		"failed":                 {[]stripe.Event{session("evt_1", 1, stripe.Awaiting), session("evt_2", 9, stripe.Failed)}, "0.00"},
		"failed, out of turn":    {[]stripe.Event{session("evt_2", 9, stripe.Failed), session("evt_1", 1, stripe.Awaiting)}, "0.00"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				for _, e := range c.events {
					if s.settle(); e.Payment.State != stripe.Paid && s.tell(e).operationID != "" {
						t.Error("credited before it was paid")
					}
					s.tell(e)
				}
				s.settle()
				s.wantCredit("cus_a", c.want)
			})
		})
	}
}

// S50: it was refunded before we hear that it was paid.
func TestS50ARefundBeforeItsPayment(t *testing.T) {
	for name, e := range map[string]stripe.Event{
		"by intent":      refunded("evt_r", "re_1", 11, 2500, "succeeded"),
		"by charge only": {ID: "evt_r", Created: eventsBegin.Add(11 * time.Second), Refund: &stripe.Refund{Ref: "re_1", ChargeRef: "ch_1", AmountMinor: 2500, Currency: "USD", Status: "succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				if a := s.tell(e); a.status != EventFulfilled || a.reason == "" || a.paymentID != "" {
					t.Errorf("%+v", a)
				}
				if a := s.tell(paidEvent(2500)); a.status != EventFulfilled || a.operationID != "" {
					t.Errorf("%+v", a)
				}
				s.settle()
				s.wantCredit("cus_a", "0.00")
				if s.moves("cus_a") != "" {
					t.Errorf("moved %s", s.moves("cus_a"))
				}
			})
		})
	}
}

// A refund in part before the payment: the rest is topped up; and where the rest
// is less than the upstream takes, all of it, less the refund.
func TestS50ARefundInPartBeforeItsPayment(t *testing.T) {
	for refund, want := range map[int64][2]string{1500: {"10.00", "10.00"}, 2450: {"25.00, -24.50", "0.50"}} {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			s.tell(refunded("evt_r", "re_1", 11, refund, "succeeded"), paidEvent(2500))
			s.settle()
			if s.wantCredit("cus_a", want[1]); s.moves("cus_a") != want[0] {
				t.Errorf("moved %s, want %s", s.moves("cus_a"), want[0])
			}
		})
	}
}

// S51: two partial refunds, told twice and in the wrong order.
func TestS51PartialRefunds(t *testing.T) {
	one, two := refunded("evt_1", "re_1", 11, 300, "succeeded"), refunded("evt_2", "re_2", 12, 200, "succeeded")
	pending := refunded("evt_0", "re_1", 11, 300, "pending")
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(two, paidEvent(2500), two)
		s.step()
		s.tell(one, pending, two, one)
		s.settle()
		s.wantCredit("cus_a", "20.00")
		s.tell(one, two, paidEvent(2500))
		s.settle()
		if s.wantCredit("cus_a", "20.00"); s.moves("cus_a") != "23.00, -3.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		s.tell(refunded("evt_3", "re_2", 20, 200, "failed"))
		s.settle()
		if s.wantCredit("cus_a", "22.00"); s.moves("cus_a") != "23.00, -3.00, 2.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
	})
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.settle()
		s.tell(two, one, two, one)
		s.settle()
		if s.wantCredit("cus_a", "20.00"); s.moves("cus_a") != "25.00, -2.00, -3.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		o := s.want("cus_a", DebitCredit, Succeeded)
		if *o.Key != "debit:cus_a:pi_1:2" || o.CustomerID != "cus_a" {
			t.Errorf("%s", *o.Key)
		}
		kinds := strings.Join(s.strings(`SELECT kind || ' ' || memo FROM journal_entries ORDER BY entry_seq`), ", ")
		sources := strings.Join(s.strings(`SELECT data ->> '$.source_id' FROM outbox_events WHERE event_type = 'credit.adjustment_posted' ORDER BY seq`), ", ")
		if kinds != "top_up pi_1, refund pi_1, refund pi_1" || sources != "pi_1, pi_1:1, pi_1:2" {
			t.Errorf("%s; %s", kinds, sources)
		}
	})
}

// What a charge says of its refunds is held against those that are known, and
// moves nothing.
func TestAChargeThatSaysMoreThanItsRefunds(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.Log = s.engine.Log
		charge := eventAt("evt_c", 12)
		charge.Charge = &stripe.Charge{Ref: "ch_1", PaymentRef: "pi_1", AmountMinor: 2500, RefundedMinor: 500, Currency: "USD"}
		s.tell(paidEvent(2500), refunded("evt_1", "re_1", 11, 300, "succeeded"), charge)
		if !strings.Contains(s.log.String(), "payment_refunds_missing") {
			t.Error("nobody was told")
		}
		before := strings.Count(s.log.String(), "payment_refunds_missing")
		s.tell(refunded("evt_2", "re_2", 12, 200, "succeeded"), charge)
		if strings.Count(s.log.String(), "payment_refunds_missing") != before {
			t.Error("all refunds are known")
		}
		s.settle()
		s.wantCredit("cus_a", "20.00")
	})
}

// S53: refunded in full and lost in a dispute: taken back once.
func TestS53ARefundAndALostDispute(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.settle()
		s.tell(disputed("evt_d", 11, 2500, "needs_response"), refunded("evt_r", "re_1", 12, 2500, "succeeded"))
		s.settle()
		s.tell(withdrawn("evt_w", 13, 2500, "under_review"), disputed("evt_l", 14, 2500, "lost"))
		s.settle()
		if s.wantCredit("cus_a", "0.00"); s.moves("cus_a") != "25.00, -25.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		s.wantStatus("cus_a", Frozen) // a lost one is the operator's to forgive
	})
}

// S54: a dispute freezes at once, what was withdrawn is taken back, and all is as
// it was when it is won. An inquiry does nothing.
func TestS54Disputes(t *testing.T) {
	t.Run("won", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			s.tell(paidEvent(2500))
			s.settle()
			s.tell(disputed("evt_d", 11, 2500, "needs_response"))
			s.settle()
			s.wantStatus("cus_a", Frozen)
			if s.wantCredit("cus_a", "25.00"); *s.operation("cus_a", FreezeGroup).Key != "freeze:cus_a:dp_1" || s.groupStatus("cus_a") != "frozen" {
				t.Errorf("%s, group %s", *s.operation("cus_a", FreezeGroup).Key, s.groupStatus("cus_a"))
			}
			s.tell(withdrawn("evt_w", 12, 2500, "needs_response"))
			s.settle()
			s.wantCredit("cus_a", "0.00")
			s.tell(disputed("evt_won", 20, 2500, "won"), reinstated("evt_back", 21, 2500, "won"))
			s.settle()
			s.wantStatus("cus_a", Ready)
			if s.wantCredit("cus_a", "25.00"); s.moves("cus_a") != "25.00, -25.00, 25.00" || s.groupStatus("cus_a") != "active" {
				t.Errorf("moved %s, group %s", s.moves("cus_a"), s.groupStatus("cus_a"))
			}
			kinds := strings.Join(s.strings(`SELECT kind FROM journal_entries ORDER BY entry_seq`), " ")
			if kinds != "top_up dispute correction" {
				t.Error(kinds)
			}
		})
	})
	t.Run("won, out of turn", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			s.tell(disputed("evt_won", 20, 2500, "won"), withdrawn("evt_w", 12, 2500, "needs_response"), paidEvent(2500), disputed("evt_d", 11, 2500, "needs_response"))
			s.settle()
			s.wantStatus("cus_a", Ready)
			s.wantCredit("cus_a", "25.00")
		})
	})
	t.Run("inquiry", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			s.tell(paidEvent(2500), disputed("evt_1", 11, 2500, "warning_needs_response"), disputed("evt_2", 12, 2500, "warning_under_review"))
			s.settle()
			s.tell(disputed("evt_3", 13, 2500, "warning_closed"))
			s.settle()
			s.wantStatus("cus_a", Ready)
			if s.wantCredit("cus_a", "25.00"); s.moves("cus_a") != "25.00" || len(s.strings(`SELECT 1 FROM partner_operations WHERE action IN ('freeze_group', 'thaw_group')`)) != 0 {
				t.Errorf("moved %s", s.moves("cus_a"))
			}
		})
	})
	t.Run("won, while another one is not", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			other := disputed("evt_o", 12, 100, "under_review")
			other.Dispute.Ref = "dp_2"
			s.tell(paidEvent(2500), disputed("evt_d", 11, 2500, "needs_response"), other, disputed("evt_won", 20, 2500, "won"))
			s.settle()
			s.wantStatus("cus_a", Frozen)
			other.Created, other.Dispute.Status = other.Created.Add(time.Minute), "won"
			s.tell(other)
			s.settle()
			s.wantStatus("cus_a", Ready)
			s.wantCredit("cus_a", "25.00")
		})
	})
	t.Run("won, while the operator has stopped it too", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			if _, err := s.Freeze(context.Background(), SpendRequest{Key: "k", CustomerID: "cus_a", CauseRef: "abuse"}); err != nil {
				t.Fatal(err)
			}
			s.tell(disputed("evt_d", 11, 2500, "needs_response"), paidEvent(2500))
			s.settle()
			s.tell(disputed("evt_won", 20, 2500, "won"))
			s.settle()
			s.wantStatus("cus_a", Frozen)
			if _, err := s.Thaw(context.Background(), SpendRequest{Key: "k", CustomerID: "cus_a", CauseRef: "abuse"}); err != nil {
				t.Fatal(err)
			}
			s.settle()
			s.wantStatus("cus_a", Ready)
			s.wantCredit("cus_a", "25.00")
		})
	})
}

// The operator thaws in spite of a dispute, and gives another reason: that stands,
// and a later dispute is judged on its own.
func TestTheOperatorsThawStands(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500), disputed("evt_d", 11, 2500, "needs_response"))
		s.settle()
		if _, err := s.Thaw(context.Background(), SpendRequest{Key: "k", CustomerID: "cus_a", CauseRef: "goodwill"}); err != nil {
			t.Fatal(err)
		}
		s.settle()
		s.tell(disputed("evt_d2", 12, 2500, "under_review"))
		s.settle()
		s.wantStatus("cus_a", Ready)
		other := disputed("evt_o", 13, 100, "needs_response")
		other.Dispute.Ref = "dp_2"
		s.tell(other)
		s.settle()
		s.wantStatus("cus_a", Frozen)
		other.Created, other.Dispute.Status = other.Created.Add(time.Minute), "won"
		s.tell(other)
		s.settle()
		s.wantStatus("cus_a", Ready)
		s.wantCredit("cus_a", "25.00")
	})
}

// A group is frozen when its top-up gets there: it is credited when it is thawed,
// whether we knew or not.
func TestATopUpOfAFrozenGroup(t *testing.T) {
	spend := SpendRequest{Key: "k", CustomerID: "cus_a", CauseRef: "abuse"}
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		group := s.up.State().LiveGroups()["cus_a"][0]
		s.stranger("PATCH", "/groups/"+group, "console", `{"status":"frozen"}`)
		s.tell(paidEvent(2500))
		s.settle()
		s.wantHeld("pi_1", "group_frozen")
		if s.tell(paidEvent(2500)).status != EventHeld || s.moves("cus_a") != "25.00 failed_final" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		if _, err := s.Freeze(context.Background(), spend); err != nil {
			t.Fatal(err)
		}
		s.settle()
		s.tell(intentTold("evt_2", 10, stripe.Payment{Ref: "pi_2", CustomerID: "cus_a", AmountMinor: 1000}))
		s.wantHeld("pi_2", holdFrozenGroup)
		if _, err := s.Thaw(context.Background(), spend); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if s.wantCredit("cus_a", "35.00"); s.moves("cus_a") != "25.00 failed_final, 25.00, 10.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
	})
}

// S55: a refund comes while nobody knows what has become of the top-up.
func TestS55ARefundWhileTheTopUpIsUnknown(t *testing.T) {
	for name, at := range map[string]modelgatetest.At{"it was made": modelgatetest.AtAfterCommit, "it was not": modelgatetest.AtBeforeAuth} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				s.rules(fault("POST", topUpsPath, at, "reset", maxSends))
				s.tell(paidEvent(2500))
				s.stepOnce()
				if a := s.tell(refunded("evt_r", "re_1", 11, 500, "succeeded")); a.operationID != "" || a.status != EventFulfilled {
					t.Errorf("%+v", a)
				}
				s.settle()
				if s.wantCredit("cus_a", "20.00"); s.moves("cus_a") != "25.00, -5.00" {
					t.Errorf("moved %s", s.moves("cus_a"))
				}
			})
		})
	}
}

// S56: what is to be taken back is spent. A person decides; the customer is
// stopped, and there is one debit and no more, whatever else is told.
func TestS56TheCreditIsSpent(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.settle()
		s.outside(func() error {
			_, err := s.up.Use(modelgatetest.Used{KeyID: s.up.State().Keys[0].ID, Model: "m1", Cost: "20.00"})
			return err
		})
		s.tell(refunded("evt_r", "re_1", 11, 2500, "succeeded"))
		s.settle()
		s.tell(refunded("evt_r2", "re_1", 12, 2500, "succeeded"), refunded("evt_r", "re_1", 11, 2500, "succeeded"))
		s.settle()
		o := s.want("cus_a", DebitCredit, ReconciliationNeeded)
		if s.wire(o).WireRequests != 1 || o.code() != codeBalanceSpent || s.moves("cus_a") != "25.00, -25.00 reconciliation_needed" || s.groupStatus("cus_a") != "frozen" {
			t.Errorf("%+v, %s, moved %s, group %s", s.wire(o), o.code(), s.moves("cus_a"), s.groupStatus("cus_a"))
		}
		if !strings.Contains(s.log.String(), codeBalanceSpent) {
			t.Error("no alarm")
		}
		s.wantStatus("cus_a", NeedsAttention)
		s.wantCredit("cus_a", "25.00")

		// The operator ends it: nothing is tried again by itself.
		s.resolve(o, resolveFailed)
		s.settle()
		s.tell(refunded("evt_r", "re_1", 11, 2500, "succeeded"))
		s.settle()
		s.wantHeld("pi_1", "resolved_failed")
		if s.wantCredit("cus_a", "25.00"); s.moves("cus_a") != "25.00, -25.00 failed_final" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}

		// Or has it tried again, when there is something to take.
		s.tell(intentTold("evt_2", 20, stripe.Payment{Ref: "pi_2", CustomerID: "cus_a", AmountMinor: 3000}))
		if _, err := s.Thaw(context.Background(), SpendRequest{Key: "k", CustomerID: "cus_a", CauseRef: "debit.pi_1.1"}); err != nil {
			t.Fatal(err)
		}
		s.settle()
		s.resolve(o, resolveNewVersion)
		if p := s.payment("pi_1"); p.State != stripe.Paid {
			t.Errorf("%s %s", p.State, p.Hold)
		}
		s.settle()
		if s.wantCredit("cus_a", "30.00"); s.moves("cus_a") != "25.00, -25.00 failed_final, 30.00, -25.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		s.wantStatus("cus_a", Ready)
	})
}

// S56, and an earlier send of the debit is unknown: it is looked for once, and
// then the refusal counts.
func TestS56TheCreditIsSpentInDoubt(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.settle()
		s.outside(func() error {
			_, err := s.up.Use(modelgatetest.Used{KeyID: s.up.State().Keys[0].ID, Model: "m1", Cost: "20.00"})
			return err
		})
		s.rules(fault("POST", adjustmentsPath, modelgatetest.AtBeforeAuth, "reset", 1))
		s.tell(refunded("evt_r", "re_1", 11, 2500, "succeeded"))
		s.settle()
		if o := s.want("cus_a", DebitCredit, ReconciliationNeeded); s.wire(o).WireRequests != 3 || o.code() != codeBalanceSpent {
			t.Errorf("%+v, %s", s.wire(o), o.code())
		}
	})
}

// S62: what is not certain, or not the wallet's currency, is not credited.
func TestS62Currencies(t *testing.T) {
	for _, c := range []struct {
		currency string
		minor    int64
		wallet   string
		want     string // the credit; else the reason
	}{
		{"EUR", 2500, "USD", holdWrongMoney},
		{"JPY", 5000, "USD", holdWrongMoney},
		{"JPY", 5000, "JPY", "5000"},
		{"KWD", 1005, "KWD", holdCurrency},
		{"KWD", 1010, "KWD", "1.010"},
		{"xyz", 2500, "USD", holdCurrency},
		{"", 2500, "USD", holdCurrency},
	} {
		t.Run(c.currency+" "+number(c.minor)+" to "+c.wallet, func(t *testing.T) {
			scenario(t, modelgatetest.Options{Currency: c.wallet}, func(t *testing.T, s *scene) {
				if _, err := s.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "100", Currency: c.wallet, Key: "k"}); err != nil {
					t.Fatal(err)
				}
				s.settle()
				e := paidEvent(c.minor)
				e.Payment.Currency = c.currency
				a := s.tell(e)
				s.settle()
				if _, isReason := holdReasons[c.want]; !isReason {
					s.wantCredit("cus_a", c.want)
					return
				}
				if s.wantHeld("pi_1", c.want); a.status != EventHeld || !strings.HasPrefix(a.reason, c.want+": ") || s.moves("cus_a") != "" {
					t.Errorf("%+v, moved %s", a, s.moves("cus_a"))
				}
			})
		})
	}
}

// S63 and S64: what was paid is what counts, exactly; too little is not sent.
func TestS63S64Amounts(t *testing.T) {
	for minor, want := range map[int64]string{100: "1.00", 10000: "100.00", 10: "", 1: "", 99: ""} {
		t.Run(number(minor), func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				requests := s.up.State().Requests
				a := s.tell(paidEvent(minor))
				s.settle()
				if want != "" {
					s.wantCredit("cus_a", want)
					return
				}
				s.wantHeld("pi_1", holdTooSmall)
				if a.status != EventHeld || s.up.State().Requests != requests {
					t.Errorf("%+v, %d requests", a, s.up.State().Requests-requests)
				}
				if s.tell(refunded("evt_r", "re_1", 11, minor, "succeeded")).status != EventFulfilled {
					t.Error("nothing is left to be held")
				}
			})
		})
	}
}

// S67: all digits, through file, request, journal and event.
func TestS67Exact(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "999999999999999", MinTopUp: "0.000000000001"}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		group := s.up.State().LiveGroups()["cus_a"][0]
		for i, text := range []string{"999999999999.999999999", "0.000000000001"} {
			amount, err := money.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			p := &payment{PaymentID: "pay_" + number(int64(i)), Ref: "pi_" + number(int64(i)), EntryID: ledger.EntryID("S67", number(int64(i))), CustomerID: "cus_a",
				State: paymentHeld, Hold: holdCurrency, PaidAtMS: 1, FirstEventID: "evt"} // what no minor units can say
			if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
				if err := p.save(tx); err != nil {
					return err
				}
				_, _, err := accept(tx, topUpIntent(p, group, amount, "USD", 1))
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		s.work(time.Minute)
		s.wantCredit("cus_a", "999999999999.999999999001")
	})
}

// S05, S13, S15, S28 for what moves credit: lost or broken answers, and one
// movement, with one entry in the journal.
func TestScenariosOfCredit(t *testing.T) {
	for name, c := range map[string]struct {
		at                 modelgatetest.At
		do                 string
		sent, lost, replay int
	}{
		"S04 executed, rolled back, reset": {modelgatetest.AtAfterExecute, "reset", 2, 1, 0},
		"S05 committed, reset":             {modelgatetest.AtAfterCommit, "reset", 2, 0, 1},
		"S13 500 not saved":                {modelgatetest.AtBeforeExecute, "status:500", 2, 0, 0},
		"S15 502, when it was done":        {modelgatetest.AtAfterCommit, "status:502 html", 2, 0, 1},
		"S27 another amount":               {modelgatetest.AtOnResponse, "echo_amount:250.0", 2, 0, 1},
		"S28 truncated":                    {modelgatetest.AtOnResponse, "truncate:20", 2, 0, 1},
		"S28 a number":                     {modelgatetest.AtOnResponse, "number_amount", 1, 0, 0},
	} {
		for action, path := range map[Action]string{TopUpCredit: topUpsPath, DebitCredit: adjustmentsPath} {
			t.Run(name+"/"+string(action), func(t *testing.T) {
				scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
					s.customer("cus_a")
					s.rules(fault("POST", path, c.at, c.do, 1))
					s.tell(paidEvent(2500))
					s.settle()
					s.tell(refunded("evt_r", "re_1", 11, 500, "succeeded"))
					s.settle()
					s.wantCredit("cus_a", "20.00")
					o := s.want("cus_a", action, Succeeded)
					if got := s.wire(o); got.WireRequests != c.sent || got.RolledBack != c.lost || got.Replays != c.replay || len(got.Fingerprints) != 1 {
						t.Errorf("%+v", got)
					}
				})
			})
		}
	}
}

// S11: the upstream has committed, we have read the answer, and die before we can
// write it down.
func TestS11ACrashBeforeTheTopUpIsWrittenDown(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		var o *Operation
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
			if o, err = claim(tx, "boot_before/1", ""); err == nil {
				_, err = o.begin(tx)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if out := s.engine.Client.Send(context.Background(), o.request, time.Now().Add(time.Minute)); out.Answer.TargetID == "" {
			t.Fatalf("%+v", out)
		}
		time.Sleep(2 * leaseTime)
		s.settle()
		s.wantCredit("cus_a", "25.00")
		if got := s.wire(o); got.Executions != 1 || got.Replays != 1 {
			t.Errorf("%+v", got)
		}
		if entries := s.strings(`SELECT entry_id FROM journal_entries`); len(entries) != 1 || entries[0] != s.payment("pi_1").EntryID {
			t.Errorf("%q", entries)
		}
	})
}

// S36: the upstream has forgotten the key when we come back: it is looked for by
// its reference, and not sent again.
func TestS36TheTopUpsKeyHasExpired(t *testing.T) {
	for action, path := range map[Action]string{TopUpCredit: topUpsPath, DebitCredit: adjustmentsPath} {
		t.Run(string(action), func(t *testing.T) {
			scenario(t, modelgatetest.Options{ListLag: time.Minute}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				s.rules(fault("POST", path, modelgatetest.AtAfterCommit, "reset", 1))
				s.tell(paidEvent(2500))
				s.stepOnce()
				if action == DebitCredit {
					s.tell(refunded("evt_r", "re_1", 11, 500, "succeeded"))
					s.stepOnce()
				}
				time.Sleep(7*24*time.Hour + time.Second)
				s.settle()
				o := s.want("cus_a", action, Succeeded)
				if s.wire(o).WireRequests != 1 || len(s.evidence(o)) != 1 {
					t.Errorf("%+v, %q", s.wire(o), s.evidence(o))
				}
			})
		})
	}
}

// S36, and it had not happened: nobody can know that for sure any more, so that a
// person has to say so. Then it is done once.
func TestS36ATopUpThatNeverHappened(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.rules(fault("POST", topUpsPath, modelgatetest.AtBeforeAuth, "reset", 1))
		s.tell(paidEvent(2500))
		s.stepOnce()
		time.Sleep(7*24*time.Hour + time.Second)
		s.settle()
		o := s.want("cus_a", TopUpCredit, FailedFinal)
		s.wantHeld("pi_1", "not_executed")
		if s.tell(paidEvent(2500), refunded("evt_r", "re_1", 11, 500, "succeeded")).status != EventHeld || s.moves("cus_a") != "25.00 failed_final" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
		s.resolve(o, resolveNewVersion)
		s.settle()
		s.wantCredit("cus_a", "20.00")
		second := s.want("cus_a", TopUpCredit, Succeeded)
		if s.moves("cus_a") != "25.00 failed_final, 20.00" || *second.Key != *o.Key+":2" || deref(second.ApprovedBy) != "op" {
			t.Errorf("moved %s, %s", s.moves("cus_a"), *second.Key)
		}
		if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "op", Note: "again", Outcome: resolveNewVersion}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("again: %v", err)
		}
	})
}

// S36 for a debit that was not found: it may have been made all the same, so that
// another refund does not begin a debit of both.
func TestS36ADebitThatWasNotFound(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(paidEvent(2500))
		s.settle()
		s.rules(fault("POST", adjustmentsPath, modelgatetest.AtBeforeAuth, "reset", 1))
		s.tell(refunded("evt_r", "re_1", 11, 500, "succeeded"))
		s.stepOnce()
		time.Sleep(7*24*time.Hour + time.Second)
		s.settle()
		o := s.want("cus_a", DebitCredit, FailedFinal)
		s.tell(refunded("evt_r2", "re_2", 12, 300, "succeeded"))
		s.settle()
		s.wantHeld("pi_1", codeNotExecuted)
		s.wantCredit("cus_a", "25.00")
		s.resolve(o, resolveNewVersion)
		s.settle()
		if s.wantCredit("cus_a", "17.00"); s.moves("cus_a") != "25.00, -5.00 failed_final, -8.00" {
			t.Errorf("moved %s", s.moves("cus_a"))
		}
	})
}

// unanswered sends a top-up as often as it is sent; the last one is done.
func (s *scene) unanswered() *Operation {
	s.t.Helper()
	s.customer("cus_a")
	s.rules(fault("POST", topUpsPath, modelgatetest.AtBeforeAuth, "reset", maxSends-1), fault("POST", topUpsPath, modelgatetest.AtAfterCommit, "reset", 1))
	s.tell(paidEvent(2500))
	for s.operation("cus_a", TopUpCredit).AttemptCount < maxSends {
		s.stepOnce()
		time.Sleep(time.Second)
	}
	s.dueNow()
	return s.operation("cus_a", TopUpCredit)
}

// S73: transactions show up a minute late. That is no sign that there are none.
func TestS73TransactionsAreLate(t *testing.T) {
	scenario(t, modelgatetest.Options{ListLag: 45 * time.Second, AuditLag: 45 * time.Second}, func(t *testing.T, s *scene) {
		o := s.unanswered()
		s.settle()
		s.wantCredit("cus_a", "25.00")
		if got := s.evidence(s.operation("cus_a", TopUpCredit)); s.wire(o).WireRequests != maxSends || len(got) != 1 || !strings.HasPrefix(got[0], "transactions succeeded txn_") {
			t.Errorf("%+v, %q", s.wire(o), got)
		}
	})
}

// S27 and S74 for top-ups: what is there twice, or with another amount, is for a
// person to judge.
func TestS74TransactionsThatDoNotFit(t *testing.T) {
	byHand := func(s *scene, amount string) {
		s.stranger("POST", "/groups/"+s.up.State().LiveGroups()["cus_a"][0]+"/top-ups", "console",
			`{"amount":"`+amount+`","currency":"USD","external_ref":"`+ledger.EntryID(providerStripe, "pi_1", "topup")+`"}`)
	}
	t.Run("twice", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			o := s.unanswered()
			byHand(s, "25.00")
			s.settle()
			if o := s.want("cus_a", TopUpCredit, ReconciliationNeeded); o.code() != string(verdictDuplicate) {
				t.Errorf("%s", o.code())
			}
			ours := s.up.State().Transactions[0].ID
			if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "op", Note: "the first", Outcome: resolveSucceeded, TargetID: ours}); err != nil {
				t.Fatal(err)
			}
			s.strange[creditGroup(o)] = []string{"25.00"}
			if entries := s.strings(`SELECT operation_id FROM journal_entries`); len(entries) != 1 || entries[0] != o.OperationID {
				t.Errorf("%q", entries)
			}
		})
	})
	t.Run("otherwise", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			byHand(s, "26.00")
			s.rules(fault("POST", topUpsPath, modelgatetest.AtBeforeAuth, "reset", maxSends))
			s.tell(paidEvent(2500))
			s.settle()
			o := s.want("cus_a", TopUpCredit, ReconciliationNeeded)
			if o.code() != string(verdictMismatch) {
				t.Errorf("%s", o.code())
			}
			s.strange[creditGroup(o)] = []string{"26.00"}
		})
	})
}

// A session that is paid and does not name its intent waits for it; whichever is
// told first, it is one payment.
func TestASessionBeforeItsIntent(t *testing.T) {
	session := eventAt("evt_s", 9)
	session.Payment = &stripe.Payment{SessionRef: "cs_1", CustomerID: "cus_a", State: stripe.Paid, AmountMinor: 2500, Currency: "USD"}
	linked := intentTold("evt_l", 11, stripe.Payment{SessionRef: "cs_1", CustomerID: "cus_a", AmountMinor: 2500})
	intent := intentTold("evt_i", 10, stripe.Payment{AmountMinor: 2500})
	for name, events := range map[string][]stripe.Event{
		"the session, then the intent": {session, intent, linked},
		"the intent, then the session": {intent, session, linked},
		"the link alone":               {session, linked},
		"all the way round":            {linked, intent, session},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.customer("cus_a")
				for _, e := range events {
					s.tell(e)
					s.settle()
				}
				s.wantCredit("cus_a", "25.00")
				if p := s.payment("pi_1"); p.SessionRef != "cs_1" || p.State != stripe.Paid || len(s.strings(`SELECT payment_id FROM payments`)) != 1 {
					t.Errorf("%+v", p)
				}
			})
		})
	}
	t.Run("without an amount", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			silent := eventAt("evt_s", 9)
			silent.Payment = &stripe.Payment{Ref: "pi_1", SessionRef: "cs_1", CustomerID: "cus_a", State: stripe.Paid}
			s.tell(silent)
			s.wantHeld("pi_1", holdCurrency)
			s.tell(intent, silent)
			s.settle()
			s.wantCredit("cus_a", "25.00")
		})
	})
	t.Run("alone", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.customer("cus_a")
			if a := s.tell(session, session); a.status != EventHeld || !strings.HasPrefix(a.reason, holdNoIntent) {
				t.Errorf("%+v", a)
			}
		})
	})
}

// What cannot be credited, and what contradicts itself.
func TestPaymentsThatAreHeld(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		s.tell(intentTold("evt_1", 1, stripe.Payment{AmountMinor: 2500}))
		s.wantHeld("pi_1", holdNobody)
		s.tell(paidEvent(2500))
		s.settle()
		s.wantCredit("cus_a", "25.00")

		foreign := refunded("evt_r", "re_1", 11, 500, "succeeded")
		foreign.Refund.Currency = "EUR"
		s.tell(foreign)
		s.wantHeld("pi_1", holdReversal)
		foreign.ID, foreign.Created, foreign.Refund.Status = "evt_r2", foreign.Created.Add(time.Minute), "failed"
		if s.tell(foreign).status != EventFulfilled {
			t.Error("it holds nothing any more")
		}

		if a := s.tell(intentTold("evt_more", 12, stripe.Payment{AmountMinor: 9900})); a.status != EventHeld || !strings.HasPrefix(a.reason, "amount_contradiction: ") {
			t.Errorf("%+v", a)
		}
		s.tell(refunded("evt_r3", "re_3", 20, 500, "succeeded")) // is still taken back
		s.settle()
		s.wantCredit("cus_a", "20.00")
		if a := s.tell(intentTold("evt_2", 1, stripe.Payment{Ref: "pi_2", CustomerID: "cus_a", AmountMinor: 2500}),
			intentTold("evt_3", 2, stripe.Payment{Ref: "pi_2", CustomerID: "cus_b", AmountMinor: 2500})); a.customerID != "cus_a" || !strings.HasPrefix(a.reason, "customer_contradiction: ") {
			t.Errorf("%+v", a)
		}
		s.settle()
		s.wantCredit("cus_a", "45.00") // it had begun
		free := intentTold("evt_4", 1, stripe.Payment{Ref: "pi_3", State: stripe.Free})
		if a := s.tell(free, stripe.Event{ID: "evt_5", Type: "invoice.paid"}); a.status != EventIgnored || !strings.Contains(a.reason, "invoice.paid") {
			t.Errorf("%+v", a)
		}
		unknown := refunded("evt_6", "re_6", 1, 1, "teleported")
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
			_, err := s.applyPayment(context.Background(), tx, &unknown)
			return err
		}); store.CodeOf(err) != store.CodeInvalid || !strings.Contains(err.Error(), "teleported") {
			t.Errorf("%v", err)
		}
	})
}

// A file that was restored from a backup does not know of a top-up, and the event
// comes again: it is looked for before it is sent.
func TestATopUpAfterARestore(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.customer("cus_a")
		group := s.up.State().LiveGroups()["cus_a"][0]
		s.strangers["lost"] = true // by the file
		s.stranger("POST", "/groups/"+group+"/top-ups", "lost", `{"amount":"25.00","currency":"USD","external_ref":"`+ledger.EntryID(providerStripe, "pi_1", "topup")+`"}`)
		time.Sleep(time.Hour)
		if err := s.DB.Write(context.Background(), store.SetBillingRecovered); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.tell(paidEvent(2500))
		s.settle()
		s.wantCredit("cus_a", "25.00")
		if o := s.want("cus_a", TopUpCredit, Succeeded); s.wire(o).WireRequests != 0 || len(s.up.State().Transactions) != 1 {
			t.Errorf("%+v", s.wire(o))
		}
		s.tell(intentTold("evt_2", 20, stripe.Payment{Ref: "pi_2", CustomerID: "cus_a", AmountMinor: 1000})) // a new one
		s.settle()
		s.wantCredit("cus_a", "35.00")
	})
}

// S79 with payments: whatever is told, and whatever breaks at the upstream, the
// invariants hold (I3 and I5 above all), and every payment comes to an end: it is
// credited, or there is a reason, or an operation for a person to look at.
func TestS79RandomPaymentsAndFaults(t *testing.T) {
	rounds := 10
	if testing.Short() || race {
		rounds = 3
	}
	for seed := range rounds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, modelgatetest.Options{ListLag: 45 * time.Second, AuditLag: 30 * time.Second, WalletBalance: "60.00"}, func(t *testing.T, s *scene) {
				random := rand.New(rand.NewPCG(uint64(seed), 3))
				s.customer("cus_a")
				for range 120 {
					s.randomPaymentStep(random)
				}
				s.outside(func() error { s.up.ClearFaults(); s.up.Fund("1000.00"); return nil })
				s.calm()
				s.judgeQueue()
				s.calm()
				for _, open := range s.strings(`SELECT operation_id || ' ' || status FROM partner_operations WHERE status NOT IN ('succeeded', 'failed_final', 'reconciliation_needed')`) {
					t.Errorf("open: %s", open)
				}
			})
		})
	}
}

// judgeQueue is the operator, who looks at what the upstream has and says so.
func (s *scene) judgeQueue() {
	s.t.Helper()
	for _, id := range s.strings(`SELECT operation_id FROM partner_operations WHERE status = 'reconciliation_needed'`) {
		o, err := GetOperation(s.DB.Reader(context.Background()), id)
		if err != nil {
			s.t.Fatal(err)
		}
		r := ResolveRequest{OperationID: id, Who: "op", Note: "looked", Outcome: resolveFailed}
		for _, t := range s.up.State().Transactions {
			if o.movesCredit() && t.ExternalRef == o.externalRef {
				r.Outcome, r.TargetID = resolveSucceeded, t.ID
			}
		}
		if _, err := s.Resolve(context.Background(), r); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *scene) randomPaymentStep(random *rand.Rand) {
	s.t.Helper()
	switch random.IntN(12) {
	case 0:
		s.crash(random.IntN(2) == 0)
	case 1:
		time.Sleep(time.Duration(random.IntN(600)) * time.Second)
	case 2:
		time.Sleep(time.Duration(random.IntN(36)) * time.Hour)
	case 3:
		s.outside(func() error { s.up.Fund("5.00"); return nil })
		s.probe()
	case 4:
		stroke := strokes[random.IntN(len(strokes))]
		s.rules(modelgatetest.Rule{Match: modelgatetest.Match{PathRE: creditPaths}, At: stroke.at, Do: stroke.do, Times: 1 + random.IntN(3)})
	case 5, 6, 7:
		s.tell(randomEvent(random))
	default:
		s.stepOnce()
	}
}

// randomEvent is any word about one of five payments.
func randomEvent(random *rand.Rand) stripe.Event {
	n, second := random.IntN(5), random.IntN(100)
	e := eventAt(fmt.Sprintf("evt_%d_%d", n, second), second)
	pi, minor := fmt.Sprint("pi_", n), int64(1000+100*n)
	switch random.IntN(4) {
	case 0:
		states := []string{"pending", "succeeded", "failed"}
		e.Refund = &stripe.Refund{Ref: fmt.Sprintf("re_%d_%d", n, second%3), PaymentRef: pi, AmountMinor: minor / 4, Currency: "USD", Status: states[random.IntN(3)]}
	case 1:
		states := []string{"warning_closed", "needs_response", "under_review", "won", "won", "lost"}
		e.Dispute = &stripe.Dispute{Ref: fmt.Sprint("dp_", n), PaymentRef: pi, AmountMinor: minor, Currency: "USD", Status: states[random.IntN(6)],
			Withdrawn: random.IntN(3) == 0, Reinstated: random.IntN(3) == 0}
	default:
		e.Payment = &stripe.Payment{Ref: pi, CustomerID: "cus_a", State: stripe.Paid, AmountMinor: minor, Currency: "USD"}
	}
	return e
}
