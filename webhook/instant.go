package webhook

import (
	"time"

	"jpintel/store"
)

// parseTime reads a time as the API takes it.
func parseTime(field, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, store.Errorf(store.CodeInvalid, "%s: want a time like 2026-05-14T09:00:00+09:00", field)
	}
	return at, nil
}

// pastTime reads the time of something that has happened; zero where none is
// given. Clocks may differ by what receivers of webhooks allow for, too.
func pastTime(field, text string, now time.Time) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if at, err = parseTime(field, text); err != nil {
		return at, err
	}
	if at.After(now.Add(Tolerance)) {
		return at, store.Errorf(store.CodeInvalid, "%s: more than %s in the future", field, Duration(Tolerance))
	}
	return at, nil
}
