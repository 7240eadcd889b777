package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/store"
)

// file runs fn on the server's file, as a command beside it does.
func (s *testServer) file(fn func(*store.Tx) error) {
	s.t.Helper()
	config, err := readConfig(s.getenv)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx := context.Background()
	if err := (&app{config: config}).withDB(ctx, func(db *store.DB) error { return db.Write(ctx, fn) }); err != nil {
		s.t.Fatal(err)
	}
}

// post posts entries; ids are given by their order.
func (s *testServer) post(entries ...ledger.Entry) {
	s.t.Helper()
	s.file(func(tx *store.Tx) error {
		for _, e := range entries {
			if _, err := ledger.Post(tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func movement(t *testing.T, id, customer string, kind ledger.Kind, c money.Currency, text, other string) ledger.Entry {
	t.Helper()
	amount, err := money.ParseSigned(text)
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Entry{EntryID: id, Kind: kind, CustomerID: customer, PaymentID: "pay_" + customer, SourceID: "pi_" + customer, Currency: c, CorrelationID: "cor_" + id, OccurredAt: time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC),
		Memo:  "=of " + customer,
		Lines: []ledger.Line{{Account: ledger.Credit(customer), Amount: amount}, {Account: other, Amount: amount.Neg()}}}
}

// ours is an entry about a customer that does not touch its credit.
func ours(t *testing.T, id, customer string) ledger.Entry {
	t.Helper()
	e := movement(t, id, customer, ledger.Correction, "USD", "1.00", ledger.StripeClearing)
	e.Lines[0].Account = ledger.StripeClearing
	return e
}

// A customer sees its own entries and balance, whatever it asks for; S64 and S67:
// with all their digits.
func TestTheJournalThroughTheAPI(t *testing.T) {
	s := newServer(t)
	alice, bob := s.customer("cus_alice", "paid"), s.customer("cus_bob", "free")
	if got := alice.call("GET", "/v1/ledger", nil, 200).body; got != `{"data":[],"next_cursor":null}`+"\n" {
		t.Errorf("an empty journal: %s", got)
	}
	if got := alice.call("GET", "/v1/balance", nil, 200).body; !strings.HasPrefix(got, `{"balances":[],"as_of":"`) {
		t.Errorf("no balance: %s", got)
	}
	s.post(
		movement(t, "a1", "cus_alice", ledger.TopUp, "USD", "999999999999.999999999", ledger.StripeClearing),
		movement(t, "b1", "cus_bob", ledger.TopUp, "USD", "77.70", ledger.StripeClearing),
		movement(t, "a2", "cus_alice", ledger.TopUp, "USD", "0.000000000001", ledger.StripeClearing),
		movement(t, "b2", "cus_bob", ledger.Refund, "USD", "-7.7", ledger.Refunds),
		movement(t, "a3", "cus_alice", ledger.TopUp, "JPY", "500", ledger.StripeClearing),
		movement(t, "a4", "cus_alice", ledger.Usage, "JPY", "-0.5", ledger.UsageRevenue),
		ours(t, "wallet", "cus_alice"),
	)
	balances := func(c *testClient) string { return fmt.Sprint(get[ledger.Balances](c, "/v1/balance").Data) }
	if got := balances(alice); got != "[{JPY 499.5} {USD 999999999999.999999999001}]" {
		t.Errorf("Alice has %s", got)
	}
	if got := balances(bob); got != "[{USD 70.00}]" {
		t.Errorf("Bob has %s", got)
	}
	var seen []string
	page := get[store.Page[ledger.Movement]](alice, "/v1/ledger?limit=3")
	for _, m := range append(page.Data, get[store.Page[ledger.Movement]](alice, "/v1/ledger?limit=3&cursor="+*page.NextCursor).Data...) {
		seen = append(seen, fmt.Sprint(m.EntryID, " ", m.Kind, " ", m.Amount, " ", m.Currency, " ", m.BalanceAfter, " ", *m.SourceID))
	}
	if want := []string{"a4 usage -0.5 JPY 499.5 pi_cus_alice", "a3 top_up 500 JPY 500 pi_cus_alice",
		"a2 top_up 0.000000000001 USD 999999999999.999999999001 pi_cus_alice", "a1 top_up 999999999999.999999999 USD 999999999999.999999999 pi_cus_alice"}; !slices.Equal(seen, want) {
		t.Errorf("%q", seen)
	}
	stranger := get[store.Page[ledger.Movement]](alice, "/v1/ledger?limit=1") // its cursor is a number of the journal
	for _, path := range []string{"/v1/ledger", "/v1/ledger?format=csv", "/v1/balance", "/v1/ledger?cursor=" + *stranger.NextCursor} {
		body := bob.call("GET", path, nil, 200).body
		for _, secret := range []string{"alice", "999999", "a1", "a2", "a3", "a4", "wallet", "JPY"} {
			if strings.Contains(body, secret) {
				t.Errorf("%s shows Bob %s: %s", path, secret, body)
			}
		}
	}
	bob.refused("GET", "/v1/ledger?customer=cus_alice", nil, 400, "customer: unknown parameter")
	bob.refused("GET", "/v1/balance?customer_id=cus_alice", nil, 400, "customer_id: unknown parameter")
	bob.refused("GET", "/v1/ledger?format=xml", nil, 400, "format: want json or csv")
	bob.refused("GET", "/v1/ledger?limit=101", nil, 400, "limit: want 1 to 100")
	bob.refused("GET", "/v1/ledger?format=csv&limit=3", nil, 400, "limit, cursor: CSV has no pages, it is the whole journal")
	bob.call("GET", "/v1/admin/ledger", nil, 401)

	all := get[store.Page[ledger.Posted]](s.admin, "/v1/admin/ledger")
	own := get[store.Page[ledger.Posted]](s.admin, "/v1/admin/ledger?customer=cus_bob&account=reversal:refund&payment=pay_cus_bob")
	if len(all.Data) != 7 || len(own.Data) != 1 || own.Data[0].EntryID != "b2" || own.Data[0].Lines[1].Amount != "7.70" || own.Data[0].Lines[0].Raw != "-7.7" {
		t.Errorf("%+v, %+v", all, own)
	}
}

// The form of an answer is what is asked for, and CSV is a download.
func TestTheJournalAsCSV(t *testing.T) {
	s := newServer(t)
	alice := s.customer("cus_alice", "free")
	s.post(movement(t, "=a1", "cus_alice", ledger.TopUp, "USD", "25.00", ledger.StripeClearing), movement(t, "a2", "cus_alice", ledger.Refund, "USD", "-5.00", ledger.Refunds))
	for accept, isCSV := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/csv": true, "text/csv;q=0, */*": false, "text/csv; q=0.5": true, "text/html, text/csv": true,
		"application/json, text/csv": false, "text/csv, application/json": true, ";;": false,
	} {
		for format, wanted := range map[string]bool{"": isCSV, "?format=json": false, "?format=csv": true} {
			a := alice.with("Accept", accept).call("GET", "/v1/ledger"+format, nil, 200)
			if got := strings.HasPrefix(a.header.Get("Content-Type"), "text/csv"); got != wanted {
				t.Errorf("Accept %q, %q: %s", accept, format, a.header.Get("Content-Type"))
			}
		}
	}
	a := alice.call("GET", "/v1/ledger?format=csv", nil, 200)
	rows, err := csv.NewReader(strings.NewReader(a.body)).ReadAll()
	if err != nil || len(rows) != 3 || strings.Join(rows[2][:6], " ") != "'=a1 top_up 25.00 USD 25.00 pi_cus_alice" || rows[1][2] != "-5.00" ||
		a.header.Get("Content-Disposition") != `attachment; filename="ledger.csv"` || strings.Count(a.body, "\r\n") != 3 {
		t.Errorf("%v %q (%v)", a.header, a.body, err)
	}
}

// An answer that fails half-way is cut off, not ended.
func TestAStreamThatFailsIsCutOff(t *testing.T) {
	s := newServer(t)
	alice := s.customer("cus_alice", "free")
	var entries []ledger.Entry
	for i := range 700 {
		entries = append(entries, movement(t, fmt.Sprint("a", i), "cus_alice", ledger.Usage, "USD", "-0.01", ledger.UsageRevenue))
	}
	s.post(entries...)
	spoil := func(entry string) {
		s.file(func(tx *store.Tx) error {
			if _, err := tx.Exec(`DROP TRIGGER IF EXISTS journal_lines_fixed`); err != nil {
				return err
			}
			_, err := tx.Exec(`UPDATE journal_lines SET amount = '1.2.3' WHERE entry_id = $1`, entry)
			return err
		})
	}
	spoil("a0") // the last one that is written
	if a, err := alice.send("GET", "/v1/ledger?format=csv", nil); err == nil {
		t.Errorf("%d bytes as if they were all", len(a.body))
	}
	eventually(t, func() bool { return len(s.log.entries("request_failed")) == 1 })
	spoil("a699") // the first one
	alice.refused("GET", "/v1/ledger?format=csv", nil, 500, "internal error")
	if a := alice.call("GET", "/v1/customer", nil, 200); a.header.Get("X-Request-Id") == "" {
		t.Error("the server has gone")
	}
}

// What the commands show, and what verify ends with.
func TestTheLedgerCommands(t *testing.T) {
	s := newServer(t)
	s.customer("cus_alice", "paid")
	s.customer("cus_bob", "paid")
	s.post(movement(t, "a1", "cus_alice", ledger.TopUp, "USD", "25.00", ledger.StripeClearing), movement(t, "b1", "cus_bob", ledger.TopUp, "JPY", "500", ledger.StripeClearing),
		movement(t, "a2", "cus_alice", ledger.Refund, "USD", "-5", ledger.Refunds))
	shown := s.command("ledger", "show", "--customer", "cus_alice")
	if lines := strings.Split(strings.TrimSpace(shown), "\n"); len(lines) != 5 || strings.Join(strings.Fields(lines[1]), " ") != "a2 2026-05-14T09:00:00+09:00 refund cust:cus_alice:credit -5.00 USD 20.00 pay_cus_alice -" {
		t.Errorf("%s", shown)
	}
	if got := s.command("ledger", "show", "--payment", "pay_cus_bob", "--json"); strings.Count(got, "entry_id") != 1+strings.Count(got, "reverses_entry_id") || !strings.Contains(got, `"amount":"500"`) {
		t.Errorf("%s", got)
	}
	if rows, err := csv.NewReader(strings.NewReader(s.command("ledger", "export", "--format", "csv"))).ReadAll(); err != nil || len(rows) != 7 || rows[6][9] != "5.00" || rows[5][10] != "-5" || rows[1][16] != "'=of cus_alice" {
		t.Errorf("%q (%v)", rows, err)
	}
	if got := s.command("ledger", "export", "--format", "json", "--account", "reversal:refund"); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, `{"entry_id":"a2",`) {
		t.Errorf("%s", got)
	}
	if got := s.command("ledger", "verify"); strings.Join(strings.Fields(got), " ") != "ACCOUNT CURRENCY SUM cust:cus_alice:credit USD 20.00 cust:cus_bob:credit JPY 500 psp:stripe:clearing JPY -500 psp:stripe:clearing USD -25.00 reversal:refund USD 5.00" {
		t.Errorf("%s", got)
	}
	s.file(func(tx *store.Tx) error {
		if _, err := tx.Exec(`DROP TRIGGER journal_entries_fixed`); err != nil {
			return err
		}
		_, err := tx.Exec(`UPDATE journal_entries SET balance_after = '21.00' WHERE entry_id = 'a2'`)
		return err
	})
	for _, form := range []string{"", "--json"} {
		var out, words bytes.Buffer
		err := run(t.Context(), strings.Fields("ledger verify "+form), s.getenv, strings.NewReader(""), &out, &words)
		if said := out.String() + words.String(); !errors.Is(err, errSilent) || exitCode(err, &words) != exitFailed || !strings.Contains(said, "balance_after") || !strings.Contains(said, "the balance after it is 21.00, and the account's sum 20.00") {
			t.Errorf("%v: %s %s", err, &out, &words)
		}
	}
}

// With --upstream the partner API's books are held against ours.
func TestLedgerVerifyAsksTheUpstream(t *testing.T) {
	up := modelgatetest.New(modelgatetest.Options{}).Start(t)
	s := newServer(t, "MODELGATE_BASE_URL="+up.BaseURL(), "MODELGATE_API_KEY="+modelgatetest.DevToken)
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	group := *billed(t, s, "ready").GroupID
	if got := s.command("ledger", "verify", "--upstream", "--json"); !strings.Contains(got, `"groups":1,"unsettled":[]`) {
		t.Errorf("%s", got)
	}
	req, err := http.NewRequest("POST", up.BaseURL()+"/groups/"+group+"/top-ups", strings.NewReader(`{"amount":"25.00","currency":"USD","external_ref":"x","memo":"by hand"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + modelgatetest.DevToken}, "Idempotency-Key": {"k"}, "Content-Type": {"application/json"}}
	if a, err := s.http("").Do(req); err != nil || a.StatusCode != 201 {
		t.Fatalf("%v %v", a, err)
	}
	var out, words bytes.Buffer
	err = run(t.Context(), []string{"ledger", "verify", "--upstream"}, s.getenv, strings.NewReader(""), &out, &words)
	if want := "upstream customer cus_a: group " + group + ": 25.00 USD are booked upstream, 0.00 here"; !errors.Is(err, errSilent) || !strings.Contains(words.String(), want) {
		t.Errorf("%v: %s", err, &words)
	}
}
