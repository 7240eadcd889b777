package webhook

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  time.Duration
		again string // as it is written
	}{
		{"30s", 30 * time.Second, "30s"},
		{"90s", 90 * time.Second, "90s"},
		{"1m30s", 90 * time.Second, "90s"},
		{"5m", 5 * time.Minute, "5m"},
		{"60m", time.Hour, "1h"},
		{"12h", 12 * time.Hour, "12h"},
		{"36h", 36 * time.Hour, "36h"},
		{"24h", 24 * time.Hour, "1d"},
		{"30d", 30 * 24 * time.Hour, "30d"},
		{"65535d", 65535 * 24 * time.Hour, "65535d"},
		{"0d", 0, "0s"},
		{"0", 0, "0s"},
		{"250ms", 250 * time.Millisecond, "250ms"},
		{"1.5s", 1500 * time.Millisecond, "1.5s"},
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(c.text)); err != nil || time.Duration(d) != c.want {
			t.Errorf("%s: got %v, %v", c.text, time.Duration(d), err)
		}
		if d.String() != c.again {
			t.Errorf("%s: written %s, want %s", c.text, d, c.again)
		}
		var back Duration
		if text, err := json.Marshal(d); err != nil || json.Unmarshal(text, &back) != nil || back != d {
			t.Errorf("%s: as JSON %s, %v", c.text, text, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "+1d", "1.5d", "65536d", "-1s", "1", "1w", "1 d", "1h1d", "soon"} {
		d := Duration(time.Second)
		if err := d.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "not a duration like 30s, 12h or 30d") || d != Duration(time.Second) {
			t.Errorf("%q: got %v, %v", text, d, err)
		}
	}
}
