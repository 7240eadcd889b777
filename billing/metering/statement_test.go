package metering

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

var update = flag.Bool("update", false, "write the golden files anew")

func (b *bench) attempts(customer, day string, n int) {
	b.exec(`INSERT INTO webhook_daily_attempts (customer_id, day, attempts) VALUES ($1, $2, $3)`, customer, day, n)
}

func (b *bench) exec(query string, args ...any) {
	if err := b.write(func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) statement(customer, month string, c money.Currency, now time.Time) Statement {
	var s Statement
	err := b.db.View(context.Background(), func(q store.Querier) (err error) {
		s, err = ReadStatement(q, customer, month, c, parse(b.t, "0.5"), now, b.db.Location)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// May is a customer's May, with all that there can be in a statement.
func may(t *testing.T) *bench {
	b := newBench(t)
	for day, n := range map[string]int{"2026-04-30": 9, "2026-05-01": 3, "2026-05-31": 42, "2026-06-01": 9} {
		b.attempts("cus_a", day, n)
	}
	b.attempts("cus_b", "2026-05-01", 7)
	settled := func(until time.Time) {
		t.Helper()
		if err := b.write(func(tx *store.Tx) error { return Pass{until, until}.Set(tx, "cus_a", Head) }); err != nil {
			t.Fatal(err)
		}
		b.exec(`UPDATE usage_records SET changed_at_ms = 0 WHERE closed_at_ms IS NULL`)
		if _, err := CloseDue(t.Context(), b.db, webhook.NewOutbox(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	take := func(id, cost string, final bool, at time.Time) {
		t.Helper()
		if _, err := b.take("cus_a", used(t, id, cost, final, at)); err != nil {
			t.Fatal(err)
		}
	}
	take("mrq_1", "1.274800000001", true, noonMay14)
	settled(noonMay14.AddDate(0, 0, 1))
	take("mrq_2", "0.5", true, noonMay14)
	settled(noonMay14.AddDate(0, 1, 0))
	take("mrq_3", "10", false, noonMay14.AddDate(0, 0, 1))
	take("mrq_4", "99", true, noonMay14.AddDate(0, 1, 0)) // June's
	return b
}

func TestAStatementAsCSV(t *testing.T) {
	b := may(t)
	var got strings.Builder
	if err := b.statement("cus_a", "2026-05", "USD", noonMay14.AddDate(0, 1, 0)).WriteCSV(&got); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/statement.csv"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || got.String() != string(want) {
		t.Errorf("%s\nwant\n%s(%v)", got.String(), want, err)
	}
}

// A statement is exact, and rounded in one place; others' and other months' are
// not in it.
func TestAStatement(t *testing.T) {
	b := may(t)
	now := noonMay14.AddDate(0, 1, 0)
	s := b.statement("cus_a", "2026-05", "USD", now)
	if a := s.Attempts; a.Attempts != 45 || a.Exact != "22.5" || a.Rounded != "22" || a.Billed || len(a.Days) != 2 || a.Days[0] != (AttemptDay{"2026-05-01", 3, "0.5", "1.5"}) {
		t.Errorf("%+v", a)
	}
	if m := s.Models; m.Exact != "11.774800000001" || m.Requests != 3 || len(m.Days) != 3 || m.Days[1] != (ModelDay{"2026-05-14", "usage_cus_a_2026-05-14_2", 1, "0.50", Final}) || m.Days[2].Status != Provisional || !s.Provisional {
		t.Errorf("%+v", m)
	}
	if s := b.statement("cus_b", "", "", noonMay14); s.Month != "2026-05" || s.Attempts.Rounded != "4" || s.Attempts.Exact != "3.5" || s.Models != nil || !s.Provisional {
		t.Errorf("%+v", s)
	}
	if s := b.statement("cus_b", "2026-05", "", now); s.Provisional {
		t.Errorf("%+v", s)
	}
	if s := b.statement("cus_b", "2026-05", "USD", now); !s.Provisional || s.Models.Exact != "0.00" {
		t.Errorf("models that nobody has asked about: %+v", s)
	}
	for _, month := range []string{"2026-13", "2026-5", "2026-05-01", "26-05", "may", "2026-07"} {
		_, err := ReadStatement(b.db.Reader(t.Context()), "cus_a", month, "USD", money.Amount{}, now, time.UTC)
		if store.CodeOf(err) != store.CodeInvalid || !strings.HasPrefix(err.Error(), "month: ") {
			t.Errorf("%s: %v", month, err)
		}
	}
}

// A price holds from the day on which it is set: a month that is over keeps its
// own.
func TestPrices(t *testing.T) { synctest.Test(t, testPrices) }

func testPrices(t *testing.T) {
	b := newBench(t)
	today := time.Now().In(b.db.Location)
	yesterday, day := today.AddDate(0, 0, -1).Format(time.DateOnly), today.Format(time.DateOnly)
	set := func(text string) {
		t.Helper()
		if err := b.write(func(tx *store.Tx) error { return SetAttemptPrice(tx, parse(t, text)) }); err != nil {
			t.Fatal(err)
		}
	}
	want := func(before, now string) {
		t.Helper()
		all, err := readPrices(b.db.Reader(t.Context()))
		if got := []string{all.on(yesterday, parse(t, "9")).String(), all.on(day, parse(t, "9")).String()}; err != nil || got[0] != before || got[1] != now {
			t.Errorf("%q, want %s and %s (%v)", got, before, now, err)
		}
	}
	want("9", "9")
	set("0.5")
	set("0.50")
	want("0.5", "0.5")
	set("0.75")
	want("0.5", "0.75")
	set("0.6")
	want("0.5", "0.6")
	if got := b.strings(`SELECT from_day FROM attempt_prices ORDER BY 1`); len(got) != 2 {
		t.Errorf("%q", got)
	}
}
