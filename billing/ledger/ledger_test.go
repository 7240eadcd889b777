package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"jpintel/billing/ledger"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/store/storetest"
)

func TestPostRefusesWhatDoesNotBalance(t *testing.T) {
	db := checked(t, newBook(t, "cus_a", "cus_b"))
	good := entry(t, "e", ledger.TopUp, "cus_a", "25.00", ledger.StripeClearing)
	for want, change := range map[string]func(*ledger.Entry){
		"entry e: 1 lines: want two or more":                                      func(e *ledger.Entry) { e.Lines = e.Lines[:1] },
		"entry e: the lines add up to 0.01, not to zero":                          func(e *ledger.Entry) { e.Lines[1].Amount = amount(t, "-24.99") },
		"entry e: a line on the account cust:cus_b:credit, which is not customer": func(e *ledger.Entry) { e.Lines[1].Account = ledger.Credit("cus_b") },
		"posting entry e: constraint failed: CHECK constraint failed: account":    func(e *ledger.Entry) { e.Lines[1].Account = "" },
		"posting entry e: constraint failed: FOREIGN KEY":                         func(e *ledger.Entry) { e.OperationID = "op_none" },
		"posting entry e: constraint failed: CHECK constraint failed: length(cur": func(e *ledger.Entry) { e.Currency = "US" },
	} {
		e := good
		e.Lines = slices.Clone(good.Lines)
		change(&e)
		err := db.Write(t.Context(), func(tx *store.Tx) error { _, err := ledger.Post(tx, e); return err })
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	post(t, db, good)
	write(t, db, func(tx *store.Tx) error {
		posted, err := ledger.Post(tx, good)
		if posted {
			t.Error("it is posted twice")
		}
		return err
	})
	for _, other := range []ledger.Entry{entry(t, "e", ledger.TopUp, "cus_a", "25.01", ledger.StripeClearing), entry(t, "e", ledger.TopUp, "cus_a", "25", ledger.Refunds),
		entry(t, "e", ledger.TopUp, "cus_b", "25", ledger.StripeClearing)} {
		err := db.Write(t.Context(), func(tx *store.Tx) error { _, err := ledger.Post(tx, other); return err })
		if err == nil || err.Error() != "posting entry e: it was posted before, with other lines" {
			t.Errorf("%+v: %v", other.Lines, err)
		}
	}
	if r := verify(t, db, nil); r.Entries != 1 || r.Lines != 2 {
		t.Errorf("%+v", r)
	}
}

// S67: an amount of all digits through the file, JSON and CSV.
func TestS67SumsAreExactThroughTheJournal(t *testing.T) {
	db := checked(t, newBook(t, "cus_a"))
	post(t, db, entry(t, "one", ledger.TopUp, "cus_a", "999999999999.999999999", ledger.StripeClearing), entry(t, "two", ledger.TopUp, "cus_a", "0.000000000001", ledger.StripeClearing))
	const want = "999999999999.999999999001"
	sum, err := ledger.Balance(db.Reader(t.Context()), ledger.Credit("cus_a"), "USD")
	if err != nil || sum.Text("USD") != want {
		t.Errorf("%s (%v)", sum, err)
	}
	j := ledger.Journal{DB: db}
	balances, err := j.Balances(t.Context(), ledger.BalanceRequest{CustomerID: "cus_a"})
	if text, _ := json.Marshal(balances.Data); err != nil || string(text) != `[{"currency":"USD","balance":"`+want+`"}]` {
		t.Errorf("%s (%v)", text, err)
	}
	var csv strings.Builder
	if err := j.WriteMovements(t.Context(), &csv, "cus_a"); err != nil || !strings.Contains(csv.String(), ",0.000000000001,USD,"+want+",") {
		t.Errorf("%s (%v)", &csv, err)
	}
}

// The journal is what was posted: balances, pages and every sum, whatever that
// was; and at the end the sqlite3 command's exact decimals agree.
func TestTheJournalIsWhatWasPosted(t *testing.T) {
	db := newBook(t)
	model, runs := map[string]money.Amount{}, 0 // one file for all runs: each has customers of its own
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		customers := []string{fmt.Sprint("cus_a", runs), fmt.Sprint("cus_b", runs)}
		for _, c := range customers {
			storetest.Customer(t, db, c, store.TierPaid)
		}
		posted, entries := map[string]int{}, []ledger.Entry{}
		for i := range rapid.IntRange(1, 12).Draw(rt, "entries") {
			customer := rapid.SampledFrom(customers).Draw(rt, "customer")
			text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,10})(\.[0-9]{1,12})?`).Draw(rt, "amount")
			other := rapid.SampledFrom([]string{ledger.StripeClearing, ledger.Refunds, ledger.UsageRevenue}).Draw(rt, "account")
			e := entry(t, fmt.Sprint("e", runs, "-", i), ledger.Correction, customer, text, other)
			entries = append(entries, e)
			posted[customer]++
			for _, l := range e.Lines {
				var err error
				if model[l.Account], err = model[l.Account].Add(l.Amount); err != nil {
					rt.Fatal(err)
				}
			}
		}
		post(t, db, entries...)
		for _, c := range customers {
			paged(rt, db, c, posted[c], model[ledger.Credit(c)])
		}
	})
	report := verify(t, db, nil)
	if report.FaultCount != 0 || len(report.Accounts) != len(model) {
		t.Fatalf("%+v, want %v", report, model)
	}
	for _, a := range report.Accounts {
		if a.Sum != model[a.Account].Text("USD") {
			t.Fatalf("%s has %s, want %s", a.Account, a.Sum, model[a.Account])
		}
	}
	oracle(t, db, report)
}

// paged walks a customer's movements in pages of two: each leads to the balance
// of the one before it.
func paged(t *rapid.T, db *store.DB, customer string, posted int, balance money.Amount) {
	seen, r := 0, ledger.MovementsRequest{CustomerID: customer, PageRequest: store.PageRequest{Limit: 2}}
	for {
		page, err := ledger.Journal{DB: db}.Movements(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Data {
			after, err := money.ParseSigned(m.BalanceAfter)
			if err != nil || !after.Equal(balance) {
				t.Fatalf("%s: %s, want %s", customer, m.BalanceAfter, balance)
			}
			moved, _ := money.ParseSigned(m.Amount)
			balance, _ = balance.Sub(moved)
			seen++
		}
		if page.NextCursor == nil {
			break
		}
		r.Cursor = *page.NextCursor
	}
	if seen != posted || balance.Sign() != 0 {
		t.Fatalf("%s: %d of %d movements, from %s", customer, seen, posted, balance)
	}
}

// oracle holds every account's sum against the sqlite3 command, which adds
// decimals exactly, with code of its own; and every entry's, which is zero.
func oracle(t *testing.T, db *store.DB, r ledger.Report) {
	t.Helper()
	lines := decimals(t, db, `
		SELECT l.account || ' ' || e.currency || ' ' || decimal_sum(l.amount) FROM journal_lines l JOIN journal_entries e USING (entry_id)
		GROUP BY l.account, e.currency ORDER BY l.account, e.currency`)
	if len(lines) != len(r.Accounts) {
		t.Fatalf("sqlite3 says %q, want %v", lines, r.Accounts)
	}
	for i, a := range r.Accounts {
		part := strings.Fields(lines[i])
		if len(part) != 3 || part[0] != a.Account || part[1] != a.Currency || !amount(t, part[2]).Equal(amount(t, a.Sum)) {
			t.Errorf("sqlite3 says %s, want %v", lines[i], a)
		}
	}
	for _, sum := range decimals(t, db, `SELECT DISTINCT decimal_sum(amount) FROM journal_lines GROUP BY entry_id`) {
		if amount(t, sum).Sign() != 0 {
			t.Errorf("sqlite3 says that an entry adds up to %s", sum)
		}
	}
}

// decimals is what the sqlite3 command answers, by line.
func decimals(t *testing.T, db *store.DB, query string) []string {
	t.Helper()
	if _, err := exec.LookPath("sqlite3"); err != nil {
		oracleMissing(t, "sqlite3 is not in PATH")
	}
	out, err := exec.Command("sqlite3", "-readonly", db.Path(), query).CombinedOutput()
	if strings.Contains(string(out), "no such function") {
		oracleMissing(t, "this sqlite3 has no decimals")
	}
	if err != nil {
		t.Fatalf("sqlite3: %v: %s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// oracleMissing skips where the command is not there, or cannot add decimals, but
// not in CI: there, nobody would notice.
func oracleMissing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("not held against sqlite3's decimal_sum: %s", why)
	}
	t.Skipf("not held against sqlite3's decimal_sum: %s", why)
}
