package ledger_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"jpintel/billing/ledger"
)

// The entries that docs/money.md shows can be posted, one after the other, and the
// journal is right then; and the document has every account and every fault.
func TestTheDocumentsEntriesAreEntries(t *testing.T) {
	text, err := os.ReadFile("../../docs/money.md")
	if err != nil {
		t.Fatal(err)
	}
	db := checked(t, newBook(t, "cus_42"))
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| [^|]+ \\| `([-0-9.]+)` \\| `([a-z:]+)` `([-0-9.]+)` \\|$").FindAllStringSubmatch(string(text), -1)
	if len(rows) != 5 {
		t.Fatalf("%d entries", len(rows))
	}
	for i, row := range rows {
		e := entry(t, fmt.Sprint("e", i), ledger.Kind(row[1]), "cus_42", row[2], row[3])
		e.Lines[1].Amount = amount(t, row[4])
		post(t, db, e)
	}
	for _, name := range []string{ledger.Credit("{id}"), ledger.StripeClearing, ledger.Refunds, ledger.Disputes, ledger.UsageRevenue,
		ledger.FaultGap, ledger.FaultLines, ledger.FaultText, ledger.FaultSum, ledger.FaultAccount, ledger.FaultBalance, ledger.FaultReversal, ledger.FaultOperation,
		ledger.FaultMissing, ledger.FaultUpstream, ledger.FaultUnread, string(ledger.Correction)} {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("it does not have %s", name)
		}
	}
}
