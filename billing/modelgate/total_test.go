package modelgate

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// txnJSON is the nth transaction of a cent: they are a second apart.
func txnJSON(n int, status string) string {
	at := time.Date(2026, 5, 14, 0, 0, n, 0, time.UTC).Format(time.RFC3339)
	return fmt.Sprintf(`{"id":"txn_%d","type":"top_up","group_id":"grp_1","amount":"0.01","currency":"USD","status":%q,"created_at":%q}`, n, status, at)
}

// A group's total is that of all its transactions, also where one question cannot
// answer it. Pages have what is asked for, in full.
func TestGroupTotalIsOfAllTransactions(t *testing.T) {
	const all = 2500
	requests := 0
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		q := r.URL.Query()
		if r.URL.Path != "/transactions" || q.Get("group_id") != "grp_1" {
			t.Errorf("%s", r.URL)
		}
		first, last := 0, all
		if q.Has("created_from") {
			from, _ := time.Parse(time.RFC3339, q.Get("created_from"))
			to, _ := time.Parse(time.RFC3339, q.Get("created_to"))
			begin := time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)
			first, last = max(0, min(all, int(from.Sub(begin)/time.Second))), max(0, min(all, int(to.Sub(begin)/time.Second)+1)) // the upper bound too
		}
		if q.Has("cursor") {
			_, _ = fmt.Sscan(q.Get("cursor"), &first)
		}
		var rows []string
		for n := first; n < min(first+100, last); n++ {
			rows = append(rows, txnJSON(n, "posted"))
		}
		next := "null"
		if first+100 < last {
			next = fmt.Sprintf(`"%d"`, first+100)
		}
		answer(200, `{"data":[`+strings.Join(rows, ",")+`],"next_cursor":`+next+`}`)(w, r)
	})
	sum, err := c.GroupTotal(context.Background(), "grp_1")
	if err != nil || sum.Text("USD") != "25.00" || requests > 400 {
		t.Errorf("%s after %d requests (%v)", sum.Text("USD"), requests, err)
	}
}

func TestGroupTotalJudges(t *testing.T) {
	for body, want := range map[string]string{
		txnJSON(1, "posted") + "," + txnJSON(2, "reversed"):                                    "0.01",
		txnJSON(1, "posted") + "," + strings.Replace(txnJSON(2, "posted"), "0.01", "-0.01", 1): "0",
		"": "0",
		txnJSON(1, "posted") + "," + strings.Replace(txnJSON(2, "posted"), "USD", "EUR", 1): "transaction txn_2 is in EUR",
		strings.Replace(txnJSON(1, "posted"), "grp_1", "grp_2", 1):                          "of group grp_2, which is not what was asked for",
		strings.Replace(txnJSON(1, "posted"), "0.01", "1E+3", 1):                            "asking the upstream: malformed",
	} {
		sum, err := upstream(t, answer(200, `{"data":[`+body+`],"next_cursor":null}`)).GroupTotal(context.Background(), "grp_1")
		if got := fmt.Sprint(sum, err); !strings.Contains(got, want) || (err == nil) != (len(want) < 5) {
			t.Errorf("%s: %s (%v), want %s", body, sum, err, want)
		}
	}
}
