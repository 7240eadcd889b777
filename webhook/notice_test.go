package webhook

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// reachable adds a paid customer with an address.
func reachable(t testing.TB, s *Service, id string) string {
	t.Helper()
	write(t, s.DB, func(tx *store.Tx) error {
		_, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: id, Tier: store.TierPaid, Email: id + "@customer.example"})
		return err
	})
	return id
}

// notices are the queued mails: kind, customer, subscription and recipient.
func notices(t testing.TB, s *Service) []string {
	t.Helper()
	return lines(t, s.DB, `SELECT kind, customer_id, subscription_id, recipient FROM mails ORDER BY mail_seq`)
}

// Each reason for which the service disables makes one mail, which says in both
// languages what has happened and what to do.
func TestEachReasonIsTold(t *testing.T) {
	for reason, c := range map[Reason]struct {
		prepare func(*finisher, *work)
		result  Result
		en, ja  string
	}{
		ReasonStreak:             {nil, failed(404), "Ten deliveries in a row were refused", "10 回続きました"},
		ReasonGone:               {nil, failed(410), "answered 410 Gone", "410 Gone"},
		ReasonCostCap:            {func(_ *finisher, w *work) { w.capped = true }, Result{}, "the delivery attempts of a day", "1 日あたりの配信試行回数の上限"},
		ReasonDeadLetterOverflow: {func(f *finisher, _ *work) { f.deadLimit, f.schedule = 1, nil }, failed(500), "Too many deliveries were given up", "断念された配信が上限"},
		ReasonFailing:            {func(f *finisher, _ *work) { f.failLimit = time.Hour }, failed(500), "nothing but failures", "すべての配信が失敗しました"},
	} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				s.DB.Location = time.FixedZone("JST", 9*60*60)
				reachable(t, s, "cus_a")
				sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "https://93.184.215.14:8443/private/path?token=t0ken"})
				f := newTestFinisher(s, nil)
				woken := 0
				f.notices = Notices{Brand: "Acme", PublicURL: "https://hooks.example.jp/", Wake: func() { woken++ }}
				for range 12 {
					w := attempted(t, s, sub.SubscriptionID, 0)
					if c.prepare != nil {
						c.prepare(f, w)
					}
					c.result.StartedAt = time.Now()
					if err := f.commit([]finished{{w, c.result}}); err != nil {
						t.Fatal(err)
					}
					<-f.committed
					if number(t, s.DB, `SELECT COUNT(*) FROM webhook_subscriptions WHERE disabled_reason IS NOT NULL`) == 1 {
						break
					}
					time.Sleep(10 * time.Minute)
				}
				if got := reasons(t, s); got[0] != string(reason) {
					t.Fatalf("disabled for %q", got)
				}
				if got := notices(t, s); !slices.Equal(got, []string{"subscription_disabled cus_a " + sub.SubscriptionID + " cus_a@customer.example"}) || woken != 1 {
					t.Errorf("queued %q, woken %d times", got, woken)
				}
				if n := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events WHERE event_type = 'webhook.subscription_disabled'`); n != 1 {
					t.Errorf("%d events", n)
				}
				mail := lines(t, s.DB, `SELECT subject || char(10) || body FROM mails`)[0]
				at := lines(t, s.DB, `SELECT json_extract(data, '$.disabled_at') FROM outbox_events WHERE event_type = 'webhook.subscription_disabled'`)[0]
				for _, want := range []string{
					"[Acme] Webhook subscription disabled / Webhook 購読の停止\n", c.en, c.ja, string(reason), sub.SubscriptionID, at,
					"Endpoint:     https://93.184.215.14:8443\n", "送信先:     https://93.184.215.14:8443\n",
					"POST https://hooks.example.jp/v1/webhooks/subscriptions/" + sub.SubscriptionID + "/enable\n", "What to do: ", "対応方法: ",
				} {
					if !strings.Contains(mail, want) {
						t.Errorf("no %q in\n%s", want, mail)
					}
				}
				for _, secret := range []string{"private", "t0ken", sub.SigningSecret, "cus_a", "<no value>", "{{"} {
					if strings.Contains(mail, secret) {
						t.Errorf("%q is in\n%s", secret, mail)
					}
				}
			})
		})
	}
}

// What the owner, or the operator for the owner, has done is told to nobody.
func TestWhatOwnersKnowIsNotTold(t *testing.T) {
	s := newService(t)
	reachable(t, s, "cus_a")
	which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"opt-out", func() error { _, err := s.StopAll(t.Context(), OptOutRequest{"cus_a"}); return err }},
		{"end of the opt-out", func() error { _, err := s.EndOptOut(t.Context(), OptOutRequest{"cus_a"}); return err }},
		{"tier", func() error {
			return s.DB.Write(t.Context(), func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierFree) })
		}},
		{"tier and back", func() error {
			return s.DB.Write(t.Context(), func(tx *store.Tx) error { return SetTier(tx, "cus_a", store.TierPaid) })
		}},
		{"pause", func() error { _, err := s.Disable(t.Context(), which); return err }},
		{"enable", func() error { _, err := s.Enable(t.Context(), which); return err }},
		{"delete", func() error { _, err := s.Unsubscribe(t.Context(), which); return err }},
	} {
		if err := c.change(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := notices(t, s); len(got) != 0 {
			t.Errorf("%s: queued %q", c.name, got)
		}
	}
}

// A disable that is undone tells nobody: the mail is in its transaction.
func TestNoMailWithoutItsDisable(t *testing.T) {
	s := newService(t)
	reachable(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	w := attempted(t, s, sub.SubscriptionID, 0)
	exec(t, s.DB, `CREATE TRIGGER broken BEFORE INSERT ON outbox_events BEGIN SELECT RAISE(ABORT, 'boom'); END`)
	f := newTestFinisher(s, nil)
	if err := f.commit([]finished{{w, failed(410)}}); err == nil {
		t.Error("committed")
	}
	if got, told := reasons(t, s), notices(t, s); got[0] != "-" || len(told) != 0 {
		t.Errorf("disabled for %q, queued %q", got, told)
	}
}

// Without an address there is a mail to nobody, which the sender logs; without
// a public address the links are paths.
func TestANoticeWithoutAddresses(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	if err := newTestFinisher(s, nil).commit([]finished{{attempted(t, s, sub.SubscriptionID, 0), failed(410)}}); err != nil {
		t.Fatal(err)
	}
	if got := notices(t, s); !slices.Equal(got, []string{"subscription_disabled cus_a " + sub.SubscriptionID + " -"}) {
		t.Errorf("queued %q", got)
	}
	if body := lines(t, s.DB, `SELECT body FROM mails`)[0]; !strings.Contains(body, "POST /v1/webhooks/test/"+sub.SubscriptionID+"\n") || !strings.HasSuffix(body, "\n-- \nJpintel\n") {
		t.Errorf("body\n%s", body)
	}
}

// Finished mails go with the deliveries' retention.
func TestRetentionDeletesMails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		reachable(t, s, "cus_a")
		sub := noticed{"sub_1", "cus_a", publicURL}
		write(t, s.DB, func(tx *store.Tx) error {
			for range retainRows + 2 {
				if err := (Notices{}).disabled(tx, sub, ReasonGone); err != nil {
					return err
				}
			}
			_, err := tx.Exec(`UPDATE mails SET state = 'sent', next_attempt_at_ms = NULL, finished_at_ms = $1 WHERE mail_seq > 1`, tx.NowMS())
			return err
		})
		r := &retention{db: s.DB, log: newTestFinisher(s, nil).log, deliveries: 30 * day, events: 90 * day}
		for _, want := range []int64{retainRows + 2, 1} {
			time.Sleep(20 * day)
			retainAll(t, r)
			if n := number(t, s.DB, `SELECT COUNT(*) FROM mails`); n != want {
				t.Errorf("%d are left, want %d", n, want)
			}
		}
	})
}
