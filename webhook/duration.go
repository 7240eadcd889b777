package webhook

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span that reads and writes as people do: 30s, 12h, 30d.
type Duration time.Duration

// UnmarshalText reads a positive span: Go's form, or days with a d.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a duration like 30s, 12h or 30d", s)
		}
		*d = Duration(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	parsed, err := time.ParseDuration(s)
	if err != nil || parsed < 0 {
		return fmt.Errorf("%q is not a duration like 30s, 12h or 30d", s)
	}
	*d = Duration(parsed)
	return nil
}

// String writes the largest whole unit: 90s, 12h, 30d.
func (d Duration) String() string {
	t := time.Duration(d)
	switch {
	case t >= 24*time.Hour && t%(24*time.Hour) == 0:
		return fmt.Sprintf("%dd", t/(24*time.Hour))
	case t >= time.Hour && t%time.Hour == 0:
		return fmt.Sprintf("%dh", t/time.Hour)
	case t >= time.Minute && t%time.Minute == 0:
		return fmt.Sprintf("%dm", t/time.Minute)
	case t >= time.Second && t%time.Second == 0:
		return fmt.Sprintf("%ds", t/time.Second)
	}
	return t.String()
}

// MarshalJSON writes it as its string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }
