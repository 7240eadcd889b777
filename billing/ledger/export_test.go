package ledger_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"jpintel/billing/ledger"
)

// CSV is what RFC 4180 says, whatever is in a text; amounts keep their digits and
// their sign, and no spreadsheet takes a text for a formula.
func TestCSVIsReadAgainAsItWas(t *testing.T) {
	db := checked(t, newBook(t, "-1+1", "cus_a"))
	memos := map[string]string{
		"plain": "plain", `a, "quoted" one` + "\nof two lines": `a, "quoted" one` + "\nof two lines", "": "", "補助金": "補助金",
		`=HYPERLINK("http://x/")`: `'=HYPERLINK("http://x/")`, "+1": "'+1", "-2+3": "'-2+3", "@SUM(A1)": "'@SUM(A1)", "\tx": "'\tx", "＝1": "'＝1", " =1": " =1",
	}
	var want []string
	for memo, shown := range memos {
		e := entry(t, fmt.Sprintf("=e%d", len(want)), ledger.Refund, "-1+1", "-0.10", ledger.Refunds)
		e.Memo, e.PaymentID, e.SourceID = memo, "@pay", "@source"
		post(t, db, e)
		want = append(want, shown)
	}
	j := ledger.Journal{DB: db}
	var text strings.Builder
	if err := j.WriteCSV(t.Context(), &text, ledger.Filter{CustomerID: "-1+1"}); err != nil {
		t.Fatal(err)
	}
	if bare := strings.ReplaceAll(text.String(), "\r\n", ""); strings.ContainsAny(bare, "\r\n") || !strings.HasSuffix(text.String(), "\r\n") {
		t.Errorf("a line ends otherwise than with CRLF: %q", text.String())
	}
	rows, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
	if err != nil || len(rows) != 1+2*len(want) {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	column := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	for i, memo := range want {
		for line, wanted := range []map[string]string{
			{"line": "1", "account": "cust:-1+1:credit", "amount": "-0.10", "amount_raw": "-0.10"}, {"line": "2", "account": "reversal:refund", "amount": "0.10", "amount_raw": "0.10"},
		} {
			wanted["memo"], wanted["entry_id"], wanted["customer_id"], wanted["payment_id"], wanted["operation_id"], wanted["currency"], wanted["occurred_at"] =
				memo, fmt.Sprint("'=e", i), "'-1+1", "'@pay", "", "USD", "2026-05-14T00:00:00Z"
			for name, value := range wanted {
				if got := column(rows[1+2*i+line], name); got != value {
					t.Errorf("entry %d, line %d: %s is %q, want %q", i, line+1, name, got, value)
				}
			}
		}
	}
	text.Reset()
	if err := j.WriteMovements(t.Context(), &text, "-1+1"); err != nil {
		t.Fatal(err)
	}
	rows, err = csv.NewReader(strings.NewReader(text.String())).ReadAll()
	if err != nil || len(rows) != 1+len(want) || column(rows[1], "entry_id") != fmt.Sprint("'=e", len(want)-1) || column(rows[1], "balance_after") != fmt.Sprintf("-%d.%d0", len(want)/10, len(want)%10) || column(rows[1], "source_id") != "'@source" {
		t.Errorf("%q (%v)", rows, err)
	}
}

// The filters, and JSON: an entry a line, in both directions complete over chunks.
func TestExportsAreComplete(t *testing.T) {
	db := checked(t, newBook(t, "cus_a", "cus_b"))
	var entries []ledger.Entry
	for i := range 1003 {
		e := entry(t, fmt.Sprint("e", i), ledger.Usage, []string{"cus_a", "cus_b"}[i%2], "-0.01", ledger.UsageRevenue)
		if i%100 == 0 {
			e.PaymentID = "pay_1"
		}
		entries = append(entries, e)
	}
	post(t, db, entries...)
	j := ledger.Journal{DB: db}
	for _, c := range []struct {
		filter      ledger.Filter
		want        int
		first, last string
	}{
		{ledger.Filter{}, 1003, "e0", "e1002"}, {ledger.Filter{CustomerID: "cus_b"}, 501, "e1", "e1001"}, {ledger.Filter{PaymentID: "pay_1"}, 11, "e0", "e1000"},
		{ledger.Filter{Account: ledger.UsageRevenue}, 1003, "e0", "e1002"}, {ledger.Filter{Account: ledger.Credit("cus_b")}, 501, "e1", "e1001"},
		{ledger.Filter{CustomerID: "cus_b", PaymentID: "pay_1"}, 0, "", ""}, {ledger.Filter{CustomerID: "cus_none"}, 0, "", ""},
	} {
		var text strings.Builder
		if err := j.WriteJSON(t.Context(), &text, c.filter); err != nil {
			t.Fatal(err)
		}
		var got []ledger.Posted
		for line := range strings.Lines(text.String()) {
			var e ledger.Posted
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		}
		if len(got) != c.want || c.want > 0 && (got[0].EntryID != c.first || got[c.want-1].EntryID != c.last || len(got[0].Lines) != 2) {
			t.Errorf("%+v: %d entries, want %d from %s to %s", c.filter, len(got), c.want, c.first, c.last)
		}
		page, err := j.Entries(t.Context(), ledger.EntriesRequest{CustomerID: c.filter.CustomerID, PaymentID: c.filter.PaymentID, Account: c.filter.Account})
		if err != nil || len(page.Data) != min(50, c.want) || c.want > 0 && page.Data[0].EntryID != c.last || (page.NextCursor != nil) != (c.want > 50) {
			t.Errorf("%+v: a page of %d, next %v (%v)", c.filter, len(page.Data), page.NextCursor, err)
		}
	}
	var text strings.Builder
	if err := j.WriteMovements(t.Context(), &text, "cus_b"); err != nil || strings.Count(text.String(), "\r\n") != 502 || strings.Contains(text.String(), "e0,") {
		t.Errorf("%d rows (%v)", strings.Count(text.String(), "\r\n"), err)
	}
}
