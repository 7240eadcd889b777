package programs

import (
	"bytes"
	"encoding/json"
	"time"
)

// A snapshot of the portal's list says 2026-06-30 where the details of the same
// day say 2026-06-30T23:45Z. Neither is a change of the other: a date without a
// time equals an instant on that UTC date, whichever of them is stored.

const dateLayout = time.DateOnly

// instantLayouts are what an instant may look like; the second is the portal's.
var instantLayouts = []string{time.RFC3339, "2006-01-02T15:04Z07:00"}

// parseMoment reads a date or an instant.
func parseMoment(text string) (at time.Time, date, ok bool) {
	if len(text) < len(dateLayout) || text[4] != '-' {
		return at, false, false // most texts are neither
	}
	if at, err := time.Parse(dateLayout, text); err == nil {
		return at, true, true
	}
	for _, layout := range instantLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), false, true
		}
	}
	return at, false, false
}

// sameMoment reports whether two texts are moments that do not contradict each
// other: two dates or two instants that are equal, or an instant on the date.
func sameMoment(a, b string) bool {
	at, aDate, ok := parseMoment(a)
	if !ok {
		return false
	}
	bt, bDate, ok := parseMoment(b)
	if !ok {
		return false
	}
	if aDate == bDate {
		return at.Equal(bt)
	}
	return at.Format(dateLayout) == bt.Format(dateLayout)
}

// settle returns what is to be stored when incoming comes in where stored is:
// incoming, with every moment in it left as stored where the two are the same.
// So the two are equal exactly when it returns stored.
func settle(stored, incoming json.RawMessage) json.RawMessage {
	if stored == nil || bytes.Equal(stored, incoming) || stored[0] != incoming[0] {
		return incoming
	}
	switch incoming[0] {
	case '"', '[', '{':
	default:
		return incoming
	}
	before, err := decode(stored)
	if err != nil {
		return incoming // unreachable: both are canonical JSON
	}
	after, err := decode(incoming)
	if err != nil {
		return incoming
	}
	return encode(keepMoments(before, after))
}

// keepMoments is settle for decoded values; it changes incoming.
func keepMoments(stored, incoming any) any {
	switch in := incoming.(type) {
	case string:
		if old, ok := stored.(string); ok && sameMoment(old, in) {
			return old
		}
	case []any:
		if old, ok := stored.([]any); ok && len(old) == len(in) {
			for i := range in {
				in[i] = keepMoments(old[i], in[i])
			}
		}
	case map[string]any:
		if old, ok := stored.(map[string]any); ok {
			for name := range in {
				in[name] = keepMoments(old[name], in[name])
			}
		}
	}
	return incoming
}
