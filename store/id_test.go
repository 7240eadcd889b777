package store

import (
	"bytes"
	"crypto/rand"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

func TestIDsRise(t *testing.T) {
	now := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	g := newIDs()
	var last string
	for i, at := range []time.Time{
		now, now, now, now.Add(time.Microsecond), now.Add(time.Millisecond),
		now, now.Add(-time.Hour), now.Add(-time.Hour), now.Add(time.Hour), now, time.Unix(0, 0),
	} {
		id := g.next("evt", at)
		if id <= last {
			t.Errorf("id %d, at %v, is %s after %s", i, at, id, last)
		}
		last = id
	}
}

func TestIDTellsItsTime(t *testing.T) {
	now := time.Date(2026, 4, 1, 12, 34, 56, 789e6, time.UTC)
	id := newIDs().next("evt", now)
	if !regexp.MustCompile(`^evt_[0-9A-HJKMNP-TV-Z]{26}$`).MatchString(id) {
		t.Fatalf("id %q", id)
	}
	if got := ulid.Time(ulid.MustParse(strings.TrimPrefix(id, "evt_")).Time()); !got.Equal(now) {
		t.Errorf("%s is of %v, want %v", id, got, now)
	}
}

func TestIDsOfOneMillisecondRunOut(t *testing.T) {
	now := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	highest := bytes.Repeat([]byte{0xff}, 10)
	g := &ids{entropy: ulid.Monotonic(io.MultiReader(bytes.NewReader(highest), rand.Reader), 0)}
	first, second := g.next("evt", now), g.next("evt", now)
	if second <= first {
		t.Errorf("%s came after %s", second, first)
	}
}

func TestIDsOfManyGoroutines(t *testing.T) {
	const goroutines, each = 16, 1000
	g := newIDs()
	now := time.Now()
	all := make([][]string, goroutines)
	var makers sync.WaitGroup
	for i := range all {
		makers.Go(func() {
			for range each {
				all[i] = append(all[i], g.next("evt", now))
			}
		})
	}
	makers.Wait()
	for i, ids := range all {
		if !slices.IsSorted(ids) {
			t.Errorf("goroutine %d got ids that do not rise", i)
		}
	}
	together := slices.Concat(all...)
	slices.Sort(together)
	if n := len(slices.Compact(together)); n != goroutines*each {
		t.Errorf("%d different ids, want %d", n, goroutines*each)
	}
	if first, second := NewID("boot"), NewID("boot"); first >= second {
		t.Errorf("NewID gave %s after %s", second, first)
	}
}
