package ledger

import "testing"

// The ids are those that Python's uuid.uuid5 makes of the same texts: they are in
// keys that the upstream knows, and must never become others.
func TestEntryIDsNeverChange(t *testing.T) {
	for want, parts := range map[string][]string{
		"9877f484-cd1c-556f-b86d-f432af1fd541": {"stripe", "pi_1", "topup"},
		"bffb31b6-a480-54e3-aaca-0d8ed03c1300": {"stripe", "pi_1", "debit", "1"},
	} {
		if got := EntryID(parts...); got != want {
			t.Errorf("%q: %s, want %s", parts, got, want)
		}
	}
}
